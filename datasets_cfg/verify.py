"""Checks of a collection's data: what is damaged, what differs from the published, what is odd.

What identifies a published collection are the published numbers of documents, queries and
judgements. Every check works on arrays, so that a corpus of many million documents needs a few
bytes per document and no dictionary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datasets_cfg.dataset import FACTS_FILE, Dataset
from datasets_cfg.download import md5_of
from datasets_cfg.locate import archive_path
from foundation.arrays import Int64Array
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
    return [*_missing_documents(dataset), *undecided]


def check_published(dataset: Dataset, allow_mismatch: bool, with_corpus: bool = True) -> bool:
    """True for the published collection, and for one of which no count was published.

    Args:
        allow_mismatch: the user's leave to continue although it is not.
        with_corpus: compare documents, too, which builds the corpus if need be.

    Raises:
        BenchError: it is another collection, and ``allow_mismatch`` is off.
    """
    different = differences(dataset, with_corpus)
    if different and not allow_mismatch:
        raise BenchError(
            f"this is not the published {dataset.name}: {'; '.join(different)}",
            "`python -m bench verify` says more; add --allow-mismatch to continue, and the result "
            "will be marked",
        )
    return not different


def differences(dataset: Dataset, with_corpus: bool = True) -> list[str]:
    """Differences of a collection from the published one; [] where it is that one."""
    published = dataset.facts.counts
    counted = {"queries": len(dataset.queries), "judgements": len(dataset.qrels)}
    if with_corpus and published.documents is not None:
        counted = {"documents": len(dataset.corpus), **counted}
    return [
        f"{name}: {stated:,} published, {count:,} found"
        for name, count in counted.items()
        if (stated := getattr(published, name)) is not None and stated != count
    ]


def _checksums(dataset: Dataset) -> Iterator[Finding]:
    for archive in dataset.facts.archives:
        path = archive_path(dataset.facts, archive, dataset.cache_dir)
        if archive.md5 and path.is_file() and (digest := md5_of(path)) != archive.md5:
            yield Finding(
                "error",
                f"{path} has the MD5 {digest}, not {archive.md5} as published",
                1,
                (archive.file_name,),
                f"remove it and fetch it again: {archive.url}",
            )


def _counts(dataset: Dataset) -> Iterator[Finding]:
    advice = "this is not the collection that was published: scores do not compare"
    yield from (Finding("error", text, 1, suggestion=advice) for text in differences(dataset))


def _empty_documents(dataset: Dataset) -> Iterator[Finding]:
    corpus = dataset.corpus
    if not corpus.manifest.empty_documents:
        return
    batches = corpus.table.to_batches()  # one at a time: trimming copies the text
    blank = [pc.and_(_is_blank(batch["title"]), _is_blank(batch["text"])) for batch in batches]
    found = np.concatenate([column.to_numpy(zero_copy_only=False) for column in blank])
    yield _of_rows(
        "documents have neither title nor text",
        np.flatnonzero(found),
        corpus.ids,
        "they are kept, as in the published collection; an encoder gives each the same vector",
    )


def _is_blank(column: pa.LargeStringArray) -> pa.BooleanArray:
    return pc.equal(pc.binary_length(pc.ascii_trim_whitespace(column)), 0)


def _duplicate_texts(dataset: Dataset) -> Iterator[Finding]:
    corpus = dataset.corpus
    hashes = np.empty(len(corpus), dtype=np.int64)  # among 21 million, a false pair in 10⁵ corpora
    for start, titles, texts in corpus.iter_batches(_BATCH_DOCUMENTS):
        hashes[start : start + len(texts)] = [
            hash(both) for both in zip(titles, texts, strict=True)
        ]
    rows = np.setdiff1d(np.arange(len(corpus)), np.unique(hashes, return_index=True)[1])
    if len(rows):
        yield _of_rows(
            "documents repeat the title and text of an earlier one",
            rows,
            corpus.ids,
            "equal texts score equally: see the range that tie-breaking could give",
        )


def _missing_documents(dataset: Dataset) -> Iterator[Finding]:
    qrels = dataset.qrels
    missing = np.flatnonzero(dataset.corpus.rows_of(qrels.doc_ids) < 0)
    if not len(missing):
        return
    relevant = int((qrels.grades[missing] > 0).sum())
    official = dataset.facts.counts.dangling_judgements == len(missing)
    harmful = relevant and not official
    yield Finding(
        "warning" if harmful else "note",
        "judgements point at documents that the corpus does not have "
        f"({relevant:,} of them relevant{': official, and kept' if official else ''})",
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
    lost = [query for query, document, grade in dataset.qrels if query == document and grade > 0]
    harmful, suggestion = False, ""
    if excluded is None:
        same = _with_equal_texts(dataset, rows)
        harmful = same > 0
        what += (
            f", and exclude_self is not set, so nothing is dropped ({same:,} of these documents "
            "have the text of their query)"
        )
        suggestion = (
            f"write into {dataset.reader.folder / FACTS_FILE}: exclude_self = true if the queries "
            "are documents of the corpus, as in ArguAna; exclude_self = false if ids collide by "
            "accident"
        )
    elif excluded:
        harmful = bool(lost)
        what += (
            "; exclude_self is on, so each of these documents is dropped for its query "
            f"({len(lost):,} of them relevant)"
        )
        suggestion = "if the ids collide by accident, set exclude_self = false" if lost else ""
    else:
        what += "; exclude_self is off, so nothing is dropped"
    yield Finding("warning" if harmful else "note", what, len(ids), _some(ids), suggestion)


def _with_equal_texts(dataset: Dataset, rows: Int64Array) -> int:
    """How many queries have the text of the document of their id; ``rows`` of the documents."""
    queries = zip(dataset.queries.texts, rows.tolist(), strict=True)
    asked = [text.strip() for text, row in queries if row >= 0]
    texts = dataset.corpus.texts_at(rows[rows >= 0])
    return sum(text == other.strip() for text, other in zip(asked, texts, strict=True))


def _of_rows(what: str, rows: Int64Array, ids: pa.ChunkedArray, suggestion: str) -> Finding:
    examples = tuple(ids[int(row)].as_py() for row in rows[:EXAMPLES])
    return Finding("note", what, len(rows), examples, suggestion)


def _some(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))[:EXAMPLES]


_CHECKS: Sequence[Callable[[Dataset], Iterator[Finding]]] = (
    _counts,
    _missing_documents,
    _queries_without_relevant,
    _colliding_ids,
    _empty_documents,
    _duplicate_texts,
)
