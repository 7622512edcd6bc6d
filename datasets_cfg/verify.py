"""Checks of a collection's data: what is damaged, what differs, and what is merely odd.

Every check works on arrays, so that a corpus of many million documents needs a few bytes per
document and no dictionary.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import FACTS_FILE, Dataset
from datasets_cfg.download import md5_of
from datasets_cfg.facts import Archive
from datasets_cfg.locate import archive_path
from datasets_cfg.published import differences, secondary_differences
from foundation.arrays import BoolArray, Int64Array, UInt64Array
from foundation.errors import BenchError

Severity = Literal["error", "warning", "note"]
EXAMPLES = 5
_BATCH_DOCUMENTS = 1 << 14


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.

    Attributes:
        severity: "error" (do not use the data), "warning" (it lowers or distorts scores), or
            "note" (known or harmless).
        what: one line for people.
        count: how many there are.
        examples: the first few, ids or file names.
        suggestion: what to do; may be empty.
    """

    severity: Severity
    what: str
    count: int
    examples: tuple[str, ...] = ()
    suggestion: str = ""


def verify(dataset: Dataset) -> list[Finding]:
    """Check a collection: files, counts, documents, queries and judgements.

    Builds the corpus if need be. Duplicate ids and malformed lines stop the build, and are then
    the finding.

    Returns:
        What was found, errors first; [] for data without any peculiarity.
    """
    findings = list(_checksums(dataset))
    try:
        _ = dataset.corpus
    except BenchError as error:
        findings.append(Finding("error", str(error), 1, suggestion=error.hint))
    else:
        for check in _CHECKS:
            findings.extend(check(dataset))
    order = ("error", "warning", "note")
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def remarks(dataset: Dataset) -> list[Finding]:
    """Findings to report before a collection is evaluated, because scores depend on them.

    Reads no text of documents but those that a query's id names.
    """
    undecided = [finding for finding in _colliding_ids(dataset) if finding.suggestion]
    return [*_secondary_counts(dataset), *_missing_documents(dataset), *undecided]


def _checksums(dataset: Dataset) -> Iterator[Finding]:
    for archive in dataset.facts.archives:
        for path in _copies(dataset, archive):
            if archive.md5 and (digest := md5_of(path)) != archive.md5:
                yield Finding(
                    "error",
                    f"{path} has the MD5 {digest}, not {archive.md5} as published",
                    1,
                    (archive.file_name,),
                    f"remove it and fetch it again: {archive.url}",
                )


def _copies(dataset: Dataset, archive: Archive) -> Iterator[Path]:
    """Downloaded files of a collection: in the cache, in its folder, and beside its folder."""
    folder = dataset.reader.folder
    places = (
        archive_path(dataset.facts, archive, dataset.cache_dir),
        folder / archive.file_name,
        folder.parent / archive.file_name,
    )
    yield from dict.fromkeys(path.resolve() for path in places if path.is_file())


def _counts(dataset: Dataset) -> Iterator[Finding]:
    advice = "this is not the collection that was published: scores do not compare"
    yield from (Finding("error", text, 1, suggestion=advice) for text in differences(dataset))


def _secondary_counts(dataset: Dataset) -> Iterator[Finding]:
    if not differences(dataset):  # of another collection, these say nothing
        advice = "this count identifies no collection: reported only"
        for text in secondary_differences(dataset):
            yield Finding("warning", text, 1, suggestion=advice)


def _empty_documents(dataset: Dataset) -> Iterator[Finding]:
    corpus = dataset.corpus
    if not corpus.manifest.empty_documents:
        return
    batches = corpus.table.to_batches()  # one at a time: trimming copies the text
    blank = [pc.and_(_is_blank(batch["title"]), _is_blank(batch["text"])) for batch in batches]
    rows = np.flatnonzero(
        np.concatenate([column.to_numpy(zero_copy_only=False) for column in blank])
    )
    yield _of_rows(
        "note",
        "documents have neither title nor text",
        rows,
        corpus.ids,
        "they are kept, as in the published collection; an encoder gives each the same vector",
    )


def _is_blank(column: pa.LargeStringArray) -> pa.BooleanArray:
    return pc.equal(pc.binary_length(pc.ascii_trim_whitespace(column)), 0)


def _duplicate_texts(dataset: Dataset) -> Iterator[Finding]:
    corpus = dataset.corpus
    order, first = _first_of_each(_content_hashes(corpus))
    rows = np.sort(order[~first])
    if not len(rows):
        return
    distinct = len(corpus) - len(rows)
    published = dataset.facts.counts.distinct_texts
    what = "documents repeat the title and text of an earlier one"
    if published is not None:
        what += f": {distinct:,} are distinct, {published:,} in the published collection"
    yield _of_rows(
        "note" if published in (None, distinct) else "warning",
        what,
        rows,
        corpus.ids,
        "equal texts score equally: see the range that tie-breaking could give",
    )


