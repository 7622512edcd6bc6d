"""Files of evidence: vectors with ids, scores by query, published numbers, canaries."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from bench.evaluate.scoring import parse_measure
from bench.explain.evidence import GivenVectors, Texts, sample_documents, sample_queries
from bench.explain.scored import PublishedNumber
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError, name_path_in_errors
from foundation.files import replace_file
from retrievers.models.recipe import Role

FORMATS = (
    "use .npy, .npz (arrays ids and vectors), .parquet (columns id and vector) or .safetensors"
)
LEAST = 4  # vectors of a role
NAMES = ("vectors", "vector", "embeddings", "embedding")


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
            ``trec_eval -q`` prints them; separated by white space or commas.
        default: the measure of a file that names none, preferred in a file that names several.

    Raises:
        BenchError: no line is of this form.
    """
    found: dict[str, dict[str, float]] = {}
    digits = 0
    with name_path_in_errors(path):
        lines = path.read_text(encoding="utf-8").splitlines()
    for line in lines:
        *measure, query, written = ["", *re.split(r"[\s,]+", line.strip())][-3:]
        if re.fullmatch(r"[01]?\.\d+|[01]", written) and query != "all":
            found.setdefault(measure[0] if measure else "", {})[query] = float(written)
            digits = max(digits, len(written.partition(".")[2]))
    by_measure = {_canonical(name) if name else default: found[name] for name in found}
    if not by_measure:
        raise BenchError(
            f"{path} has no line of a query id and a score from 0 to 1",
            "Write one line for each query: its id, white space and its score",
        )
    measure_name = default if default in by_measure else next(iter(by_measure))
    return measure_name, by_measure[measure_name], digits


def _canonical(name: str) -> str:
    """Return the canonical name of a measure as trec_eval or ir_measures call it."""
    import ir_measures

    try:
        return str(ir_measures.parse_trec_measure(name)[0])
    except ValueError:
        return parse_measure(name).name


def read_vectors(path: Path, dataset: Dataset) -> tuple[dict[Role, GivenVectors], list[str]]:
    """Return a sample of the vectors in a file by role, and all ids in the file.

    Ids decide whether vectors are of documents or of queries; ids of both are taken for
    documents. Without ids, rows are the collection's documents, or its queries, in order.

    Args:
        path: see `FORMATS`; ids of .npy and .safetensors stand in FILE.ids.txt, one a line.
        dataset: collection of the texts.

    Raises:
        BenchError: the file cannot be read, or has as many ids as vectors.
    """
    with name_path_in_errors(path):
        vectors, named = _read_arrays(path)
    ids = _ids_by_count(path, len(vectors), dataset) if named is None else named
    if len(ids) != len(vectors):
        raise BenchError(f"{path} has {len(vectors):,} vectors and {len(ids):,} ids")
    if vectors.dtype == np.uint8 and vectors.max() > 1:
        vectors = np.unpackbits(vectors, axis=1)
    row_of = {id_: row for row, id_ in enumerate(ids)}
    in_corpus = dataset.corpus.rows_of(ids) >= 0
    queries = [id_ for id_, known in zip(ids, in_corpus.tolist(), strict=True) if not known]
    samples: dict[Role, Texts] = {
        "document": sample_documents(dataset.corpus, ids),
        "query": sample_queries(dataset, queries),
    }
    given: dict[Role, GivenVectors] = {}
    for role, texts in samples.items():
        if len(texts.ids) >= LEAST:
            rows = np.array([row_of[id_] for id_ in texts.ids])
            given[role] = GivenVectors(texts, vectors[rows], vectors, rows)
    return given, ids


def _ids_by_count(path: Path, count: int, dataset: Dataset) -> list[str]:
    if count == len(dataset.corpus):
        ids: list[str] = dataset.corpus.ids.to_pylist()
        return ids
    if count == len(dataset.queries):
        return list(dataset.queries.ids)
    raise BenchError(
        f"{path} has {count:,} vectors without ids, and {dataset.name} has "
        f"{len(dataset.corpus):,} documents and {len(dataset.queries):,} queries",
        f"Write the ids, one a line, into {path}.ids.txt",
    )


def _read_arrays(path: Path) -> tuple[Any, list[str] | None]:
    ids_file = Path(f"{path}.ids.txt")
    ids = ids_file.read_text(encoding="utf-8").splitlines() if ids_file.exists() else None
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False), ids
    arrays: Any = {}
    if path.suffix == ".npz":
        arrays = np.load(path, allow_pickle=False)
    elif path.suffix == ".safetensors":
        arrays = load_file(path)
    elif path.suffix == ".parquet":
        table = pq.read_table(path)
        arrays = {name: np.array(table.column(name).to_pylist()) for name in table.column_names}
    name = next((name for name in NAMES if name in arrays), None)
    if name is None:
        raise BenchError(f"{path} has no array called {' or '.join(NAMES)}", FORMATS)
    named = next((arrays[each] for each in ("ids", "id") if each in arrays), None)
    return arrays[name], ids if named is None else list(map(str, named))


def save_canary(path: Path, given: Mapping[Role, GivenVectors]) -> None:
    """Write texts with their vectors, to see later whether a model or server still gives them.

    Args:
        path: of a .npz file.
        given: vectors by role.
    """
    arrays: dict[str, Any] = {
        f"{role}.{name}": np.array(values)
        for role, of in given.items()
        for name, values in {**vars(of.texts), "vectors": of.vectors}.items()
    }
    with replace_file(path) as file:
        np.savez(file, **arrays)


def read_canary(path: Path) -> dict[Role, GivenVectors]:
    """Return the vectors of a canary by role.

    Args:
        path: file that ``explain --save-canary`` wrote.

    Raises:
        BenchError: it is not such a file.
    """
    given: dict[Role, GivenVectors] = {}
    roles: tuple[Role, ...] = ("document", "query")
    with name_path_in_errors(path):
        saved = np.load(path, allow_pickle=False)
    for role in roles:
        if f"{role}.vectors" not in saved:
            raise BenchError(f"{path} is not a canary", "Save one with --save-canary")
        ids, titles, texts = (
            saved[f"{role}.{name}"].tolist() for name in ("ids", "titles", "texts")
        )
        vectors = saved[f"{role}.vectors"]
        sample = Texts(ids, titles, texts, len(ids))
        given[role] = GivenVectors(sample, vectors, vectors, np.arange(len(vectors)))
    return given
