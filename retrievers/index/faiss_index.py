"""Vectors to neighbours: what a search returns, and the approximate indexes of FAISS."""

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError

FLAT = "flat"
GPU_MAX_K = 2048
# FAISS's k-means draws at most this many training points for each centroid.
POINTS_PER_CENTROID = 256
_FAISS_SOURCE = re.compile(r"^Error in .*?\.(?:cpp|h|cu):\d+: (?:Error: )?")

INDEX_EXAMPLES: Mapping[str, str] = {
    "flat": "exact search over the vectors themselves; the default",
    "HNSW32?efSearch=128": "graph; fast and accurate, and as large as the vectors and more",
    "IVF4096,Flat?nprobe=64": "inverted lists; nprobe of them are searched",
    "IVF4096,PQ64?nprobe=64&seed=0": "inverted lists of vectors compressed to 64 bytes",
    "PQ64": "vectors compressed to 64 bytes, all compared",
    "SQ8": "vectors compressed to a byte for each dimension, all compared",
    "IVF4096,PQ64,RFlat?nprobe=64&k_factor_rf=4": "compressed, then refined on the vectors",
}


@dataclass(frozen=True)
class Hits:
    """Neighbours of q queries, at most k each.

    Attributes:
        scores: float32 ``(q, k)``, inner products, best first; ``-inf`` where unfilled.
        rows: int64 ``(q, k)``, row numbers of the corpus; -1 where unfilled.
    """

    scores: Float32Array
    rows: Int64Array


@dataclass(frozen=True)
class IndexSpec:
    """How neighbours are searched: ``flat``, or a FAISS factory string with its parameters.

    ``IVF4096,PQ64?nprobe=64&seed=0``: the factory string, then what FAISS's ``ParameterSpace``
    sets, and the seed of training. ``str`` gives the canonical form (parameters by name).

    Attributes:
        factory: FAISS factory string, or ``flat``.
        parameters: name and value, sorted by name.
        seed: of the training sample, k-means and graph levels.
    """

    factory: str
    parameters: tuple[tuple[str, float], ...] = ()
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> "IndexSpec":
        """Read the form that users type. FAISS checks the rest when the index is made.

        Raises:
            BenchError: a parameter is not ``name=number``, or comes twice, or the factory
                string is empty, or ``flat`` has parameters.
        """
        factory, _, query = text.strip().partition("?")
        try:
            values = _read_parameters(query) if query else {}
            seed = int(values.pop("seed", "0"))
            parameters = {name: float(value) for name, value in values.items()}
        except ValueError as error:
            raise _bad_spec(text, str(error)) from error
        if not factory or seed < 0 or not all(map(math.isfinite, parameters.values())):
            raise _bad_spec(text, "no factory string, a negative seed, or an infinite parameter")
        if factory == FLAT and query:
            raise _bad_spec(text, "flat is exact and has no parameters")
        return cls(factory, tuple(sorted(parameters.items())), seed)

    @property
    def is_exact(self) -> bool:
        """Whether every document is compared in full precision, without an index."""
        return self.factory == FLAT

    def __str__(self) -> str:
        pairs = [f"{name}={value!r}".removesuffix(".0") for name, value in self.parameters]
        if self.seed:
            pairs.append(f"seed={self.seed}")
        return "?".join(filter(None, (self.factory, "&".join(pairs))))


