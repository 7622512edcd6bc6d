"""Single files: documents to pre-train on, and the training files of other programs.

A training file holds queries with relevant passages, hard negatives and a teacher's scores. Its
layout is recognised by the fields of its first record (`LAYOUTS`). Records are JSON, one a line or
in one array, or rows of a Parquet or Arrow file, or three tab-separated columns (MS MARCO's triples
of query, positive and negative, as texts or as ids), or five, of which the first two are a
teacher's scores of the positive and the negative (MarginMSE: Hofstätter et al., 2020,
https://github.com/sebastian-hofstaetter/neural-ranking-kd). Only one record is in memory at a time.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from datasets_cfg.readers import reader
from datasets_cfg.readers.reader import (
    Document,
    Judgements,
    Qrels,
    Queries,
    Reader,
    TrainingExample,
)
from foundation.errors import BenchError, format_count
from foundation.records import decode_json

FOLDER_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".arrow")
BLOCK_LINES = 50_000  # of a JSON array, read at a time
LONGEST = 1 << 28  # characters of a record
TRIPLE = ("query", "positive", "negative")
TRIPLE_SCORES = ("score_1", "score_2")  # of positive and negative, before a scored triple
_IN_RECORD = re.compile(r"[^\s,\[\]]")  # a character inside a record of a JSON array


class Layout(NamedTuple):
    """Fields of a layout, as regular expressions.

    Attributes:
        name: of the program that made the layout known.
        query: text of the query, or ``query_id`` or ``qid`` if queries and passages are ids. They
            are ids in any layout if all are numbers.
        positives: relevant passages, one or a list. Numbered fields (``_1``, ``_2``) belong to it.
        negatives: hard negatives, likewise, or a table of them by the system that found them.
        scores: a teacher's scores: one field, or one for the positives and one for the negatives.
    """

    name: str
    query: str
    positives: str
    negatives: str
    scores: tuple[str, ...] = ()


_SCORES = "scores?|labels?"  # valid_label_columns of sentence-transformers' data collator
LAYOUTS = (
    Layout("FlagEmbedding", "query", "pos", "neg", ("pos_scores", "neg_scores")),
    Layout("msmarco-hard-negatives", "qid", "pos", "neg"),  # of sentence-transformers
    Layout("Tevatron", "query", "positive_passages", "negative_passages"),
    Layout("Tevatron by id", "query_id", "positive_document_ids", "negative_document_ids"),
    Layout("DPR", "question", "positive_ctxs", "hard_negative_ctxs"),  # their scores are BM25's
    Layout("sentence-transformers", "anchor|query", "positive", "negative", (_SCORES,)),
    Layout("sentence-transformers by id", "query_id", "positive_id", "negative_id", (_SCORES,)),
)


class _Passage(msgspec.Struct):
    """A passage of Tevatron (docid, score) or DPR (passage_id or psg_id)."""

    text: str
    title: str | None = None
    docid: str | int | None = None
    passage_id: str | int | None = None
    psg_id: str | int | None = None
    score: float | str | None = None


def list_files(path: Path) -> tuple[Path, ...]:
    """Return the training file ``path``, or the training files in the folder ``path`` by name."""
    if path.is_file():
        return (path,)
    return tuple(sorted(file for file in path.iterdir() if file.name.endswith(FOLDER_SUFFIXES)))


def read_examples(path: Path) -> Iterator[TrainingExample]:
    """Yield the records of a training file, or of the files of a folder, which have one layout."""
    layout: Layout | None = None
    scored: bool | None = None
    for file in list_files(path):
        for number, row in _read_rows(file):
            layout = layout or _find_layout(file, number, row)
            try:
                example = _parse(row, layout)
            except (msgspec.ValidationError, ValueError) as error:
                problem = f"not a record in the layout of {layout.name}: {error}"
                raise reader.line_error(file, number, problem) from error
            scored = bool(example.scores) if scored is None else scored
            if scored != bool(example.scores):
                problem = f"the record has {'no ' if scored else ''}scores, unlike the first"
                raise reader.line_error(file, number, problem)
            yield example


def _find_layout(file: Path, number: int, row: dict[str, Any]) -> Layout:
    """Return the layout of the first record of a file.

    Layouts with the same fields for passages are told apart by the field of the query.
    """
    found = [each for each in LAYOUTS if _names((*row,), f"{each.positives}|{each.negatives}")]
    found.sort(key=lambda each: not _names((*row,), each.query))
    layouts = list({each.positives: each for each in reversed(found)}.values())
    if not layouts:
        raise _unknown_layout(file, number, ", ".join(row) or "no fields")
    if len(layouts) > 1:
        names = " and ".join(layout.name for layout in layouts)
        problem = f"the record has passages in the layouts of {names}"
        raise reader.line_error(file, number, problem, "Keep the fields of one layout.")
    return layouts[0]


def _unknown_layout(file: Path, number: int, found: str) -> BenchError:
    known = ", ".join(f"{layout.positives} ({layout.name})" for layout in LAYOUTS)
    problem = f"unknown layout of training data: the record has {found}"
    hint = (
        f"Write JSON with one of the fields {known}, or three tab-separated columns (MS MARCO), or "
        "five with the scores of positive and negative first (MarginMSE)."
    )
    return reader.line_error(file, number, problem, hint)


def _parse(row: dict[str, Any], layout: Layout) -> TrainingExample:
    """Return a record as an example. Without a positive, that of msmarco-hard-negatives is kept:
    its query may be judged in the collection.
    """
    if isinstance(systems := row.get(layout.negatives), dict) and layout.query == "qid":
        row = row | {layout.negatives: _take_turns(systems)}
    queries, *sides = (
        _values(row, field) for field in (layout.query, layout.positives, layout.negatives)
    )
    for field, values in ((layout.query, queries), (layout.positives, sides[0])):
        if "" in values or not (values or layout.query == "qid" != field):
            raise ValueError(f"there is no {field.replace('|', ' or ')}, or an empty one")
    if len(queries) > 1:
        raise ValueError(f"{len(queries)} queries in one record")
    numbers = all(str(each).isdecimal() for each in (*queries, *sides[0], *sides[1]))
    by_id = numbers or layout.query in ("query_id", "qid")
    kind = list[str | int] if by_id else list[_Passage | str]
    passages: list[list[_Passage | str | int]] = [msgspec.convert(side, kind) for side in sides]
    scores = _find_scores(row, layout, passages)
    positives, negatives = (tuple(_document(each, by_id) for each in side) for side in passages)
    if by_id:
        return TrainingExample(str(queries[0]), "", positives, negatives, scores)
    text = msgspec.convert(queries[0], str)
    if layout.name == "DPR":
        text = text.replace("’", "'")  # as DPR's program does
    return TrainingExample(str(row.get("query_id", "")), text, positives, negatives, scores)


def _take_turns(systems: dict[str, Any]) -> list[str | int]:
    """Return the ids that several systems found: the best of each, the second of each, and so on.

    Each occurs once.
    """
    ranked = msgspec.convert([*systems.values()], list[list[str | int]])
    turns = itertools.chain.from_iterable(itertools.zip_longest(*ranked))
    return list(dict.fromkeys(each for each in turns if each is not None))


def _find_scores(
    row: dict[str, Any], layout: Layout, sides: Sequence[Sequence[_Passage | str | int]]
) -> tuple[float, ...]:
    """Return a teacher's scores of the positives, then of the negatives, or () for none."""
    scores = [_values(row, field) for field in layout.scores]
    if layout.name == "Tevatron":
        passages = [[each for each in side if isinstance(each, _Passage)] for side in sides]
        scores = [[each.score for each in side if each.score is not None] for side in passages]
    if not any(scores):
        return ()
    positives, negatives = map(len, sides)
    if len(scores) == 1 and negatives:  # without negatives, it is the similarity of a pair
        values = msgspec.convert(scores[0], list[float])
        if len(values) == negatives:  # margins of the positive
            values = [0.0, *(-margin for margin in values)]
        scores = [values[:positives], values[positives:]]
    if [len(values) for values in scores] != [positives, negatives]:
        given = " + ".join(str(len(values)) for values in scores)
        raise ValueError(f"{given} scores for {positives} positives and {negatives} negatives")
    teacher_scores = msgspec.convert([*scores[0], *scores[1]], tuple[float, ...])
    if not np.isfinite(teacher_scores).all():
        raise ValueError("a score is not finite")
    return teacher_scores


