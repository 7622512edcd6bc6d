"""The use case ``judge``: pairs that settle a comparison, and scores with their judgements.

The judgements are an overlay: they are stored next to each result that is scored with them, and
their hash is part of its protocol. The files of the collection are never written.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bench.comparing.comparison import check_scores_against_rankings, open_evaluated, resolve_names
from bench.comparing.pairs import ComparedModel, ComparisonSettings, read_all_scores
from bench.comparing.settling import (
    Holes,
    estimate_relevance,
    examine_holes,
    expected_effects,
    open_holes,
)
from bench.evaluation.judging import score_run
from bench.evaluation.result_record import Evaluation, ImportedJudgement, as_qrels
from bench.requests.deciding import JudgeRequest
from bench.result_store.find import choose_results, find_named, find_results
from bench.result_store.result import save
from bench.runner.workspace import Workspace, open_workspace
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError, UnavailableError, format_names
from foundation.records import Record, decode_json

PAIRS_FOLDER, RESULTS_FOLDER = "to-judge", "judged"
COMPUTED = re.compile("^'([=+@＝＋－＠-])")  # written so that a spreadsheet does not evaluate it
CELLS = ("query_id", "doc_id", "grade", "judge")
LISTED = 5  # wrong lines in a message


class PairToJudge(Record):
    """A pair of query and document on a list to be judged.

    Attributes:
        copies: ids of other retrieved documents with the same text, which get the same grade.
        grade, judge: empty until it is judged.
    """

    query_id: str
    doc_id: str
    query: str
    title: str
    text: str
    copies: tuple[str, ...] = ()
    grade: int | None = None
    judge: str = ""


class JudgeReport(Record):
    """List of pairs to judge, or results that were scored with imported judgements.

    Attributes:
        grades: grades that the collection uses, and 0, for a list.
        holes: what the unjudged documents can change.
        out: folder that was written.
        overlay: hash of the imported judgements.
        judgements: number of imported judgements.
        rescored: number of results that were scored with them.
    """

    collection: str
    out: str
    grades: tuple[int, ...] = ()
    pairs: tuple[PairToJudge, ...] = ()
    holes: Holes | None = None
    overlay: str = ""
    judgements: int = 0
    rescored: int = 0


def judge(request: JudgeRequest, write_list: Callable[[JudgeReport, Path], None]) -> JudgeReport:
    """Export pairs to judge, which ``write_list`` writes to a folder, or import their judgements.

    Raises:
        BenchError: there are not two models, a result or the collection is missing, the measure has
            no bounds, or a line of a judged list is wrong.
    """
    workspace = open_workspace(request)
    if request.action == "import":
        return _import_judgements(request, workspace)
    report = _find_pairs(request, workspace)
    write_list(report, Path(report.out))
    return report


def _find_pairs(request: JudgeRequest, workspace: Workspace) -> JudgeReport:
    """Order the holes of two stored results, and keep as many as the budget allows."""
    if len(set(request.names)) != 2:
        raise BenchError(
            f"a comparison has two models, not {len(set(request.names))}",
            f"Run `python -m bench judge export MODEL OTHER --on {request.on}`.",
        )
    found = {name: find_named(name, *request.results) for name in request.names}
    known = {each.dataset for each in chain(*found.values())}
    collection = resolve_names([request.on], known, workspace)[0]
    models = [
        ComparedModel(name, choose_results(name, several, [collection]))
        for name, several in found.items()
    ]
    measure = read_all_scores(collection, models, ComparisonSettings(request.measure)).measure
    a, b = (model.results[collection] for model in models)
    check_scores_against_rankings([a, b], workspace)
    dataset = _open(a, workspace)
    table = open_holes((a, b), measure, dataset, thorough=True)
    effects = expected_effects(table, estimate_relevance(table)[0])
    chosen = np.argsort(-effects, kind="stable")[: request.budget]
    documents = [table.documents[row] for row in table.holes[chosen]]
    rows = dataset.corpus.rows_of([copies[0] for copies in documents])
    if (rows < 0).any():
        missing = documents[int(np.argmin(rows))][0]
        raise BenchError(f"{collection} has no document {missing!r}, which a model retrieved")
    texts = dataset.queries.by_id
    query_ids = [table.query_ids[row] for row in table.query[table.holes[chosen]]]
    pairs = [
        PairToJudge(query_id, copies[0], texts[query_id], title, text, copies[1:])
        for query_id, copies, title, text in zip(
            query_ids, documents, *dataset.corpus.documents_at(rows), strict=True
        )
    ]
    holes = examine_holes(table, models[0].name, models[1].name, collection)
    out = str(request.out or PAIRS_FOLDER)
    return JudgeReport(collection, out, _grades(dataset), tuple(pairs), holes)


def _open(stored: Evaluation, workspace: Workspace) -> Dataset:
    """Open the collection of a stored result."""
    try:
        return open_evaluated(stored, workspace)
    except UnavailableError as error:
        problem = f"results on {stored.dataset} cannot be scored again: {error}"
        raise BenchError(problem) from None


def _grades(dataset: Dataset) -> tuple[int, ...]:
    """Return the grades of the collection's judgements from 0 to the highest."""
    return tuple(sorted({0, 1, *(grade for grade in dataset.qrels.grades.tolist() if grade > 0)}))