class FaissIndex:
    """An approximate index that ranks by inner product, with its own scores.

    Trained on the CPU, so that the seed decides the result on every device. Graphs (HNSW) built
    with several threads differ a little between builds: FAISS inserts in parallel.

    Args:
        spec: not ``flat``.
        dim: length of a vector.
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        BenchError: FAISS or the device is missing, the factory string or a parameter is
            unknown, or this kind of index has no inner product.
    """

    def __init__(self, spec: IndexSpec, dim: int, device: str = "cpu") -> None:
        self.spec = spec
        self.dim = dim
        self._gpu = resolve_device(device)
        self._resources: Any = None  # of the GPU, once the index is there
        self._index = _create(spec, dim)
        _prepare_training(self._index, spec)
        _set_parameters(self._index, spec)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def needs_training(self) -> bool:
        """Whether ``train`` must come before ``add``."""
        return not self._index.is_trained

    def training_rows(self, count: int) -> Int64Array:
        """Rows of a corpus of ``count`` documents to train on: sorted, drawn with the seed."""
        wanted = min(count, POINTS_PER_CENTROID * _centroids(self._index))
        chosen = np.random.default_rng(self.spec.seed).choice(count, wanted, replace=False)
        return np.sort(chosen)

    def train(self, sample: Float32Array) -> None:
        """Learn centroids and codebooks from a sample ``(m, dim)``.

        Raises:
            BenchError: the sample is too small for this index.
        """
        needed = _centroids(self._index)
        if len(sample) < needed:
            raise BenchError(
                f"{self.spec} needs at least {needed} vectors to train, there are {len(sample)}",
                "use a smaller index, or --index flat",
            )
        try:
            self._index.train(sample)
        except RuntimeError as error:
            raise BenchError(f"{self.spec} cannot be trained: {_reason(error)}") from error

    def add(self, tile: Float32Array) -> None:
        """Append documents ``(m, dim)``; rows number them in the order of adding.

        Raises:
            BenchError: not trained, or this index cannot be on the GPU.
        """
        if self.needs_training:
            raise BenchError(f"{self.spec} must be trained before documents are added")
        self._move_to_gpu()
        self._index.add(tile)

    def search(self, queries: Float32Array, k: int) -> Hits:
        """The k best of each query ``(q, dim)`` by this index's own scores.

        Raises:
            BenchError: k is less than 1, or more than the GPU can (2,048), or FAISS refuses a
                parameter.
        """
        if k < 1 or (self._gpu is not None and k > GPU_MAX_K):
            limit = f" to {GPU_MAX_K} on the GPU" if self._gpu is not None else " or more"
            raise BenchError(f"depth {k}: it must be 1{limit}")
        try:
            scores, rows = self._index.search(np.ascontiguousarray(queries), k)
        except RuntimeError as error:
            raise BenchError(
                f"{self.spec} cannot be searched: {_reason(error)}", "look at its parameters"
            ) from error
        return Hits(np.where(rows >= 0, scores, np.float32(-np.inf)), rows)

    def save(self, path: Path) -> None:
        """Write the index, and beside it ``<name>.json`` that says what it is."""
        faiss = import_faiss()
        index = faiss.index_gpu_to_cpu(self._index) if self._resources else self._index
        # The description goes last: without it the index counts as unfinished.
        _sidecar(path).unlink(missing_ok=True)
        faiss.write_index(index, str(path))
        temporary = path.with_name(path.name + ".json.part")
        temporary.write_text(json.dumps(self._description(), indent=1) + "\n", encoding="utf-8")
        temporary.replace(_sidecar(path))

    @classmethod
    def load(cls, path: Path, spec: IndexSpec, dim: int, device: str = "cpu") -> "FaissIndex":
        """Read a saved index that must be what is asked for.

        Raises:
            BenchError: it is missing, damaged, or of another spec, dimension or metric.
        """
        index = cls(spec, dim, device)
        faiss = import_faiss()
        try:
            stated = json.loads(_sidecar(path).read_text(encoding="utf-8"))
            index._index = faiss.read_index(str(path))
        except (OSError, ValueError, RuntimeError) as error:
            raise BenchError(f"cannot read the index {path}: {_reason(error)}") from error
        asked = index._description()
        held = asked | {"dim": index._index.d, "metric": _metric_name(index._index)}
        problem = _differences(asked, stated) or _differences(asked, held)
        if problem:
            raise BenchError(
                f"{path} is not the index that was asked for: {problem}",
                "delete it to build it again",
            )
        _set_parameters(index._index, spec)
        index._move_to_gpu()
        return index

    def _description(self) -> dict[str, Any]:
        return {
            "spec": str(self.spec),
            "dim": self.dim,
            "metric": "inner product",
            "count": len(self),
        }

    def _move_to_gpu(self) -> None:
        if self._gpu is None or self._resources:
            return
        faiss = import_faiss()
        self._resources = faiss.StandardGpuResources()
        try:
            self._index = faiss.index_cpu_to_gpu(self._resources, self._gpu, self._index)
        except RuntimeError as error:
            raise BenchError(
                f"{self.spec} cannot be on a GPU: {_reason(error)}", "use --device cpu"
            ) from error