def _values(row: dict[str, Any], field: str) -> list[Any]:
    """Return the values of all fields of a record that match ``field``, in order, without None."""
    matched = [row[name] for name in _names((*row,), field) if row[name] is not None]
    return [each for value in matched for each in (value if isinstance(value, list) else [value])]


@lru_cache
def _names(names: tuple[str, ...], field: str) -> list[str]:
    """Return the ``names`` of fields that match ``field``, numbered or not."""
    return [name for name in names if re.fullmatch(rf"(?:{field})(_\d+)?", name)]


def _document(passage: _Passage | str | int, by_id: bool) -> Document:
    if isinstance(passage, _Passage):
        ids = (passage.docid, passage.passage_id, passage.psg_id)
        id_ = next((str(each) for each in ids if each is not None), "")
        return Document(id_, passage.title or "", passage.text)
    return Document(str(passage), "", "") if by_id else Document("", "", str(passage))


def _read_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of a file with the numbers of their lines or rows, from 1."""
    if file.suffix in reader.TABLES:
        return reader.read_table(file)
    numbered = (each for each in reader.read_lines(file) if each[1].strip())
    number, first = next(numbered, (1, b"\t\t"))
    if first.lstrip().startswith(b"["):
        return _read_array(file)
    if first.lstrip().startswith(b"{"):
        return reader.read_objects(file)
    columns = first.count(b"\t") + 1
    for scores in ((), TRIPLE_SCORES):
        if columns == len(scores) + len(TRIPLE):
            return _read_triples(file, scores)
    found = "no JSON and " + format_count(columns, "tab-separated column", "tab-separated columns")
    raise _unknown_layout(file, number, found)


def _read_triples(file: Path, scored: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows of ids if the first row has an id, a number or only words in ASCII, else of
    texts. The first columns are scores, which get the names ``scored``.
    """
    by_id: bool | None = None
    for number, row in reader.read_rows(file, len(scored) + len(TRIPLE), "\t"):
        fields = row[len(scored) :]
        try:
            scores = dict(zip(scored, map(float, row[: len(scored)]), strict=True))
        except ValueError as error:
            problem = f"the first {len(scored)} of {len(row)} columns are not scores: {error}"
            raise reader.line_error(file, number, problem) from error
        has_text = any(" " in field or not field.isascii() for field in fields)
        if by_id is None:
            by_id = not has_text or any(field.isdecimal() for field in fields)
        if by_id and has_text:
            raise reader.line_error(file, number, "the row has a text, and the file has ids")
        names = [f"{name}_id" if by_id else name for name in TRIPLE]
        yield number, scores | dict(zip(names, fields, strict=True))


