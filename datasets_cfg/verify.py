"""Checks of a collection's data: differences from the published one, and hazards for scores."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from datasets_cfg.dataset import FACTS_FILE, Dataset
from foundation.arrays import Int64Array
from foundation.errors import BenchError

Severity = Literal["error", "warning", "note"]
EXAMPLES = 5


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
    """

    severity: Severity
    what: str
    count: int
    examples: tuple[str, ...] = ()
    suggestion: str = ""

    def text(self, collection: str = "") -> str:
        """Return the finding in a line, with the advice in a second one."""
        examples = f" ({', '.join(self.examples)})" if self.examples else ""
        what = f"{collection}: {self.what}" if collection else self.what
        count = f": {self.count:,}" if examples or self.count > 1 else ""
        line = f"{what}{count}{examples}"
        return f"{line}\n  {self.suggestion}" if self.suggestion else line


def verify_dataset(dataset: Dataset) -> list[Finding]:
    """Check the counts, documents, queries and judgements of ``dataset``.

    Builds the corpus if necessary. Duplicate ids and malformed lines stop the build and become the
    only finding.

    Returns:
        Findings, errors first; [] for data without peculiarities.
    """
    try:
        findings = [finding for check in _CHECKS for finding in check(dataset)]
    except BenchError as error:
        return [Finding("error", str(error), 1, suggestion=error.hint)]
    return sorted(findings, key=lambda finding: get_args(Severity).index(finding.severity))


def evaluation_findings(dataset: Dataset) -> list[Finding]:
    """Return findings on ``dataset`` that affect its scores, without reading all texts."""
    return [*_missing_documents(dataset), *_colliding_ids(dataset)]


def check_counts(dataset: Dataset, allow_mismatch: bool, with_corpus: bool = True) -> bool:
    """Return whether ``dataset`` has the published counts. Counts that nobody published match.

    Args:
        dataset: collection to check.
        allow_mismatch: return False for a mismatch instead of raising.
        with_corpus: compare the number of documents, too, which builds the corpus if necessary.

    Raises:
        BenchError: a count differs, and ``allow_mismatch`` is off.
    """
    different = count_differences(dataset, with_corpus)
    if different and not allow_mismatch:
        raise BenchError(
            f"this is not the published {dataset.name}: {'; '.join(different)}",
            f"run `python -m bench verify {dataset.name}` for details, or use --allow-mismatch to "
            "continue with marked results",
        )
    return not different


def count_differences(dataset: Dataset, with_corpus: bool = True) -> list[str]:
    """Return the counts of ``dataset`` that differ from the published ones, as text."""
    published = dataset.facts.counts
    counted = {"queries": len(dataset.queries), "judgements": len(dataset.qrels)}
    if with_corpus and published.documents is not None:
        counted = {"documents": len(dataset.corpus), **counted}
    return [
        f"{name}: {stated:,} published, {count:,} found"
        for name, count in counted.items()
        if (stated := getattr(published, name)) is not None and stated != count
    ]


def _count_findings(dataset: Dataset) -> Iterator[Finding]:
    advice = "this is not the published collection, so scores are not comparable"
    yield from (Finding("error", text, 1, suggestion=advice) for text in count_differences(dataset))
    if empty := dataset.corpus.manifest.empty_documents:
        yield Finding("note", "documents have neither title nor text and are kept", empty)


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
        "judgements name documents that are not in the corpus "
        f"({relevant:,} of them relevant{', as in the published data' if official else ''})",
        len(missing),
        _first_ids(qrels.doc_ids[row] for row in missing),
        "check that corpus and qrels are from the same release" if harmful else "",
    )


def _queries_without_relevant(dataset: Dataset) -> Iterator[Finding]:
    answered = {query for query, _, grade in dataset.qrels if grade > 0}
    without = [query for query in dataset.qrels.queries() if query not in answered]
    if without:
        yield Finding(
            "warning",
            "queries have no relevant document",
            len(without),
            _first_ids(without),
            "they count in every mean with score 0",
        )


def _colliding_ids(dataset: Dataset) -> Iterator[Finding]:
    """Report queries whose id is also a document id, if a score depends on it."""
    excluded = dataset.facts.exclude_self
    if excluded:
        lost = [
            query for query, document, grade in dataset.qrels if query == document and grade > 0
        ]
        if lost:
            yield Finding(
                "warning",
                "relevant documents are dropped because their id equals the query id",
                len(lost),
                _first_ids(lost),
                "if the ids collide by accident, set exclude_self = false",
            )
    if excluded is not None:
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
            f"write into {dataset.reader.folder / FACTS_FILE}: exclude_self = true if the queries "
            "are documents of the corpus, as in ArguAna; exclude_self = false if ids collide by "
            "accident",
        )


def _with_equal_texts(dataset: Dataset, rows: Int64Array) -> int:
    """Return how many queries have the same text as the document with their id."""
    queries = zip(dataset.queries.texts, rows.tolist(), strict=True)
    query_texts = [text.strip() for text, row in queries if row >= 0]
    texts = dataset.corpus.texts_at(rows[rows >= 0])
    return sum(text == other.strip() for text, other in zip(query_texts, texts, strict=True))


def _first_ids(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))[:EXAMPLES]


_CHECKS = (_count_findings, _missing_documents, _queries_without_relevant, _colliding_ids)
