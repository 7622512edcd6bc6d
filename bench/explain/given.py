"""Files of evidence: vectors with ids, scores by query, published numbers, canaries."""

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.evaluate.scoring import parse_measure
from bench.explain.evidence import GivenVectors, Texts, sample_documents, sample_queries
from bench.explain.scored import PublishedNumber
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array
from foundation.errors import BenchError, name_path_in_errors
from foundation.files import replace_file
from foundation.records import Record, read_json
from retrievers.models.recipe import Role

FORMATS = (
    "use .npy, .npz (arrays ids and vectors), .parquet (columns id and vector) or .safetensors"
)
NAMES = ("vectors", "vector", "embeddings", "embedding")
TREC_EVAL = {"ndcg_cut_": "nDCG@", "recall_": "R@", "P_": "P@", "map_cut_": "AP@"}
TREC_EVAL_WHOLE = {"map": "AP", "recip_rank": "RR", "ndcg": "nDCG"}


def parse_published(typed: str, datasets: Sequence[Dataset]) -> PublishedNumber:
    """Return the published score that was typed as ``[DATASET:][MEASURE=]VALUE``.

    Args:
        typed: such as ``.2441``, ``R@100=.72`` or ``beir/scifact:nDCG@10=.6451``.
        datasets: collections that may be meant; the first is meant if none is named.

    Raises:
        BenchError: it is not from 0 to 1, or names another collection.
    """
    name, colon, rest = typed.rpartition(":")
    measure, _, value = rest.rpartition("=")
    known = {dataset.name: dataset for dataset in datasets}
    if colon and name not in known:
        raise BenchError(f"--published {typed}: {name} is not given with --on", f"add --on {name}")
    if not re.fullmatch(r"[01]?\.\d+", value):
        raise BenchError(
            f"--published {typed}: {value!r} is not a score from 0 to 1",
            "type it as .2441 or nDCG@10=.2441 (24.41 is .2441)",
        )
    dataset = known[name] if colon else datasets[0]
    canonical = parse_measure(measure or dataset.facts.main_measure).name
    return PublishedNumber(dataset.name, canonical, float(value), len(value.partition(".")[2]))


def read_query_scores(path: Path, default: str) -> tuple[str, dict[str, float], int]:
    """Return measure, score by query, and decimal digits of the scores in a file.

    Args:
        path: lines of a query id and a score, or a measure, a query id and a score as
            ``trec_eval -q`` prints them; separated by white space, commas or tabs. Or a JSON
            object of scores by query id.
        default: the measure of a file that names none; the first in a file that names several.

    Raises:
        BenchError: a line is not of this form.
    """
    with name_path_in_errors(path):
        text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        rows = [["", query, str(value)] for query, value in json.loads(text).items()]
    else:
        rows = [row for row in map(_columns, text.splitlines()) if row]
    found: dict[str, dict[str, float]] = {}
    digits = 0
    for row in rows:
        query, written = row[-2], row[-1]
        try:
            value = float(written)
        except ValueError:
            continue  # a header, or a setting that trec_eval prints
        if query != "all":
            found.setdefault(_measure_of(row[0] if len(row) > 2 else "", default), {})[query] = (
                value
            )
            digits = max(digits, len(written.partition(".")[2]))
    if not found:
        raise BenchError(f"{path} has no lines of a query id and a score", "see `explain --help`")
    measure = default if default in found else next(iter(found))
    return measure, found[measure], digits


def _columns(line: str) -> list[str]:
    if "," in line:
        return next(csv.reader([line]))
    return line.split()


def _measure_of(name: str, default: str) -> str:
    """Return the canonical name of a measure as trec_eval or ir_measures call it."""
    if not name:
        return default
    if name in TREC_EVAL_WHOLE:
        return TREC_EVAL_WHOLE[name]
    for prefix, kind in TREC_EVAL.items():
        if name.startswith(prefix):
            return kind + name.removeprefix(prefix)
    try:
        return parse_measure(name).name
    except BenchError:
        return name