def _content_hashes(corpus: Corpus) -> UInt64Array:
    """64-bit hash of each title and text: among 21 million, one false pair in 10⁵ corpora."""
    hashes = np.empty(len(corpus), dtype=np.uint64)
    for start, titles, texts in corpus.iter_batches(_BATCH_DOCUMENTS):
        digests = [
            hashlib.blake2b(f"{len(title)}\0{title}{text}".encode(), digest_size=8).digest()
            for title, text in zip(titles, texts, strict=True)
        ]
        hashes[start : start + len(texts)] = np.frombuffer(b"".join(digests), dtype=np.uint64)
    return hashes


def _first_of_each(
    values: UInt64Array,
) -> tuple[Int64Array, BoolArray]:
    """Order that sorts ``values`` stably, and whether each is the first of its kind there."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.ones(len(values), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return order, first


def _missing_documents(dataset: Dataset) -> Iterator[Finding]:
    qrels = dataset.qrels
    missing = np.flatnonzero(dataset.corpus.rows_of(qrels.doc_ids) < 0)
    if not len(missing):
        return
    relevant = int((qrels.grades[missing] > 0).sum())
    published = dataset.facts.counts.dangling_judgements
    official = published == len(missing)
    harmful = relevant and not official
    told = "" if published is None else f"; {published:,} were published"
    yield Finding(
        "warning" if harmful else "note",
        "judgements point at documents that the corpus does not have "
        f"({relevant:,} of them relevant{': official, and kept' if official else told})",
        len(missing),
        _some(qrels.doc_ids[row] for row in missing),
        "no run can find these: are corpus and qrels of the same release?" if harmful else "",
    )


def _queries_without_relevant(dataset: Dataset) -> Iterator[Finding]:
    answered = {query for query, _, grade in dataset.qrels if grade > 0}
    without = [query for query in dataset.qrels.queries() if query not in answered]
    if without:
        yield Finding(
            "warning",
            "queries have no relevant document",
            len(without),
            _some(without),
            "they stay in the denominator and score 0 for every model",
        )


def _colliding_ids(dataset: Dataset) -> Iterator[Finding]:
    """Queries whose id is also a document's; a suggestion where the facts leave it open."""
    rows = dataset.corpus.rows_of(dataset.queries.ids)
    ids = [id_ for id_, row in zip(dataset.queries.ids, rows.tolist(), strict=True) if row >= 0]
    if not ids:
        return
    what, excluded = "query ids are also ids of documents", dataset.facts.exclude_self
    if excluded is None:
        yield _undeclared_collisions(dataset, rows, ids, what)
        return
    if not excluded:
        yield Finding(
            "note", f"{what}; exclude_self is off, so nothing is dropped", len(ids), _some(ids)
        )
        return
    lost = [query for query, document, grade in dataset.qrels if query == document and grade > 0]
    yield Finding(
        "warning" if lost else "note",
        f"{what}; exclude_self is on, so each of these documents is dropped for its query "
        f"({len(lost):,} of them relevant)",
        len(ids),
        _some(lost or ids),
        "if the ids collide by accident, set exclude_self = false" if lost else "",
    )


def _undeclared_collisions(
    dataset: Dataset, rows: Int64Array, ids: Sequence[str], what: str
) -> Finding:
    queries = zip(dataset.queries.texts, rows.tolist(), strict=True)
    asked = [text for text, row in queries if row >= 0]
    texts = dataset.corpus.texts_at(rows[rows >= 0])
    same = sum(text.strip() == other.strip() for text, other in zip(asked, texts, strict=True))
    return Finding(
        "warning" if same else "note",
        f"{what}, and exclude_self is not set, so nothing is dropped "
        f"({same:,} of these documents have the text of their query)",
        len(ids),
        _some(ids),
        f"write into {dataset.reader.folder / FACTS_FILE}: exclude_self = true if the queries are "
        "documents of the corpus, as in ArguAna; exclude_self = false if ids collide by accident",
    )


def _of_rows(
    severity: Severity,
    what: str,
    rows: Int64Array,
    ids: pa.ChunkedArray,
    suggestion: str,
) -> Finding:
    examples = tuple(ids[int(row)].as_py() for row in rows[:EXAMPLES])
    return Finding(severity, what, len(rows), examples, suggestion)


def _some(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))[:EXAMPLES]


_CHECKS: Sequence[Callable[[Dataset], Iterator[Finding]]] = (
    _counts,
    _secondary_counts,
    _missing_documents,
    _queries_without_relevant,
    _colliding_ids,
    _empty_documents,
    _duplicate_texts,
)
