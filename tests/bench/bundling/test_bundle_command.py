"""``bundle`` and ``replay`` as they are typed: moved to an empty folder, with another cache."""

import hashlib
import json
import shutil
import sys

import pytest

from bench.requests.outcomes import ExitCode
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import Bench, write_collection, write_hashing_card, write_words
from tests.support.experiments import run_stages_in_this_process
from tests.support.pipelines import write_cross_encoder, write_rerank
from tests.support.trainable import write_training

SYSTEM = """
from words import split

class Search:
    version = "1"

    def search(self, queries, k):
        return [[(f"d{len(split(query)) % 3}", 1.0)] for query in queries]

prod = Search()
"""


@pytest.fixture
def project(bench, monkeypatch):
    """An empty project with a collection, a card and own code."""
    folder = bench.place / "project"
    write_project(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])  # own code adds its folder
    monkeypatch.delitem(sys.modules, "words", raising=False)
    return folder


def write_project(folder):
    write_collection(folder / "data" / "wings")
    write_hashing_card(folder / "mine.toml", 16)
    (folder / "search.py").write_text(SYSTEM, encoding="utf-8")
    (folder / "words.py").write_text("split = str.split\n", encoding="utf-8")


def run(bench, *words):
    done = bench("run", "wings", "--data-dir", "data", "--results", "results", "--model", *words)
    assert done.code == ExitCode.OK, done.stderr


