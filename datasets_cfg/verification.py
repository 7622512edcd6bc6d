"""Verification of collections, and repaired copies of them (``verify --fix``)."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datasets_cfg import catalogue
from datasets_cfg.catalogue import dataset_names, suite_names
from datasets_cfg.corpus import BATCH_DOCUMENTS
from datasets_cfg.dataset import METADATA_FILE, Dataset, all_assumptions, open_dataset
from datasets_cfg.readers.beir import write_collection
from datasets_cfg.readers.reader import Document, RepeatedError, collect_assumptions
from foundation.arrays import Int64Array
from foundation.errors import BadLines, BenchError, collect_errors
from foundation.files import replace_folder

Severity = Literal["error", "warning", "note"]
SHORT = 10  # characters of a document that says nearly nothing
CUT, LONG = 5, 100  # this many texts of one maximum length in characters suggest truncation
EXAMPLES = 5
# What str.isspace accepts, in the syntax of RE2.
WHITE_SPACE = r"[\s\x0b\x1c-\x1f\x{85}\p{Z}]"


@dataclass(frozen=True)
class Finding:
    """One observation of a check.

    Attributes:
        severity: "error" (do not use the data), "warning" (it lowers or distorts scores), or "note"
            (known or harmless).
        what: one line for people.
        count: number of occurrences.
        examples: ids of the first few.
        suggestion: advice; may be empty.
        is_told_once: whether only the first evaluation of a collection tells it.
    """

    severity: Severity
    what: str
    count: int
    examples: tuple[str, ...] = ()
    suggestion: str = ""
    is_told_once: bool = False

    def text(self, collection: str = "") -> str:
        """Return the finding in a line, with the advice in a second one."""
        examples = f" ({', '.join(self.examples)})" if self.examples else ""
        what = f"{collection}: {self.what}" if collection else self.what
        count = f": {self.count:,}" if examples or self.count > 1 else ""
        line = f"{what}{count}{examples}"
        return f"{line}\n  {self.suggestion}" if self.suggestion else line


def verify_dataset(dataset: Dataset | Callable[[], Dataset]) -> list[Finding]:
    """Check the counts, documents, queries and judgements of ``dataset``, or of what it opens.

    Wrong lines are counted by kind. A missing or unreadable file, wrong lines of documents, and
    duplicate ids prevent the checks that need them. Errors come first.
    """
    findings: list[Finding] = []
    bad_lines: BadLines = {}
    bad_documents: BadLines = {}
    try:
        with collect_errors() as bad_lines:
            dataset = dataset() if callable(dataset) else dataset
            findings += _queries_without_relevant(dataset)
        with collect_errors() as bad_documents:
            for check in _CHECKS:
                findings += check(dataset)
    except BenchError as error:
        findings.append(Finding("error", str(error), 1, suggestion=error.hint))
    for first, count in (bad_lines | bad_documents).values():
        what = f"{first}{'; lines with this problem' * (count > 1)}"
        findings.append(Finding("error", what, count, suggestion=first.hint))
    return sorted(findings, key=lambda finding: get_args(Severity).index(finding.severity))


def evaluation_findings(dataset: Dataset, with_corpus: bool = True) -> list[Finding]:
    """Return findings on ``dataset`` that affect its scores, without reading all texts."""
    checks = (_assumptions, _missing_documents, _colliding_ids, _grades_of_trec_dl)
    if not with_corpus:
        return [Finding("note", what, count) for what, count in dataset.assumptions.items()]
    return [finding for check in checks for finding in check(dataset)]


def _assumptions(dataset: Dataset) -> Iterator[Finding]:
    yield from (Finding("note", what, count) for what, count in all_assumptions(dataset).items())


def check_counts(dataset: Dataset, allow_mismatch: bool, with_corpus: bool = True) -> bool:
    """Return whether ``dataset`` has the published counts. Counts that nobody published match.

    A mismatch is an error unless ``allow_mismatch``. The number of documents is compared only
    ``with_corpus``, which builds the corpus if necessary.
    """
    different = count_differences(dataset, with_corpus)
    if different and not allow_mismatch:
        verify = f"Run `python -m bench verify {dataset.name}` for details"
        hint = f"{verify}, or use --allow-mismatch to continue with marked results."
        raise BenchError(f"this is not the published {dataset.name}: {'; '.join(different)}", hint)
    return not different


def count_differences(dataset: Dataset, with_corpus: bool = True) -> list[str]:
    """Return the counts of ``dataset`` that differ from the published ones, as text."""
    published = dataset.metadata.counts
    counted = {"queries": len(dataset.queries), "judgements": len(dataset.qrels)}
    if with_corpus and published.documents is not None:
        counted = {"documents": len(dataset.corpus), **counted}
    return [
        f"{name}: {stated:,} published, {count:,} found"
        for name, count in counted.items()
        if (stated := getattr(published, name)) is not None and stated != count
    ]


def _count_findings(dataset: Dataset) -> Iterator[Finding]:
    advice = "This is not the published collection, so scores are not comparable."
    yield from (Finding("error", text, 1, suggestion=advice) for text in count_differences(dataset))
    if empty := dataset.corpus.manifest.empty_documents:
        yield Finding("note", "documents have neither title nor text and are kept", empty)


def _copies(dataset: Dataset) -> Iterator[Finding]:
    """Report queries with an unjudged copy of a relevant document, which counts as wrong."""
    corpus, relevant = dataset.corpus, dataset.qrels.grades > 0
    rows = corpus.rows_of(dataset.qrels.doc_ids)
    found = np.unique(rows[relevant & (rows >= 0)])
    contents = zip(found.tolist(), zip(*corpus.documents_at(found), strict=True), strict=True)
    content_of = {row: pair for row, pair in contents if any(pair)}
    copies: dict[tuple[str, str], set[int]] = {pair: set() for pair in content_of.values()}
    for start, *columns in corpus.iter_batches(BATCH_DOCUMENTS):
        for row, pair in enumerate(zip(*columns, strict=True), start):
            if pair in copies:
                copies[pair].add(row)
    judged, wanted = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
    for query, row, right in zip(dataset.qrels.query_ids, rows.tolist(), relevant, strict=True):
        judged[query].add(row)
        if right and row in content_of:
            wanted[query] |= copies[content_of[row]]
    if queries := [query for query in wanted if wanted[query] - judged[query]]:
        yield Finding(
            "note" if dataset.name in catalogue.dataset_names() else "warning",
            "queries have an unjudged exact copy of a relevant document, which counts as wrong",
            len(queries),
            _first_ids(queries),
        )


def _cut_texts(dataset: Dataset) -> Iterator[Finding]:
    """Report documents that are nearly empty, and texts that end at the same length."""
    corpus = dataset.corpus
    text_lengths, used_lengths = [], []
    for batch in corpus.table.to_batches():
        columns = batch.column("title"), batch.column("text")
        title, text = (pc.utf8_length(pc.utf8_trim_whitespace(each)) for each in columns)
        used_lengths.append(title.to_numpy() + text.to_numpy())
        text_lengths.append(pc.utf8_length(columns[1]).to_numpy())
        corpus.release_pages()
    lengths, used = np.concatenate(text_lengths), np.concatenate(used_lengths)
    longest = lengths.max()
    short, cut = np.flatnonzero((used > 0) & (used < SHORT)), np.flatnonzero(lengths == longest)
    if len(short):
        ids = corpus.ids.take(short[:EXAMPLES]).to_pylist()
        what = f"documents have fewer than {SHORT} characters"
        yield Finding("note", what, len(short), tuple(ids))
    if len(cut) >= CUT and longest >= LONG:
        ids = corpus.ids.take(cut[:EXAMPLES]).to_pylist()
        what = f"documents have exactly the maximum length, {longest:,} characters, so their texts"
        yield Finding("note", f"{what} may be truncated", len(cut), tuple(ids))


def _missing_documents(dataset: Dataset) -> Iterator[Finding]:
    qrels = dataset.qrels
    missing = np.flatnonzero(dataset.corpus.rows_of(qrels.doc_ids) < 0)
    if not len(missing):
        return
    relevant = int((qrels.grades[missing] > 0).sum())
    official = dataset.metadata.counts.dangling_judgements == len(missing)
    harmful = relevant and not official
    useless = harmful and relevant == (qrels.grades > 0).sum()
    yield Finding(
        "error" if useless else "warning" if harmful else "note",
        "judgements name documents that are not in the corpus "
        f"({relevant:,} of them relevant{', as in the published data' if official else ''})",
        len(missing),
        _first_ids(qrels.doc_ids[row] for row in missing),
        "Check that corpus and qrels are from the same release." if harmful else "",
    )


def _blanks(dataset: Dataset) -> Iterator[Finding]:
    """Report blank queries, and ids with white space, of which a TREC run file can have none."""
    queries = (dataset.queries.ids, dataset.queries.texts)
    ids, texts = (pa.array(column, pa.large_string()) for column in queries)
    for what, names, values, pattern in (
        ("queries are blank, and count in every mean", ids, texts, f"^{WHITE_SPACE}*$"),
        ("query ids have white space", ids, ids, WHITE_SPACE),
        ("document ids have white space", dataset.corpus.ids, dataset.corpus.ids, WHITE_SPACE),
    ):
        if found := names.filter(pc.match_substring_regex(values, pattern)).to_pylist():
            yield Finding("warning", what, len(found), _first_ids(map(repr, found)))


def _queries_without_relevant(dataset: Dataset) -> Iterator[Finding]:
    answered = {query for query, _, grade in dataset.qrels if grade > 0}
    if without := [query for query in dataset.qrels.queries() if query not in answered]:
        what, advice = "queries have no relevant document", "They count in every mean with score 0."
        yield Finding("warning", what, len(without), _first_ids(without), advice)


def _colliding_ids(dataset: Dataset) -> Iterator[Finding]:
    """Report queries whose id is also a document id, if a score depends on it."""
    excluded = dataset.metadata.exclude_self
    lost = [query for query, document, grade in dataset.qrels if query == document and grade > 0]
    if excluded and lost:
        yield Finding(
            "warning",
            "relevant documents are dropped because their id equals the query id",
            len(lost),
            _first_ids(lost),
            "If the ids collide by accident, set exclude_self = false.",
        )
    if excluded is not None or dataset.metadata.layout in ("msmarco", "dpr"):  # ids are numbers
        return
    rows = dataset.corpus.rows_of(dataset.queries.ids)
    ids = [id_ for id_, row in zip(dataset.queries.ids, rows.tolist(), strict=True) if row >= 0]
    if ids:
        same = _with_equal_texts(dataset, rows)
        yield Finding(
            "warning" if same else "note",
            "query ids are also ids of documents, and exclude_self is not set, so nothing is "
            f"dropped ({same:,} of these documents have the text of their query)",
            len(ids),
            _first_ids(ids),
            f"{_where_to_write(dataset)}: exclude_self = true if the queries are documents of the "
            "corpus, as in ArguAna; exclude_self = false if ids collide by accident.",
            is_told_once=not same,
        )


def _where_to_write(dataset: Dataset) -> str:
    """Return what to do to state a property of a collection whose folder may be read-only."""
    folder = dataset.reader.folder
    if os.access(folder, os.W_OK):
        return f"Write into {folder / METADATA_FILE}"
    return f"Copy {folder}, which cannot be written, and write into {METADATA_FILE} of the copy"


def _grades_of_trec_dl(dataset: Dataset) -> Iterator[Finding]:
    """Report grades 0 to 3, of which TREC-DL counts 1 as not relevant, if nothing is stated."""
    grades, stated = dataset.qrels.grades, any("rel=" in each for each in dataset.metadata.measures)
    declared = dataset.name in catalogue.dataset_names()
    if stated or declared or set(np.unique(grades)) != {0, 1, 2, 3}:
        return
    yield Finding(
        "note",
        "grades are 0 to 3, as in TREC-DL, whose recall, AP and RR count 2 and 3 as relevant. Here "
        "they count grade 1, too",
        int((grades == 1).sum()),
        suggestion=f"Write into {dataset.reader.folder / METADATA_FILE}: "
        'measures = ["R(rel=2)@1000", "AP(rel=2)", "RR(rel=2)"] for TREC-DL; '
        'measures = ["R(rel=1)@100"] if grade 1 is relevant.',
    )


def _with_equal_texts(dataset: Dataset, rows: Int64Array) -> int:
    """Return how many queries have the same text as the document with their id."""
    queries = zip(dataset.queries.texts, rows.tolist(), strict=True)
    query_texts = [text.strip() for text, row in queries if row >= 0]
    texts = dataset.corpus.texts_at(rows[rows >= 0])
    return sum(text == other.strip() for text, other in zip(query_texts, texts, strict=True))


def _first_ids(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))[:EXAMPLES]


_CHECKS = (
    _assumptions,
    _count_findings,
    _missing_documents,
    _colliding_ids,
    _blanks,
    _grades_of_trec_dl,
    _copies,
    _cut_texts,
)


CHANGES_FILE = "CHANGES.md"


def check_new_collection(folder: Path) -> None:
    """Raise if no collection can be written to ``folder``."""
    if folder.exists():
        raise BenchError(f"{folder} exists already", "Choose a new folder for the copy.")
    if folder.name in (*dataset_names(), *suite_names()):
        problem = f"{folder} has the name of a declared collection or suite"
        raise BenchError(problem, "Choose another name for the copy.")


def write_repaired(open_collection: Callable[[], Dataset], folder: Path) -> list[str]:
    """Write a copy of a collection in BEIR's layout, and what was changed into its `CHANGES_FILE`.

    Lines that cannot be read are left out, as are judgements of unknown queries and documents,
    queries without judgements, and other splits. The first of several documents, queries or grades
    with the same id is kept. Returned is what was changed, a sentence each.
    """
    check_new_collection(folder)
    with collect_errors() as wrong:
        dataset = open_collection()
        if dataset.answers is not None or dataset.excluded:
            problem = f"{dataset.name} has answers or excluded documents"
            raise BenchError(f"{problem}, which the copy cannot have", "Omit --fix.")
    with collect_errors():  # again, since a dataset holds only its judged queries
        unjudged = dataset.reader.judgements().unjudged
    split, asked = dataset.metadata.split, set(map(_check_id, dataset.queries.ids))
    known, repeated = set[str](), 0

    def documents() -> Iterator[Document]:
        nonlocal repeated
        for document in dataset.reader.documents():
            repeated += document.id in known
            if document.id and document.id not in known:
                known.add(_check_id(document.id))
                yield document

    named = {"name": folder.name, "layout": "beir", "split": split}
    with replace_folder(folder) as unfinished:
        with collect_errors() as wrong_documents, collect_assumptions() as assumptions:
            write_collection(
                unfinished,
                documents(),
                zip(dataset.queries.ids, dataset.queries.texts, strict=True),
                (row for row in dataset.qrels if row[0] in asked and row[1] in known),
                {**dataset.inherited_metadata, **named},
            )
        try:
            open_dataset(str(unfinished), cache_dir=dataset.cache_dir)
        except BenchError as error:
            problem = str(error).replace(str(unfinished), str(folder))
            raise BenchError(f"the copy cannot be used: {problem}", error.hint) from error
        changes = Counter[str]()
        for first, count in (wrong | wrong_documents).values():
            done = "the first one is kept" if isinstance(first, RepeatedError) else "left out"
            changes[f"{first}: {done}"] = count
        changes.update(dataset.assumptions)
        changes.update(assumptions)
        changes["documents with the id of an earlier one are left out"] = repeated
        unknown = sum(id_ not in known for id_ in dataset.qrels.doc_ids)
        changes["judgements of unknown documents are left out"] = unknown
        changes["queries without judgements are left out"] = unjudged
        lines = [f"{what}: {count:,}" for what, count in changes.items() if count]
        if others := sorted({*dataset.reader.splits()} - {split, ""}):
            lines.append(f"splits that are left out: {', '.join(others)}")
        text = "".join(f"- {line}\n" for line in lines) or "Nothing was changed.\n"
        (unfinished / CHANGES_FILE).write_text(text, "utf-8")
    return lines


def _check_id(id_: str) -> str:
    """Return ``id_``, or raise if it cannot be written into a line of qrels."""
    if any(mark in id_ for mark in "\t\r\n"):
        problem = f"the id {id_!r} has a tab or a line break, which the copy cannot have"
        raise BenchError(problem, "Rename it.")
    return id_