def _read_array(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON array one by one, each with the line in which it begins."""
    decode, rest, number, ended = json.JSONDecoder().raw_decode, "", 1, False
    lines = (reader.decode_line(file, *numbered) for numbered in reader.read_lines(file))
    while not ended:
        block = list(itertools.islice(lines, BLOCK_LINES))
        ended = len(block) < BLOCK_LINES
        rest += "".join(f"{line}\n" for line in block)
        end = 0  # of the last record, in the line `number`
        while start := _IN_RECORD.search(rest, end):
            begin = start.start()
            try:
                record, after = decode(rest, begin)
            except (json.JSONDecodeError, RecursionError) as error:
                if not ended and len(rest) - begin < LONGEST:
                    break  # the rest of the record is in the next block
                number += rest.count("\n", end, getattr(error, "pos", begin))
                raise reader.line_error(file, number, str(error).partition(": line")[0]) from error
            number += rest.count("\n", end, begin)
            if not isinstance(record, dict):
                raise reader.line_error(file, number, "a record is not a JSON object")
            yield number, record
            number, end = number + rest.count("\n", begin, after), after
        rest = rest[end:]
    if not rest.rstrip().endswith("]"):
        number += rest.count("\n")
        raise reader.line_error(file, number, "the array is not closed", "Download the file again.")


@dataclass(frozen=True)
class ExampleReader(Reader):
    """A reader of a training file that contains its texts. ``folder`` is the file or its folder.

    The id of a query or passage is a hash of its text, so that equal texts are one.
    """

    corpus_names = ()
    expected = "queries with the texts of passages"

    def corpus_files(self) -> tuple[Path, ...]:
        return list_files(self.folder)

    def documents(self) -> Iterator[Document]:
        """Yield each passage once, in the order of the file."""
        seen = set[int]()
        for example in self.examples():
            for document in (*example.positives, *example.negatives):
                if (key := int(document.id, 16)) not in seen:
                    seen.add(key)
                    yield document

    def judgements(self) -> Judgements:
        return judge_examples(self.examples())

    def examples(self) -> Iterator[TrainingExample]:
        """Yield the records with ids made from their texts."""
        for example in read_examples(self.folder):
            if not example.query:
                hint = "Name their collection with --on and this file with --negatives."
                raise BenchError(f"{self.folder} has ids instead of texts", hint)
            positives, negatives = (
                tuple(each._replace(id=_hash_texts(each.title, each.text)) for each in side)
                for side in (example.positives, example.negatives)
            )
            yield TrainingExample(
                _hash_texts(example.query), example.query, positives, negatives, example.scores
            )


def judge_examples(examples: Iterable[TrainingExample]) -> Judgements:
    """Return the queries of ``examples`` with qrels of grade 1 for their positives."""
    queries = dict[str, str]()
    pairs = dict[tuple[str, str], int]()
    for example in examples:
        queries.setdefault(example.id, example.query)
        pairs |= {(example.id, document.id): 1 for document in example.positives}
    return Judgements(Queries(tuple(queries), tuple(queries.values())), Qrels.of(pairs))


def _hash_texts(*texts: str) -> str:
    content = "\0".join(texts).encode(errors="surrogatepass")
    return hashlib.blake2b(content, digest_size=8).hexdigest()


class _TextLine(msgspec.Struct):
    text: str
    title: str | None = None


@dataclass(frozen=True)
class TextReader(Reader):
    """A reader of documents, one a line: text, or JSON with text and title. No judgements."""

    corpus_names = ()
    expected = "one document a line"

    def corpus_files(self) -> tuple[Path, ...]:
        return (self.folder,)

    def documents(self) -> Iterator[Document]:
        """Yield the documents. The id of a document is the number of its line."""
        for number, line in reader.read_lines(self.folder):
            text = reader.decode_line(self.folder, number, line)
            if text.startswith("{"):
                hint = 'Write {"text": "..."} or plain text, one document a line.'
                read = decode_json(line, _TextLine, f"{self.folder}:{number}", hint)
                yield Document(str(number), read.title or "", read.text)
            elif text.strip():
                yield Document(str(number), "", text)
