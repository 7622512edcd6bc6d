"""Queries and relevance judgements of one split, in the formats that collections use."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datasets_cfg.readers.lines import (
    bad_line,
    checked_id,
    decoded,
    read_lines,
    read_rows,
)
from datasets_cfg.records import Qrels, Queries
from foundation.errors import BenchError

BEIR_HEADER = ["query-id", "corpus-id", "score"]
_GRADE = re.compile(r"-?[0-9]{1,9}")
_NAMED_IDS = 5


@dataclass(frozen=True)
class Judgements:
    """The queries of a collection and the judgements or answers that score them.

    Attributes:
        queries: the queries that have judgements, in file order.
        qrels: relevance judgements; empty where answers decide.
        answers: accepted answers of each query id; None where qrels decide.
    """

    queries: Queries
    qrels: Qrels
    answers: Mapping[str, tuple[str, ...]] | None = None


def judged(queries: Queries, qrels: Qrels, source: Path) -> Judgements:
    """Keep the queries that ``qrels`` (read from ``source``) judges.

    Raises:
        BenchError: no document of the qrels is relevant, or a judged query has no text.
    """
    if not (qrels.grades > 0).any():
        raise BenchError(
            f"{source}: none of the {len(qrels)} judgements has a grade above 0",
            hint="every measure would be 0: is this the right file?",
        )
    wanted = set(qrels.query_ids)
    kept = [row for row, id_ in enumerate(queries.ids) if id_ in wanted]
    if len(kept) < len(wanted):
        _refuse_queries_without_text(wanted.difference(queries.ids), source)
    ids, texts = queries.ids, queries.texts
    selected = Queries(tuple(ids[row] for row in kept), tuple(texts[row] for row in kept))
    return Judgements(selected, qrels)


def _refuse_queries_without_text(missing: set[str], source: Path) -> None:
    named = ", ".join(sorted(missing)[:_NAMED_IDS])
    more = ", ..." if len(missing) > _NAMED_IDS else ""
    raise BenchError(
        f"{source}: {len(missing)} judged queries are not in the queries file: {named}{more}",
        hint="queries and qrels must belong together: are both of the same split?",
    )


def collect_queries(rows: Iterable[tuple[int, str, str]], path: Path) -> Queries:
    """Queries from ``(line number, id, text)``; a repeated id raises a `BenchError`."""
    texts: dict[str, str] = {}
    for number, id_, text in rows:
        if checked_id(path, number, id_) in texts:
            raise bad_line(path, number, f"query id {id_!r} occurs twice")
        texts[id_] = text
    return Queries(tuple(texts), tuple(texts.values()))


def read_tsv_queries(path: Path) -> Queries:
    """Read ``id <tab> text`` lines."""
    rows = ((number, id_, text) for number, (id_, text) in read_rows(path, 2, "\t"))
    return collect_queries(rows, path)


def read_beir_qrels(path: Path) -> Qrels:
    """Read qrels with a header and three columns: query, document, grade.

    Raises:
        BenchError: another header or format (TREC qrels are recognised), a wrong number of
            columns, a grade that is no integer, or one pair judged in two ways.
    """
    _check_header(path)
    rows = read_rows(path, 3, "\t")
    next(rows)
    return _collect_qrels(((number, f[0], f[1], f[2]) for number, f in rows), path)


def read_trec_qrels(path: Path) -> Qrels:
    """Read TREC qrels: query, iteration (ignored), document, grade, with white space between.

    Raises:
        BenchError: a wrong number of columns, a grade that is no integer, or one pair judged
            in two ways.
    """
    rows = read_rows(path, 4, None)
    return _collect_qrels(((number, f[0], f[2], f[3]) for number, f in rows), path)


def _check_header(path: Path) -> None:
    number, line = next(read_lines(path), (1, b""))
    header = decoded(path, number, line)
    if header.split("\t") == BEIR_HEADER:
        return
    problem = f"the header is {header!r}"
    if len(header.split()) == 4:
        problem = "this is the TREC qrels format (query, iteration, document, grade)"
    elif _GRADE.fullmatch(header.split("\t")[-1]):
        problem = "there is no header line"
    raise bad_line(
        path,
        number,
        f"{problem}, where the BEIR qrels format belongs",
        hint="write the header query-id<tab>corpus-id<tab>score, then those three columns",
    )


def _collect_qrels(rows: Iterable[tuple[int, str, str, str]], path: Path) -> Qrels:
    """Qrels from ``(line number, query, document, grade)``; a line said twice counts once."""
    grades: dict[tuple[str, str], int] = {}
    for number, query, document, grade in rows:
        checked_id(path, number, query)
        checked_id(path, number, document)
        if not _GRADE.fullmatch(grade):
            raise bad_line(path, number, f"the grade {grade!r} is not an integer")
        known = grades.setdefault((query, document), int(grade))
        if known != int(grade):
            message = f"document {document!r} of query {query!r} has grades {known} and {grade}"
            raise bad_line(path, number, message)
    return Qrels(
        query_ids=tuple(query for query, _ in grades),
        doc_ids=tuple(document for _, document in grades),
        grades=np.fromiter(grades.values(), dtype=np.int32, count=len(grades)),
    )