def bundle(bench, *words):
    """The command, with the collections and the cache of the project."""
    return bench("bundle", *words, "--data-dir", "data", "--cache-dir", bench.cache)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A bundle of a card, BM25 and own code, one of BM25 alone, and the collections."""
    bench = Bench(tmp_path_factory.mktemp("bundles"))
    folder = bench.place / "project"
    write_project(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        run(bench, "bm25")
        assert bundle(bench, "results", "--out", "small").code == ExitCode.OK
        run(bench, "mine.toml")
        run(bench, "search.py:prod", "--trust-code")
        assert bundle(bench, "results", "--out", "paper").code == ExitCode.OK
    return folder


@pytest.fixture
def move(bench, bundles, monkeypatch):
    """Copy a bundle to an empty folder, with nothing but the collections next to it."""

    def move(name="paper"):
        shutil.copytree(bundles / name, bench.place / "elsewhere" / "paper")
        shutil.copytree(bundles / "data", bench.place / "elsewhere" / "data")
        monkeypatch.chdir(bench.place / "elsewhere")
        return bench.place / "elsewhere" / "paper"

    return move


def replay(bench, *words):
    places = ("--data-dir", "data", "--cache-dir", bench.place / "new-cache")
    return bench("replay", "paper", *places, *words)


@pytest.mark.slow
def test_a_moved_bundle_is_repeated_with_the_same_scores(bench, move):
    moved = move()
    planned = replay(bench, "--dry-run")
    assert planned.code == ExitCode.OK, planned.stdout + planned.stderr
    assert planned.stdout.count("would run") == 3
    assert "run with --trust-code: code/" in planned.stdout.replace("\\", "")
    assert not (moved.parent / "replayed").exists()
    done = replay(bench, "--trust-code", "--json")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert [each["state"] for each in report["commands"]] == ["repeated"] * 3
    rows = [row for each in report["commands"] for row in each["rows"]]
    assert [row["mean_a"] for row in rows] == [row["mean_b"] for row in rows]


def test_the_readme_has_the_commands_and_no_data_is_copied(bundles):
    readme = (bundles / "paper" / "README.md").read_text()
    assert "python -m bench run wings --model cards/mine.toml" in readme
    assert "code/" in readme
    files = {path.name for path in (bundles / "paper").rglob("*") if path.is_file()}
    known = {"README.md", "bundle.json", "requirements.txt", "mine.toml", "search.py", "words.py"}
    assert files == known | {"result.json", "per_query.parquet"}


@pytest.mark.slow
def test_a_changed_or_missing_collection_is_named(bench, move):
    """Another collection of the same name has other scores, or is said to be another."""
    data = move("small").parent / "data"
    qrels = data / "wings" / "qrels" / "test.tsv"
    lines = qrels.read_text().splitlines()
    qrels.write_text("\n".join(lines[:-1]) + "\n")
    planned = replay(bench, "--dry-run")
    assert planned.code == ExitCode.MISSING
    assert "other queries or judgements" in planned.stdout
    done = replay(bench)
    assert done.code == ExitCode.DRIFT, done.stdout + done.stderr
    assert "differs" in done.stdout
    shutil.rmtree(data / "wings")
    for words in (("--dry-run",), ("--out", "again")):
        done = replay(bench, *words)
        assert done.code == ExitCode.MISSING, done.stderr
        assert "**missing**" in done.stdout
        assert "wings" in done.stdout


def test_a_bundle_that_was_cut_or_edited_is_refused(bench, move):
    moved = move()
    manifest, card = moved / "bundle.json", moved / "cards" / "mine.toml"

    def refused(about):
        done = replay(bench, "--dry-run")
        assert done.code == ExitCode.BAD_INPUT
        assert about in done.stderr

    content = manifest.read_text()
    manifest.write_text(content[: len(content) // 2])
    refused("bundle.json")
    manifest.write_text(content)
    card.write_text(card.read_text().replace("16", "17"))
    refused("mine.toml was changed")
    card.unlink()
    refused("mine.toml is missing")


def forge(paper, added, **files):
    """Write a bundle by hand: further words of its first command, and further files."""
    manifest = paper / "bundle.json"
    content = json.loads(manifest.read_text())
    content["commands"][0]["words"] += added
    for name, text in files.items():
        (paper / name).parent.mkdir(exist_ok=True)
        (paper / name).write_text(text)
    for path in map(paper.joinpath, files):
        name = path.relative_to(paper).as_posix()
        content["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("added", "files", "about"),
    [
        (["--trust-code"], {}, "--trust-code"),
        (["--results", "../elsewhere"], {}, "../elsewhere"),
        (["--set", "start=/tmp/start"], {}, "start=/tmp/start"),
        (["--like", "/tmp/evil.py:made"], {}, "/tmp/evil.py:made"),
        (["--set", "objective.name=evil.py"], {}, "evil.py"),
        ([], {"cards/evil.py": ""}, "cards/evil.py"),
        ([], {"cards/a.toml": 'reranker = "evil.py:made"'}, "evil.py:made"),
        ([], {"grids/a.toml": '[pretrain.objective]\nname = "../evil.py"'}, "../evil.py"),
        ([], {"grids/a.toml": 'finetune = { command = ["sh", "-c", "evil"] }'}, "sh -c evil"),
    ],
)
def test_code_is_not_run_without_consent(bench, move, added, files, about):
    """All code is shown, wherever somebody who writes a bundle by hand has hidden it."""
    moved = move("small")
    forge(moved, added, **files)
    done = bench("replay", "paper", "--out", "again")
    assert done.code == ExitCode.BAD_INPUT
    assert f"the bundle runs code: {about}" in done.stderr
    assert not (moved.parent / "again").exists()


def test_the_result_of_an_object_is_listed_with_the_reason(bench, project):
    import bench as python

    def letters(texts):
        return [[text.count(letter) + 0.1 for letter in "abcdef"] for text in texts]

    places = {"results": "results", "cache_dir": bench.cache}
    python.evaluate(letters, "data/wings", name="letters", **places)
    done = bundle(bench, "results", "--out", "paper", "--json")
    assert done.code == ExitCode.OK, done.stderr
    (reason,) = json.loads(done.stdout)["unrepeated"].values()
    assert "its record states no command: Python made it" in reason


@pytest.mark.slow
def test_weights_are_trained_again_or_found_by_their_hashes(bench, project):
    school = write_words(project / "data" / "school")
    (school / "qrels" / "test.tsv").rename(school / "qrels" / "train.tsv")
    tiny.write_bert(project / "start", max_position_embeddings=512)
    words = ("--set", "batch_size=2", "--set", "max_document_tokens=16", "--steps", "2")
    places = ("--data-dir", "data", "--cache-dir", bench.cache)
    trained = bench(
        *("finetune", "in-batch-small", "--model", "start", "--like", "retromae", "--on", "school"),
        *("--out", "models/tuned", *words, *places),
    )
    assert trained.code == ExitCode.OK, trained.stderr
    run(bench, "models/tuned", "--set", "allow_unknown_tokens=true", "--set", "query_prompt=q: ")
    done = bundle(bench, "tuned", "--out", "paper")
    assert done.code == ExitCode.OK, done.stderr
    (again, evaluated) = json.loads((project / "paper" / "bundle.json").read_text())["commands"]
    assert again["words"][0] == "finetune"
    assert evaluated["words"][:4] == ["run", "wings", "--model", "models/tuned"]
    shutil.move(project / "models" / "tuned", project / "kept")
    lacking = replay(bench, "--dry-run")
    assert lacking.code == ExitCode.MISSING
    assert "start" in lacking.stdout
    found = replay(bench, "--dry-run", "--search", "kept")
    assert found.code == ExitCode.OK, found.stdout + found.stderr
    assert "**found**" in found.stdout
    repeated = replay(bench, "--search", "start")
    assert repeated.code == ExitCode.OK, repeated.stdout + repeated.stderr
    assert repeated.stdout.count("**repeated**") == 2


OBJECTIVE = """
from helper import HALF
from retrievers.training.objectives.mlm import MLM

class Own(MLM, kw_only=True):
    half: float = HALF