class _Row(NamedTuple):
    """A judged row of a list as text, and its file and line for messages."""

    source: str
    query_id: str
    doc_id: str
    grade: str
    judge: str
    copies: tuple[str, ...]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Judged pairs of query and document."""
        return [(self.query_id, doc_id) for doc_id in (self.doc_id, *self.copies)]


def _read_list(path: Path) -> Iterator[_Row]:
    """Yield the rows with a grade of a list: CSV with commas or semicolons, or JSON lines."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(
            f"cannot read {path}: {error}", "Name a list of `judge export`."
        ) from error
    read = _read_json_lines if text.lstrip().startswith("{") else _read_csv
    for source, fields in read(text, path):
        query_id, doc_id, grade, judge = (
            "" if fields.get(name) is None else str(fields[name]).strip() for name in CELLS
        )
        copies = fields.get("copies") or ""
        copies = copies if isinstance(copies, list) else str(copies).split()
        if grade:
            yield _Row(source, query_id, doc_id, grade, judge, tuple(map(str, copies)))


def _read_json_lines(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            source = f"{path}, line {number}"
            yield source, decode_json(line.encode(), dict[str, Any], source)


def _read_csv(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    delimiter = ";" if ";" in text.partition("\n")[0] else ","
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    if lacking := {*CELLS} - {*(rows.fieldnames or ())}:
        raise BenchError(
            f"{path} has no column {' and '.join(sorted(lacking))}",
            "Import a file of `judge export`, with its header.",
        )
    for row in rows:
        source = f"{path}, line {rows.line_num}"
        if None in row:
            raise BenchError(f"{source} has more cells than the header")
        yield source, {name: COMPUTED.sub(r"\1", cell) for name, cell in row.items() if cell}


def _import_judgements(request: JudgeRequest, workspace: Workspace) -> JudgeReport:
    """Check the judgements, then score the stored results of the collection with them."""
    every = [each for root in request.results for each in find_results(root)]
    known = {each.dataset for each in every}
    collection = resolve_names([request.on], known, workspace)[0]
    of_collection = [each for each in every if each.dataset == collection]
    stored = [each for each in of_collection if not each.record.protocol.overlay]
    if not stored:
        raise BenchError(
            f"there are no results on {collection} without imported judgements",
            "Name the folder of the first results with --results, and all judged lists.",
        )
    dataset = _open(stored[0], workspace)
    rows = [row for name in request.names for row in _read_list(Path(name))]
    judgements = _check_rows(rows, dataset)
    judged = dataset.with_judgements(as_qrels(judgements))
    out = request.out or Path(RESULTS_FOLDER)
    for other in find_results(out) if out.exists() else ():
        protocol = other.record.protocol
        if other.dataset == collection and protocol.overlay not in ("", judged.overlay):
            raise BenchError(
                f"{out} holds results on {collection} with other judgements ({protocol.overlay})",
                "Choose another --out, and pass all judged lists.",
            )
    content = b"".join(msgspec.json.encode(each) + b"\n" for each in judgements)
    same = [each for each in stored if each.record.protocol.qrels_sha256 == dataset.qrels_sha256]
    check_scores_against_rankings(same, workspace)
    for each in same:
        save(_score_again(each, judged), out, content)
    judged_pairs, overlay = len(judgements), judged.overlay
    return JudgeReport(
        collection, str(out), overlay=overlay, judgements=judged_pairs, rescored=len(same)
    )


def _score_again(stored: Evaluation, judged: Dataset) -> Evaluation:
    """Score a stored ranking with the judgements of an overlay."""
    record = stored.record
    protocol = msgspec.structs.replace(record.protocol, overlay=judged.overlay)
    names = list(record.measures)  # the main one first
    scores, quality = score_run(judged, stored.run, names, protocol.depth)
    means = {name: scores.mean(name) for name in names}
    changes = {"protocol": protocol, "measures": means, "unanswered": scores.unanswered}
    new = msgspec.structs.replace(record, **changes, **quality)
    return Evaluation(new, scores, stored.run)


def _check_rows(rows: Sequence[_Row], dataset: Dataset) -> list[ImportedJudgement]:
    """Return the judgements of the rows, each pair once, and raise with all wrong rows."""
    documents = [doc_id for row in rows for _, doc_id in row.pairs]
    unknown = {documents[place] for place in np.flatnonzero(dataset.corpus.rows_of(documents) < 0)}
    # grade of each judged pair, and where it is stated
    stated = {(query, doc_id): (grade, "the collection") for query, doc_id, grade in dataset.qrels}
    kept: list[ImportedJudgement] = []
    wrong: list[str] = []
    for row in rows:
        known = [stated[pair] for pair in row.pairs if pair in stated]
        if problem := _find_problem(row, dataset, unknown, known):
            wrong.append(f"{row.source}: {problem}")
        elif len(known) < len(row.pairs):
            grade = int(row.grade)
            kept.append(ImportedJudgement(row.query_id, row.doc_id, grade, row.judge, row.copies))
            stated |= dict.fromkeys(row.pairs, (grade, row.source))
    if wrong:
        more = f"\nand {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
        reasons = "\n".join(wrong[:LISTED])
        raise BenchError(f"nothing was imported: {reasons}{more}", "Fix or delete these lines.")
    if not kept:
        raise BenchError(
            "no line has a new judgement", "Fill in the columns grade and judge, or use the page."
        )
    return sorted(kept, key=lambda judgement: (judgement.query_id, judgement.doc_id))


def _find_problem(
    row: _Row, dataset: Dataset, unknown: set[str], known: Sequence[tuple[int, str]]
) -> str:
    """Describe what is wrong with a judged row, or return "".

    ``known`` are the grades of its pairs that are stated elsewhere, and where.
    """
    grades, pair = list(map(str, _grades(dataset))), f"{row.doc_id!r} of query {row.query_id!r}"
    if row.query_id not in dataset.queries.ids:
        return f"{dataset.name} has no query {row.query_id!r}"
    if lost := unknown.intersection((row.doc_id, *row.copies)):
        return f"{dataset.name} has no document {min(lost)!r}"
    if row.grade not in grades:
        return f"grade {row.grade} is not one of {format_names(grades, 9)}"
    if not row.judge:
        return f"document {pair} has a grade, but no judge"
    for grade, source in known:
        if grade != int(row.grade):
            return f"document {pair} has grade {grade} in {source}, {row.grade} here"
    return ""
