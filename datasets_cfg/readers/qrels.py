"""Relevance judgements in a file of BEIR (TSV with a header), TREC, or a table with these columns.

A file that can mean only one thing is read: columns by other names and in any order, grades such as
``1.0``, and TREC's four columns under ``qrels/``.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

from datasets_cfg.readers import reader
from datasets_cfg.readers.reader import Qrels, RepeatedError
from foundation.errors import BenchError, report_error

BEIR_HEADER = ["query-id", "corpus-id", "score"]
QRELS_FORMS = (".tsv", ".jsonl", ".parquet", ".arrow", ".txt", ".qrels", ".trec")
_ROLES = (
    r"q(uery)?[-_ ]?id",
    r"(corpus|doc(ument)?|d|passage|p)[-_ ]?id|docno",
    r"score|relevance|rel|grade|label",
)
_GRADE = re.compile(r"(-?[0-9]{1,9})(\.0*)?")
_TRUTH = {"true": "1", "false": "0"}
_HEADER_HINT = "Write the header query-id<tab>corpus-id<tab>score, then these three columns."
_Row = tuple[int, Any, Any, Any]  # number, query, document and grade


def read_qrels(*paths: Path) -> Qrels:
    """Return the qrels in ``paths``, files in a form of `QRELS_FORMS`."""
    graded: dict[Path, bool] = {}
    return _collect_qrels((path, row) for path in paths for row in _read_judgements(path, graded))


def read_trec_qrels(path: Path) -> Qrels:
    """Return the TREC qrels in ``path``: query, iteration (ignored), document, grade."""
    return _collect_qrels((path, row) for row in _read_trec(path))


def _read_trec(path: Path) -> Iterator[_Row]:
    return ((number, f[0], f[2], f[3]) for number, f in reader.read_rows(path, 4, None))


def _read_judgements(path: Path, graded: dict[Path, bool]) -> Iterator[_Row]:
    """Yield the rows of one of several files, and note in ``graded`` whether it has grades."""
    plain = path.name.removesuffix(".gz")
    if plain.endswith(reader.TEXT_FORMS):
        hint = 'Write {"query-id": "q1", "corpus-id": "d1", "score": 1} in each line.'
        return _by_column(path, reader.read_objects(path, hint), graded)
    number, line = next(reader.read_lines(path), (1, b""))
    header = reader.decode_line(path, number, line)
    names = [name.strip() for name in header.split("\t")]
    if _find_columns(names):
        rows = reader.read_rows(path, len(names), "\t")
        next(rows)
        if names == BEIR_HEADER:
            return ((at, row[0], row[1], row[2]) for at, row in rows)
        named = ((at, dict(zip(names, row, strict=True))) for at, row in rows)
        return _by_column(path, named, graded)
    return _read_without_header(path, number, header)


def _read_without_header(path: Path, number: int, first: str) -> Iterator[_Row]:
    """Read TREC qrels, or raise if the ``first`` line can be something else."""
    fields, found = first.split(), f"the header is {first!r}, not that of BEIR qrels"
    graded = [bool(_GRADE.fullmatch(field)) for field in fields]
    if len(fields) == 4 and graded[3]:
        if fields[1].upper() in ("0", "Q0") or not graded[2]:
            reader.assume(
                f"{path.name} has four columns without a header, and is read as TREC qrels", None
            )
            return _read_trec(path)
        found = (
            f"{first!r} is a line of TREC qrels (query, iteration, document, grade), or query, "
            "document, grade and one more column"
        )
    elif len(fields) == 3 and graded[2]:
        advice = f"Run: sed -i '1i query-id\\tcorpus-id\\tscore' {shlex.quote(str(path))}"
        hint = f"If it is a judgement, {_HEADER_HINT if path.suffix == '.gz' else advice}"
        raise reader.line_error(path, number, f"{found}, and may be a judgement", hint)
    raise reader.line_error(path, number, found, _HEADER_HINT)


def _find_columns(names: Sequence[str]) -> tuple[str, str, str] | None:
    """Return the names of query, document and grade, "" for no grade, or None if they are unclear.

    The names that BEIR gives to columns of ids are preferred.
    """
    queries, documents, grades = (
        [name for name in names if re.fullmatch(pattern, name.strip().lower())]
        for pattern in _ROLES
    )
    for column, candidates in zip(BEIR_HEADER[:2], (queries, documents), strict=True):
        if column in candidates:
            candidates[:] = [column]
    if len(queries) != 1 or len(documents) != 1 or len(grades) > 1:
        return None
    return queries[0], documents[0], "".join(grades)


def _by_column(
    path: Path, rows: Iterable[tuple[int, dict[str, Any]]], graded: dict[Path, bool]
) -> Iterator[_Row]:
    """Yield query, document and grade of ``rows``, whose columns are those of the first row."""
    columns: tuple[str, str, str] | None = None
    first: Set[str] = frozenset()
    for number, row in rows:
        if columns is None:
            columns, first = _find_columns((*row,)), row.keys()
            if columns is None:
                problem = f"the columns are {', '.join(row)}, not those of qrels"
                hint = "Call them query-id, corpus-id and score."
                raise reader.line_error(path, number, problem, hint)
            graded[path] = bool(columns[2])
            if other := next((each for each in graded if graded[each] != graded[path]), None):
                without, having = (other, path) if graded[path] else (path, other)
                problem = f"{without} has no grades, and {having.name} has"
                raise BenchError(problem, "Give each judgement a grade, or none.")
            if columns[2] == "":
                reader.assume(f"{path.name} has no grades, so all its documents have grade 1", None)
            elif [*columns] != BEIR_HEADER:
                reader.assume(
                    f"{path.name}: {', '.join(columns)} are read as query, document and grade", None
                )
        query, document, grade = columns
        if missing := [name for name in columns if name and row.get(name) is None]:
            report_error(reader.line_error(path, number, f"there is no {missing[0]}"))
            continue
        if not grade and row.keys() != first and _find_columns((*row,)) != columns:
            problem = f"the columns are {', '.join(row)}, unlike those of the first row"
            report_error(reader.line_error(path, number, problem, "Give each judgement a grade."))
            continue
        yield number, row[query], row[document], row[grade] if grade else 1


def _collect_qrels(rows: Iterable[tuple[Path, _Row]]) -> Qrels:
    """Return qrels, repeated lines counted once."""
    grades: dict[tuple[str, str], int] = {}
    for path, (number, query, document, value) in rows:
        pair = (reader.read_id(path, number, query), reader.read_id(path, number, document))
        if not all(pair):
            continue
        typed = str(value).strip()
        if typed.lower() in _TRUTH:
            reader.assume("grades that are true or false are read as 1 or 0")
            typed = _TRUTH[typed.lower()]
        match = _GRADE.fullmatch(typed)
        if not match:
            report_error(reader.line_error(path, number, f"the grade {value!r} is not an integer"))
            continue
        if match[2]:
            reader.assume("grades such as 1.0 are read as integers")
        known = grades.setdefault(pair, int(match[1]))
        if known != int(match[1]):
            message = f"document {pair[1]!r} of query {pair[0]!r} has grades {known} and {match[1]}"
            report_error(RepeatedError(f"{path}:{number}: {message}"))
    return Qrels.of(grades)