def import_faiss() -> Any:
    """The module ``faiss``.

    Raises:
        BenchError: neither of its packages is installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise BenchError(
            f"FAISS cannot be imported: {error}",
            "pip install 'retrieval-bench[cpu]' (or [gpu] on Linux with CUDA; never both)",
        ) from error
    return faiss


def resolve_device(device: str) -> int | None:
    """Number of the GPU that FAISS uses for ``cuda`` or ``cuda:N``; None for ``cpu``.

    Raises:
        BenchError: an unknown device, or FAISS has no such GPU.
    """
    if device == "cpu":
        return None
    kind, _, number = device.partition(":")
    if kind != "cuda" or (":" in device and not number.isdecimal()):
        raise BenchError(f"unknown device {device!r} for search", "use cpu, cuda or cuda:N")
    faiss = import_faiss()
    count = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    if int(number or 0) >= count:
        raise BenchError(
            f"search on {device} was asked for, and this FAISS sees {count} GPUs",
            "use cpu, or install retrieval-bench[gpu] instead of [cpu]",
        )
    return int(number or 0)


def _create(spec: IndexSpec, dim: int) -> Any:
    faiss = import_faiss()
    if spec.is_exact:
        raise BenchError("flat is exact search over the vectors: there is no index to make")
    try:
        index = faiss.index_factory(dim, spec.factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise BenchError(
            f"FAISS cannot make {spec.factory!r} for {dim} dimensions: {_reason(error)}",
            f"known to work: {', '.join(INDEX_EXAMPLES)}",
        ) from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise BenchError(
            f"{spec.factory} cannot rank by inner product",
            f"known to work: {', '.join(INDEX_EXAMPLES)}",
        )
    return index


def _set_parameters(index: Any, spec: IndexSpec) -> None:
    faiss = import_faiss()
    space = faiss.ParameterSpace()
    for name, value in spec.parameters:
        try:
            space.set_index_parameter(index, name, value)
        except RuntimeError as error:
            raise _unknown_parameter(index, spec, name) from error


def _unknown_parameter(index: Any, spec: IndexSpec, name: str) -> BenchError:
    space = import_faiss().ParameterSpace()
    space.initialize(index)
    ranges = space.parameter_ranges
    known = [*sorted(ranges.at(i).name for i in range(ranges.size())), "seed"]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return BenchError(
        f"{spec.factory} has no parameter {name!r}", f"{hint}it has: {', '.join(known)}"
    )


def _parts(index: Any) -> Iterator[Any]:
    """An index and the indexes inside it, each as its own class."""
    faiss = import_faiss()
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index", "quantizer"):
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            yield from _parts(inner)


def _prepare_training(index: Any, spec: IndexSpec) -> None:
    """Seed what is random inside: k-means of inverted lists and codebooks, levels of graphs."""
    faiss = import_faiss()
    for part in _parts(index):
        for clustering in (getattr(part, "cp", None), getattr(_codebook(part), "cp", None)):
            if clustering is not None:
                clustering.seed = spec.seed
        if hasattr(part, "hnsw"):
            part.hnsw.rng = faiss.RandomGenerator(spec.seed)
        if hasattr(part, "do_polysemous_training"):
            # Most of the training time, and only a search with the parameter ht makes use of it.
            part.do_polysemous_training = any(name == "ht" for name, _ in spec.parameters)


def _codebook(part: Any) -> Any:
    return getattr(part, "pq", None)


def _centroids(index: Any) -> int:
    """Most centroids that any k-means inside learns, which is the fewest vectors that train it."""
    counts = [1]
    for part in _parts(index):
        counts.append(getattr(part, "nlist", 1))
        counts.append(getattr(_codebook(part), "ksub", 1))
    return max(counts)


def _read_parameters(query: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in query.split("&"):
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise ValueError(f"{pair!r} is not name=number")
        if name in values:
            raise ValueError(f"{name} comes twice")
        values[name] = value
    return values


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _metric_name(index: Any) -> str:
    inner = index.metric_type == import_faiss().METRIC_INNER_PRODUCT
    return "inner product" if inner else f"FAISS metric {index.metric_type}"


def _differences(found: Mapping[str, Any], stated: Any) -> str:
    if not isinstance(stated, dict):
        return "its description is not a JSON object"
    names = [name for name in found if found[name] != stated.get(name)]
    return ", ".join(f"{name} {stated.get(name)!r} instead of {found[name]!r}" for name in names)


def _reason(error: Exception) -> str:
    """The error's first line, without the C++ signature that FAISS puts before it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _FAISS_SOURCE.sub("", lines[0])


def _bad_spec(text: str, why: str) -> BenchError:
    return BenchError(
        f"cannot read the index {text!r}: {why}",
        "write flat, or a FAISS factory string and its parameters: IVF4096,PQ64?nprobe=64&seed=0",
    )