def read_vectors(path: Path, dataset: Dataset) -> tuple[dict[Role, GivenVectors], list[str]]:
    """Return a sample of the vectors in a file by role, and all ids in the file.

    Ids decide whether vectors are of documents or of queries. Without ids, rows are the
    collection's documents, or its queries, in order.

    Args:
        path: see `FORMATS`; ids of .npy and .safetensors stand in FILE.ids.txt, one a line.
        dataset: collection of the texts.

    Raises:
        BenchError: the file cannot be read, or its ids are not of the collection.
    """
    with name_path_in_errors(path):
        vectors, ids = _read_arrays(path)
    if ids is None:
        ids = _ids_by_count(path, len(vectors), dataset)
    if len(ids) != len(vectors):
        raise BenchError(f"{path} has {len(vectors):,} vectors and {len(ids):,} ids")
    if vectors.dtype == np.uint8 and set(np.unique(vectors[:64])) - {0, 1}:
        vectors = np.unpackbits(vectors, axis=1)
    given: dict[Role, GivenVectors] = {}
    row_of = {id_: row for row, id_ in enumerate(ids)}
    queries = set(dataset.queries.ids)
    in_corpus = dataset.corpus.rows_of(ids) >= 0
    is_query = np.array([id_ in queries for id_ in ids])
    roles: dict[Role, Any] = {"document": in_corpus, "query": is_query & ~in_corpus}
    if is_query.sum() > in_corpus.sum() or (is_query.all() and len(ids) <= len(queries)):
        roles = {"document": in_corpus & ~is_query, "query": is_query}
    for role, mask in roles.items():
        some = [id_ for id_, chosen in zip(ids, mask.tolist(), strict=True) if chosen]
        if len(some) < 4:
            continue
        texts = (
            sample_documents(dataset.corpus, some)
            if role == "document"
            else sample_queries(dataset, some)
        )
        rows = np.array([row_of[id_] for id_ in texts.ids])
        given[role] = GivenVectors(texts, vectors[rows], vectors, rows)
    return given, list(ids)


def _ids_by_count(path: Path, count: int, dataset: Dataset) -> list[str]:
    if count == len(dataset.corpus):
        ids: list[str] = dataset.corpus.ids.to_pylist()
        return ids
    if count == len(dataset.queries):
        return list(dataset.queries.ids)
    raise BenchError(
        f"{path} has {count:,} vectors without ids, and {dataset.name} has "
        f"{len(dataset.corpus):,} documents and {len(dataset.queries):,} queries",
        f"write the ids, one a line, into {path}.ids.txt",
    )


def _read_arrays(path: Path) -> tuple[Any, list[str] | None]:
    ids_file = Path(f"{path}.ids.txt")
    ids = ids_file.read_text(encoding="utf-8").splitlines() if ids_file.exists() else None
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False), ids
    if path.suffix == ".npz":
        arrays = np.load(path, allow_pickle=False)
        name = _vectors_name(path, arrays.files)
        named = [str(id_) for id_ in arrays["ids"]] if "ids" in arrays.files else ids
        return arrays[name], named
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        tensors = load_file(path)
        return tensors[_vectors_name(path, list(tensors))], ids
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        column = table.column(_vectors_name(path, table.column_names))
        named = [str(id_) for id_ in table.column("id").to_pylist()]
        return np.array(column.to_pylist(), np.float32), named
    raise BenchError(f"{path}: {path.suffix or 'no suffix'} is not a format of vectors", FORMATS)


def _vectors_name(path: Path, names: Sequence[str]) -> str:
    found = [name for name in NAMES if name in names]
    if not found:
        raise BenchError(
            f"{path} has no vectors under any of the names {', '.join(NAMES)}", FORMATS
        )
    return found[0]


class CanaryTexts(Record):
    """Texts of one role with the vectors that a model gave them."""

    ids: list[str]
    titles: list[str]
    texts: list[str]
    vectors: list[list[float]]


class Canary(Record):
    """Texts with vectors, to see later whether a model or server still gives the same.

    Attributes:
        model: name of the model.
        fingerprint: of its recipe.
    """

    model: str
    fingerprint: str
    documents: CanaryTexts
    queries: CanaryTexts


def save_canary(path: Path, canary: Canary) -> None:
    """Write a canary as JSON.

    Args:
        path: of the file.
        canary: what to write.
    """
    with replace_file(path) as file:
        file.write(msgspec.json.encode(canary))


def canary_texts(texts: Texts, vectors: Float32Array) -> CanaryTexts:
    """Return texts with their vectors as a canary holds them.

    Args:
        texts: n of them.
        vectors: float32 ``(n, dim)``.
    """
    return CanaryTexts(
        list(texts.ids), list(texts.titles), list(texts.texts), vectors.astype(float).tolist()
    )


def read_canary(path: Path) -> dict[Role, GivenVectors]:
    """Return the vectors of a canary by role.

    Args:
        path: file that ``explain --save-canary`` wrote.

    Raises:
        BenchError: it is not such a file.
    """
    canary = read_json(path, Canary, "write it again with `explain --save-canary`")
    roles: dict[Role, CanaryTexts] = {"document": canary.documents, "query": canary.queries}
    given: dict[Role, GivenVectors] = {}
    for role, saved in roles.items():
        if saved.ids:
            vectors = np.array(saved.vectors, np.float32)
            texts = Texts(saved.ids, saved.titles, saved.texts, len(saved.ids))
            given[role] = GivenVectors(texts, vectors, vectors, np.arange(len(vectors)))
    return given
