"""What is attacked: files that the program reads, and words of its command line, by name.

The files below ``input`` of a subject's folder are damaged; ``{f}`` in a command is the folder.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ir_measures
import numpy as np
import pyarrow as pa

from tests.support import tiny_checkpoints
from tests.support.collections import DOCUMENTS, QRELS, QUERIES, write_collection

ROOT = Path(__file__).resolve().parents[2]
METADATA = (
    'name = "own"\nsplit = "test"\nmeasures = ["R@100", "RR@10", "AP"]\nexclude_self = true\n'
)
PLACES = "--results {f}/out --cache-dir {f}/cache --json"
RUN = f"run {{f}}/input --model hashing {PLACES}"
OF_CARD = f"run {{f}}/own --model {{f}}/input/own.toml --device cpu {PLACES}"
RESULTS = "--results {f}/input --resamples 199 --json"
CARD = (
    'name = "own"\ntitle = "Own"\nkind = "hashing"\nnormalize = true\nsimilarity = "dot"\n'
    'max_query_tokens = 512\ntitle_join = "space"\ntrained_on = ["beir/scifact"]\n'
    '[options]\ndim = 64\n[prompts]\nquery = "lift "\n'
)


@dataclass(frozen=True)
class Subject:
    """One kind of input.

    Attributes:
        make: writes sound input, which the commands accept.
        commands: one of them is run on damaged input.
        codes: that may come of it, besides 2.
        judge: fails where what was accepted is wrong; of the folder, and of the sound one after
            its own run.
        words: the words of the command are changed, and no file.
    """

    make: Callable[[Path], object]
    commands: tuple[str, ...]
    codes: tuple[int, ...] = (0,)
    judge: Callable[[Path, Path], None] = lambda folder, sound: None
    words: bool = False


def bench(command: str, folder: Path) -> None:
    """Run a command that must succeed."""
    from bench.__main__ import main

    assert main(command.format(f=folder).split()) == 0


def _tsv(folder: Path) -> None:
    lines = [f"{name}\t{text}" for name, (_, text) in DOCUMENTS.items()]
    asked = [f"{name}\t{text}" for name, text in QUERIES.items()]
    qrels = [f"{query} 0 {document} {grade}" for (query, document), grade in QRELS.items()]
    _write(folder, {"collection.tsv": lines, "queries.test.tsv": asked, "qrels.test.tsv": qrels})


def _dpr(folder: Path) -> None:
    rows = [f'{name}\t"{text}"\t{title}' for name, (title, text) in DOCUMENTS.items()]
    asked = [f"{text}\t['wing', \"heat\"]" for text in QUERIES.values()]
    _write(folder, {"psgs_w100.tsv": ["id\ttext\ttitle", *rows], "nq-test.qa.csv": asked})


def _write(folder: Path, files: dict[str, list[str]]) -> None:
    (folder / "input").mkdir()
    for name, lines in files.items():
        (folder / "input" / name).write_text("".join(f"{line}\n" for line in lines))
    (folder / "input" / "dataset.toml").write_text(METADATA.replace("true", "false"))


def _run_file(folder: Path) -> None:
    write_collection(folder / "own", metadata=METADATA)
    draws = np.random.default_rng(0).normal(0, 3, (len(QUERIES), len(DOCUMENTS))).round(1)
    rows = [
        f"{query} Q0 {document} 1 {score} tag"
        for query, scores in zip(QUERIES, draws, strict=True)
        for document, score in zip(DOCUMENTS, scores, strict=True)
    ]
    (folder / "input").mkdir()
    (folder / "input" / "some.trec").write_text("\n".join([*rows, ""]))


def _card(folder: Path) -> None:
    write_collection(folder / "own", metadata=METADATA)
    (folder / "input").mkdir()
    (folder / "input" / "own.toml").write_text(CARD)


def _checkpoint(folder: Path) -> None:
    write_collection(folder / "own", metadata=METADATA)
    tiny_checkpoints.write_bert(folder / "input" / "bert")
    tiny_checkpoints.write_card(folder / "input" / "own.toml", checkpoint="bert", pooling="mean")


def _results(folder: Path) -> None:
    write_collection(folder / "own", metadata=METADATA.replace("true", "false"))
    bench("run {f}/own --model hashing bm25 --results {f}/input --cache-dir {f}/cache", folder)


def _toml(folder: Path) -> None:
    for source in ("retrievers/training/presets", "bench/experiments/grids"):
        for path in sorted((ROOT / source).rglob("*.toml"), key=lambda one: one.stat().st_size)[:6]:
            (folder / "input").mkdir(exist_ok=True)
            shutil.copy(path, folder / "input" / "own.toml")


def _cached(folder: Path) -> None:
    """Corpora and vectors are damaged, not what they were made from."""
    write_collection(folder / "own", metadata=METADATA)
    command = "run {f}/own --model hashing --results {f}/first --cache-dir {f}/input"
    bench(command, folder)


def _words(folder: Path) -> None:
    _run_file(folder)
    bench("run {f}/own --model hashing bm25 --results {f}/stored --cache-dir {f}/cache", folder)


def _ranking(folder: Path) -> list[dict[str, object]]:
    (path,) = folder.rglob("run.arrow")
    with pa.memory_map(str(path)) as source:
        rows: list[dict[str, object]] = pa.ipc.open_file(source).read_all().to_pylist()
    return rows


def _same_ranking(folder: Path, sound: Path) -> None:
    """Damage of what the program keeps for itself may cost time, and never changes a score."""
    assert _ranking(folder / "out") == _ranking(folder / "first")


def _scored_by_others(folder: Path, sound: Path) -> None:
    """A run that is accepted has the scores that ir_measures gives what can be read of it."""
    (path,) = (folder / "out").rglob("result.json")
    run: dict[str, dict[str, float]] = {}
    for line in (folder / "input" / "some.trec").read_bytes().decode(errors="replace").split("\n"):
        if line.strip():
            query, _, document, _, score, _ = line.split()
            if query != document:
                run.setdefault(query, {})[document] = float(np.float32(score))
    qrels: dict[str, dict[str, int]] = {}
    for (query, document), grade in QRELS.items():
        qrels.setdefault(query, {})[document] = grade
    for name, value in json.loads(path.read_bytes())["measures"].items():
        measure = ir_measures.parse_measure(name)
        expected = ir_measures.calc_aggregate([measure], qrels, run)[measure]
        assert abs(expected - value) < 1e-9, f"{name} is {value}, and ir_measures says {expected}"


OUTCOMES = (0, 1, 3, 4, 5)
SUBJECTS: dict[str, Subject] = {
    "beir": Subject(lambda folder: write_collection(folder / "input", metadata=METADATA), (RUN,)),
    "msmarco": Subject(_tsv, (RUN,)),
    "dpr": Subject(_dpr, (RUN,)),
    "run file": Subject(
        _run_file,
        (f"score {{f}}/input/some.trec --dataset {{f}}/own {PLACES}",),
        judge=_scored_by_others,
    ),
    "card": Subject(_card, (OF_CARD,)),
    "checkpoint": Subject(_checkpoint, (OF_CARD,)),
    "results": Subject(
        _results,
        (
            f"compare hashing bm25 --changed 2 {RESULTS}",
            f"leaderboard {RESULTS}",
            "export hashing --results {f}/input --out {f}/exported",
            f"check hashing --baseline bm25 --on {{f}}/own --cache-dir {{f}}/cache {RESULTS}",
        ),
        OUTCOMES,
    ),
    "toml": Subject(_toml, ("show {f}/input/own.toml --json",)),
    "cache": Subject(
        _cached,
        ("run {f}/own --model hashing --results {f}/out --cache-dir {f}/input --json",),
        judge=_same_ranking,
    ),
    "words": Subject(
        _words,
        (
            f"run {{f}}/own --model hashing --depth 10 --measure R@5 --index flat {PLACES}",
            f"run {{f}}/own --model bm25 --split test --set max_query_tokens=8 {PLACES}",
            f"score {{f}}/input/some.trec --dataset {{f}}/own --name mine {PLACES}",
            "compare hashing bm25 --results {f}/stored --resamples 199 --on own",
            "check hashing --baseline bm25 --results {f}/stored --on {f}/own --margin 0.01",
            "leaderboard --results {f}/stored --measure nDCG@10 --format csv",
            "export hashing --results {f}/stored --on own --out {f}/out",
            "cache --older-than 3 --prune hashing --cache-dir {f}/cache",
            "list models --json",
            "show beir/scifact",
        ),
        OUTCOMES,
        words=True,
    ),
}
