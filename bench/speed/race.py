"""End to end: the same model on the same files, from process start to scores, by turns."""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import msgspec

from bench import __version__
from bench.speed.encode import OURS, Say, in_turn, said_seconds
from bench.speed.peers.job import Job
from bench.speed.records import Race, RaceRun, Spread, ratio_of
from bench.speed.tools import DEFAULT_BATCH, FinishedProcess, last_line, run_process
from datasets_cfg.dataset import FACTS_FILE, Dataset
from foundation.errors import BenchError

MEASURE = "nDCG@10"
TOLERANCE = 0.0005
PROGRAMS: Mapping[str, str] = MappingProxyType(
    {"beir": "bench.speed.peers.beir_run", "mteb": "bench.speed.peers.mteb_run"}
)


@dataclass(frozen=True)
class Exported:
    """A collection written out in BEIR's layout, so that every tool reads the same files."""

    folder: Path
    documents: int
    queries: int


def export(dataset: Dataset, folder: Path, limit: int | None = None) -> Exported:
    """Write a collection in BEIR's layout, with the facts that decide its protocol.

    Args:
        limit: documents to keep, the first ones; then only queries that have an answer among
            them, and only judgements of them.

    Raises:
        BenchError: it is judged by answer strings, or no query is left.
    """
    if dataset.answers is not None:
        raise BenchError(f"{dataset.name} is judged by answer strings: other tools cannot")
    count = min(len(dataset.corpus), limit or len(dataset.corpus))
    documents = _documents(dataset, count)
    kept = {document for document, _, _ in documents}
    triples = [
        (query, document, int(grade))
        for query, document, grade in dataset.qrels
        if limit is None or document in kept
    ]
    answered = {query for query, _, grade in triples if limit is None or grade > 0}
    texts = zip(dataset.queries.ids, dataset.queries.texts, strict=True)
    queries = {query: text for query, text in texts if query in answered}
    if not queries:
        raise BenchError(
            f"the first {count:,} documents of {dataset.name} answer no query", "raise --limit"
        )
    facts = {
        # A copy is not the published collection, whose name it must not claim.
        "name": f"copy-of-{dataset.name.replace('/', '-')}",
        "layout": "beir",
        "main_measure": MEASURE,
        "depth": dataset.facts.depth,
        "exclude_self": bool(dataset.facts.exclude_self),
    }
    judgements = [triple for triple in triples if triple[0] in queries]
    write_folder(folder, documents, queries, judgements, facts)
    return Exported(folder, count, len(queries))


def _documents(dataset: Dataset, count: int) -> list[tuple[str, str, str]]:
    """Id, title and text of the first documents."""
    corpus = dataset.corpus
    columns = (corpus.ids, corpus.titles, corpus.texts)
    lists = [column.slice(0, count).to_pylist() for column in columns]
    return list(zip(*lists, strict=True))


def write_folder(
    folder: Path,
    documents: Sequence[tuple[str, str, str]],
    queries: Mapping[str, str],
    judgements: Sequence[tuple[str, str, int]],
    facts: Mapping[str, object],
) -> None:
    """Documents (id, title, text), queries and judgements in BEIR's layout, with their facts."""
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": document, "title": title, "text": text} for document, title, text in documents]
    questions = [{"_id": query, "text": text} for query, text in queries.items()]
    _write_lines(folder / "corpus.jsonl", [json.dumps(row) for row in rows])
    _write_lines(folder / "queries.jsonl", [json.dumps(row) for row in questions])
    lines = ["\t".join(map(str, judgement)) for judgement in judgements]
    _write_lines(folder / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *lines])
    # Strings, numbers and truth values are written the same in JSON and TOML.
    _write_lines(
        folder / FACTS_FILE, [f"{name} = {json.dumps(value)}" for name, value in facts.items()]
    )


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def race(
    dataset: Dataset,
    job: Job,
    tools: Sequence[str],
    arguments: Sequence[str],
    rounds: int,
    limit: int | None,
    place: Path,
    say: Say,
) -> Race:
    """Every tool evaluates one collection, in fresh processes and by turns, ours without a cache.

    Args:
        job: weights and settings for the other tools.
        tools: of `PROGRAMS`; none is a race against nobody.
        arguments: of ``run`` for our model.
        place: folder for what is written: the disk is part of the race.
        say: told the result of each tool as soon as it is there.
    """
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        exported = export(dataset, Path(temporary) / "collection", limit)
        own = replace(
            job, folder=str(exported.folder), exclude_self=bool(dataset.facts.exclude_self)
        )
        names = (OURS, *tools)
        runs: dict[str, list[RaceEvaluation]] = {name: [] for name in names}
        for turn in range(rounds):
            for which in in_turn(len(names), turn):
                fresh = Path(temporary) / f"round-{turn}"
                done = _run(names[which], own, arguments, fresh)
                runs[names[which]].append(done)
                spent = said_seconds(done.finished.seconds, done.finished.processor_s)
                say(f"{done.tool}: {MEASURE} {done.score:.5f}, {spent}")
    return judged(dataset.name, exported, limit, runs)