"""
GRID = """
name = "tiny"
seeds = [0]
pretrain = { preset = "texts.toml", on = ["./mine"] }  # and an own objective in a row
finetune = { preset = "tiny.toml", on = ["./mine"] }
evaluate = { on = ["./mine"] }

[[axes]]
field = "pretrain.objective"
values = [{ name = "own.py" }]
"""


def leave(project, monkeypatch, *kept):
    """Leave nothing but the bundle and what it says it needs, in another folder."""
    place = project.parent / "elsewhere"
    place.mkdir()
    for name in ("paper", *kept):
        shutil.move(project / name, place / name)
    shutil.rmtree(project)
    monkeypatch.chdir(place)


@pytest.mark.slow
def test_a_moved_ablation_is_repeated_with_the_same_table(bench, project, monkeypatch):
    run_stages_in_this_process(monkeypatch)
    write_training(project)
    (project / "own.py").write_text(OBJECTIVE)
    (project / "helper.py").write_text("HALF = 0.5\n")
    (project / "grid.toml").write_text(GRID)
    done = bench("ablate", "grid.toml", "--device", "cpu", "--cache-dir", bench.cache)
    assert done.code == ExitCode.OK, done.stderr
    written = bundle(bench, "ablations", "--out", "paper")
    assert written.code == ExitCode.OK, written.stderr
    assert "python -m bench ablate grids/grid.toml" in written.stdout
    assert "Not repeated" not in written.stdout
    files = {path.name for path in (project / "paper").rglob("*") if path.is_file()}
    assert {"grid.toml", "texts.toml", "tiny.toml", "own.py", "helper.py", "report.json"} <= files
    leave(project, monkeypatch, "mine", "bert")
    places = ("--data-dir", ".", "--cache-dir", bench.place / "new-cache")
    lacking = bench("replay", "paper", "--dry-run", *places)
    assert lacking.code == ExitCode.MISSING
    assert "models/bert" in lacking.stdout
    planned = bench("replay", "paper", "--dry-run", "--search", "bert", *places)
    assert planned.code == ExitCode.OK, planned.stdout
    refused = bench("replay", "paper", "--search", "bert", *places)
    assert "--trust-code" in refused.stderr
    again = bench("replay", "paper", "--search", "bert", "--trust-code", "--json", *places)
    assert again.code == ExitCode.OK, again.stdout + again.stderr
    ((command),) = json.loads(again.stdout)["commands"]
    assert [row["mean_a"] for row in command["rows"]] == [row["mean_b"] for row in command["rows"]]
    assert len(command["rows"]) == 2


@pytest.mark.slow
def test_rerankings_fusions_judgements_and_exported_indexes_are_repeated(
    bench, project, monkeypatch
):
    (project / "own.py").write_text("def count(query, texts):\n    return [*map(len, texts)]\n")
    write_cross_encoder(project / "cross")
    write_rerank(project, "own.py:count", "by-code", model="mine.toml")
    write_rerank(project, "cross", "by-cross", model="fused.toml")
    fused = 'name = "fused"\ntitle = "t"\nkind = "fusion"\nmodels = ["bm25", "mine.toml"]\n'
    (project / "fused.toml").write_text(fused)
    places = ("--cache-dir", bench.cache, "--data-dir", "data")
    index = ("wings", "--model", "mine.toml", "--index", "HNSW8", "--out", "exported/graph")
    assert bench("index", *index, *places).code == ExitCode.OK
    for words in (
        ("by-code.toml", "--trust-code"),
        ("by-cross.toml", "--set", "allow_unknown_tokens=true"),
        ("mine.toml", "--index", "exported/graph", "--name", "graph"),
    ):
        run(bench, *words)
    judged = {"query_id": "q2", "doc_id": "d2", "grade": 1, "judge": "me"}
    (project / "judged.jsonl").write_text(json.dumps(judged))
    imported = bench("judge", "import", "judged.jsonl", "--on", "wings", *places)
    assert imported.code == ExitCode.OK, imported.stderr
    done = bundle(bench, "results", "judged", "--out", "paper", "--json")
    assert done.code == ExitCode.OK, done.stderr
    assert json.loads(done.stdout)["unrepeated"] == {}
    leave(project, monkeypatch, "data", "cross")
    lacking = replay(bench, "--dry-run")
    assert lacking.code == ExitCode.MISSING
    assert "models/cross" in lacking.stdout
    planned = replay(bench, "--dry-run", "--search", "cross")
    assert planned.code == ExitCode.OK, planned.stdout
    again = replay(bench, "--search", "cross", "--trust-code", "--json")
    assert again.code == ExitCode.OK, again.stdout + again.stderr
    commands = json.loads(again.stdout)["commands"]
    assert {each["state"] for each in commands} == {"repeated"}
    assert sum(len(each["rows"]) for each in commands) == 6
