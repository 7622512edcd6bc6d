"""What accepted input must give: read leniently with the standard library, scored with NumPy.

Nothing here calls a reader, an index or a scorer of the program: two programs that agree by chance
on damaged input are rare. Encoders are asked for vectors, for they are not what is tried here.
"""

import csv
import gzip
import io
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa

Ranking = Mapping[str, Sequence[str]]  # query -> documents, best first
Grades = Mapping[str, Mapping[str, int]]  # query -> document -> grade
Scored = dict[tuple[str, str], float]  # (query, document) -> score


@dataclass
class Collection:
    """As the files say: ``grades`` is empty where answers decide."""

    documents: dict[str, tuple[str, str]] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    grades: dict[str, dict[str, int]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> list[str]:
        """Queries that count: those with judgements, or all."""
        return [query for query in self.queries if query in self.grades or not self.grades]


def text_of(path: Path) -> str:
    """A file's text, whether compressed or not, without a byte order mark."""
    for actual in (path, path.with_name(f"{path.name}.gz")):
        if actual.is_file():
            content = actual.read_bytes()
            content = gzip.decompress(content) if actual.suffix == ".gz" else content
            return content.decode("utf-8").removeprefix("\ufeff")
    raise FileNotFoundError(path)


def rows_of(path: Path) -> list[str]:
    """Lines that hold something; only a line feed ends one."""
    return [line.rstrip("\r") for line in text_of(path).split("\n") if line.strip()]


def read_facts(folder: Path) -> dict[str, Any]:
    """What ``dataset.toml`` says."""
    path = folder / "dataset.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def read_beir(folder: Path) -> Collection:
    """``corpus.jsonl``, ``queries.jsonl``, ``qrels/SPLIT.tsv``."""
    found = Collection(facts=read_facts(folder))
    for line in rows_of(folder / "corpus.jsonl"):
        row = json.loads(line)
        found.documents[row["_id"]] = (row.get("title") or "", row["text"])
    for line in rows_of(folder / "queries.jsonl"):
        row = json.loads(line)
        found.queries[row["_id"]] = row["text"]
    split = found.facts.get("split", "test")
    for line in rows_of(folder / "qrels" / f"{split}.tsv")[1:]:
        query, document, grade = line.split("\t")
        found.grades.setdefault(query, {})[document] = int(grade)
    return found


def read_msmarco(folder: Path) -> Collection:
    """``collection.tsv``, queries and TREC qrels of the split."""
    found = Collection(facts=read_facts(folder))
    split = found.facts.get("split", "test")
    for line in rows_of(folder / "collection.tsv"):
        document, text = line.split("\t")
        found.documents[document] = ("", text)
    for line in rows_of(folder / f"queries.{split}.tsv"):
        query, text = line.split("\t")
        found.queries[query] = text
    for line in rows_of(folder / f"qrels.{split}.tsv"):
        query, _, document, grade = line.split()
        found.grades.setdefault(query, {})[document] = int(grade)
    return found


def read_dpr(folder: Path) -> Collection:
    """``psgs_w100.tsv`` and ``nq-SPLIT.qa.csv``: tab-separated with CSV quoting."""
    found = Collection(facts=read_facts(folder))
    split = found.facts.get("split", "test")
    passages = csv.reader(io.StringIO(text_of(folder / "psgs_w100.tsv"), ""), delimiter="\t")
    for document, text, title in list(passages)[1:]:
        found.documents[document] = (title, text)
    questions = csv.reader(io.StringIO(text_of(folder / f"nq-{split}.qa.csv"), ""), delimiter="\t")
    for number, (question, _) in enumerate(questions):
        found.queries[str(number)] = question.replace("’", "'")
    return found


def read_run(path: Path) -> tuple[Scored, list[str]]:
    """Scores of a TREC run file, or of the ranking of a result, and its queries in order."""
    content = path.read_bytes()
    if content.startswith(b"ARROW1"):
        rows = pa.ipc.open_file(content).read_all().to_pylist()
        found = {(row["query"], row["document"]): row["score"] for row in rows}
        return found, list(dict.fromkeys(query for query, _ in found))
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    found = {}
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if line.strip():  # the columns Q0, rank and tag may hold anything
            query, second, document, _, score, _ = line.split()
            decode = unquote_to_bytes if second == b"percent-encoded" else bytes
            names = (decode(query).decode(), decode(document).decode())
            found[names] = float(np.float32(float(score)))
    return found, list(dict.fromkeys(query for query, _ in found))


def ranked(scores: Scored, depth: int, exclude_self: bool) -> Ranking:
    """By score as float32, then by the bytes of the id, both falling; cut at the depth."""
    by_query: dict[str, list[tuple[float, bytes, str]]] = {}
    for (query, document), score in scores.items():
        if not (exclude_self and query == document):
            by_query.setdefault(query, []).append((score, document.encode(), document))
    return {
        query: [document for _, _, document in sorted(rows, reverse=True)[:depth]]
        for query, rows in by_query.items()
    }


def all_scores(
    collection: Collection, query_vectors: np.ndarray, document_vectors: np.ndarray
) -> Scored:
    """Inner products in float64, rounded to float32."""
    products = query_vectors.astype(np.float64) @ document_vectors.astype(np.float64).T
    return {
        (query, document): float(np.float32(products[row, column]))
        for row, query in enumerate(collection.asked)
        for column, document in enumerate(collection.documents)
    }


def mean(measure: str, ranking: Ranking, grades: Grades) -> float | None:
    """Over all queries with judgements; None for a measure that is not written here."""
    name, _, cut = measure.partition("@")
    depth = int(cut) if cut else None
    of = {"nDCG": _ndcg, "R": _recall, "P": _precision, "RR": _rr, "Success": _success, "AP": _ap}
    if name not in of or (depth is None and name in ("P", "R", "Success")):
        return None
    values = []
    for query, judged in grades.items():
        found = [judged.get(document, 0) for document in ranking.get(query, [])[:depth]]
        values.append(of[name](found, list(judged.values()), depth))
    return float(np.mean(values))


def _ndcg(found: list[int], judged: list[int], depth: int | None) -> float:
    def gain(grades: list[int]) -> float:
        return sum(max(0, grade) / np.log2(rank + 2) for rank, grade in enumerate(grades))

    ideal = gain(sorted(judged, reverse=True)[:depth])
    return gain(found) / ideal if ideal else 0.0


def _recall(found: list[int], judged: list[int], depth: int | None) -> float:
    relevant = sum(grade > 0 for grade in judged)
    return sum(grade > 0 for grade in found) / relevant if relevant else 0.0


def _precision(found: list[int], judged: list[int], depth: int | None) -> float:
    return sum(grade > 0 for grade in found) / (depth or 1)


def _rr(found: list[int], judged: list[int], depth: int | None) -> float:
    return next((1 / (rank + 1) for rank, grade in enumerate(found) if grade > 0), 0.0)


def _success(found: list[int], judged: list[int], depth: int | None) -> float:
    return float(any(grade > 0 for grade in found))


def _ap(found: list[int], judged: list[int], depth: int | None) -> float:
    relevant = sum(grade > 0 for grade in judged)
    hits = [rank for rank, grade in enumerate(found) if grade > 0]
    return sum((n + 1) / (rank + 1) for n, rank in enumerate(hits)) / relevant if relevant else 0.0