@dataclass(frozen=True)
class RaceEvaluation:
    """One tool's evaluation in one round."""

    tool: str
    version: str
    score: float
    finished: FinishedProcess


def _run(name: str, job: Job, arguments: Sequence[str], fresh: Path) -> RaceEvaluation:
    if name == OURS:
        return _run_ours(job, arguments, fresh)
    own = replace(job, batch_size=DEFAULT_BATCH[name])
    command = [sys.executable, "-m", PROGRAMS[name], own.to_json()]
    done = run_process(command, job.threads, name)
    said = last_line(done.stdout, name)
    tool = f"{name} (batch {own.batch_size}, its default)"
    return RaceEvaluation(tool, str(said["version"]), float(said["score"]), done)


def run_command(job: Job, arguments: Sequence[str], fresh: Path) -> list[str]:
    """``run`` into an empty cache: the corpus is built and every text is encoded."""
    places = ["--cache-dir", str(fresh / "cache"), "--out", str(fresh / "results")]
    command = [sys.executable, "-m", "bench", "run", job.folder, *arguments, *places]
    return [*command, "--device", job.device, "--json", "--yes"]


def _run_ours(job: Job, arguments: Sequence[str], fresh: Path) -> RaceEvaluation:
    done = run_process(run_command(job, arguments, fresh), job.threads, OURS)
    (result,) = msgspec.json.decode(done.stdout)["results"]
    return RaceEvaluation(OURS, __version__, float(result["measures"][MEASURE]), done)


def judged(
    collection: str,
    exported: Exported,
    limit: int | None,
    runs: Mapping[str, Sequence[RaceEvaluation]],
) -> Race:
    """Scores first: there is no ratio where any of them differs from ours."""
    rows = [_row(own) for own in runs.values()]
    ours = rows[0]
    reference = ours.scores[0]
    agree = all(abs(score - reference) <= TOLERANCE for row in rows for score in row.scores)
    others = [
        msgspec.structs.replace(
            row,
            ratio=ours.wall_s.median / row.wall_s.median,
            processor_ratio=ratio_of(ours.processor_s, row.processor_s),
        )
        if agree
        else row
        for row in rows[1:]
    ]
    return Race(
        collection=collection,
        documents=exported.documents,
        queries=exported.queries,
        limit=limit,
        measure=MEASURE,
        tolerance=TOLERANCE,
        runs=(ours, *others),
        agree=agree,
        ratio=max((row.ratio for row in others if row.ratio is not None), default=None),
    )


def _row(own: Sequence[RaceEvaluation]) -> RaceRun:
    return RaceRun(
        tool=own[0].tool,
        version=own[0].version,
        wall_s=Spread.of([evaluation.finished.seconds for evaluation in own]),
        scores=tuple(evaluation.score for evaluation in own),
        peak_bytes=max(evaluation.finished.peak_bytes for evaluation in own),
        processor_s=Spread.of([evaluation.finished.processor_s for evaluation in own]),
    )
