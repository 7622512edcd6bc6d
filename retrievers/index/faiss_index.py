"""Vectors to neighbours: what a search returns, and the approximate indexes of FAISS."""

import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError, did_you_mean, first_line, lacks_memory
from retrievers.index import library
from retrievers.index.library import FAISS_ERRORS, import_faiss, resolve_device

logger = logging.getLogger(__name__)

FLAT = "flat"
BM25 = "bm25"
MAX_SEED = 2**31 - 1  # an int of C
# FAISS's k-means draws at most this many training points for each centroid.
POINTS_PER_CENTROID = 256
# FAISS warns below so many, once for each codebook and iteration.
ADVISED_POINTS_PER_CENTROID = 39
_FAISS_SOURCE = re.compile(r"^Error in .*?\.(?:cpp|h|cu):\d+: (?:Error: )?")

INDEX_EXAMPLES: Mapping[str, str] = {
    "flat": "exact search over the vectors themselves; the default",
    "bm25": "BM25's best documents, by its score times the similarity, as LaPraDoR is scored",
    "HNSW32?efSearch=128": "graph; fast and accurate, and as large as the vectors and more",
    "IVF4096,Flat?nprobe=64": "inverted lists; nprobe of them are searched",
    "IVF4096,PQ64?nprobe=64&seed=0": "inverted lists of vectors compressed to 64 bytes",
    "PQ64": "vectors compressed to 64 bytes, all compared",
    "SQfp16": "vectors in float16, all compared",
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
    """Method of search: ``flat``, ``bm25``, or a FAISS factory string with its parameters.

    ``IVF4096,PQ64?nprobe=64&seed=0``: the factory string, then what FAISS's ``ParameterSpace``
    sets, and the seed of training. ``str`` gives the canonical form (parameters by name).

    Attributes:
        factory: FAISS factory string, or ``flat`` or ``bm25``.
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
                string is empty, or ``flat`` or ``bm25`` has parameters.
        """
        factory, _, query = text.strip().partition("?")
        try:
            values = _read_parameters(query) if query else {}
            seed = int(values.pop("seed", "0"))
            parameters = {name: float(value) for name, value in values.items()}
        except ValueError as error:
            raise _bad_spec(text, str(error)) from error
        if not factory or not all(map(math.isfinite, parameters.values())):
            raise _bad_spec(text, "no factory string, or an infinite parameter")
        if not 0 <= seed <= MAX_SEED:
            raise _bad_spec(text, f"a seed is 0 to {MAX_SEED}")
        if factory in (FLAT, BM25) and query:
            raise _bad_spec(text, f"{factory} has no parameters")
        return cls(factory, tuple(sorted(parameters.items())), seed)

    @property
    def needs_faiss(self) -> bool:
        """True of an index of FAISS, which is built over the vectors."""
        return self.factory not in (FLAT, BM25)

    @property
    def is_bm25(self) -> bool:
        """True where BM25 finds the documents, and its scores are multiplied with similarities."""
        return self.factory == BM25

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
        spec: whose ``needs_faiss`` is true.
        dim: length of a vector.
        device: ``cpu``, ``cuda`` (all that FAISS sees) or ``cuda:N``.

    Raises:
        BenchError: FAISS or the device is missing, the factory string or a parameter is
            unknown, or this kind of index has no inner product or cannot take documents in pieces.
    """

    def __init__(self, spec: IndexSpec, dim: int, device: str = "cpu") -> None:
        self.spec = spec
        self.dim = dim
        self._gpus = resolve_device(device)
        self._resources: Any = None  # of the GPUs, once the index is there
        self._index = _create(spec, dim)
        library.seed_training(
            self._index, spec.seed, any(name == "ht" for name, _ in spec.parameters)
        )
        _set_parameters(self._index, spec)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def needs_training(self) -> bool:
        """True where ``train`` must come before ``add``."""
        return not self._index.is_trained

    def training_rows(self, count: int) -> Int64Array:
        """Rows of a corpus of ``count`` documents to train on: sorted, drawn with the seed."""
        wanted = min(count, POINTS_PER_CENTROID * library.most_centroids(self._index))
        chosen = np.random.default_rng(self.spec.seed).choice(count, wanted, replace=False)
        return np.sort(chosen)

    def train(self, sample: Float32Array) -> None:
        """Learn centroids and codebooks from a sample ``(m, dim)``.

        Raises:
            BenchError: the sample is too small for this index.
        """
        needed = library.most_centroids(self._index)
        if len(sample) < needed:
            raise BenchError(
                f"{self.spec} needs at least {needed} vectors to train, there are {len(sample)}",
                "use a smaller index, or --index flat",
            )
        advised = ADVISED_POINTS_PER_CENTROID * needed
        if needed > 1 and len(sample) < advised:
            logger.warning(
                "%s is trained on %d vectors, and FAISS advises %d or more: its recall may suffer",
                self.spec,
                len(sample),
                advised,
            )
        try:
            with _silent_stderr():
                self._index.train(sample)
        except FAISS_ERRORS as error:
            raise BenchError(f"{self.spec} cannot be trained: {_reason(error)}") from error

    def add(self, tile: Float32Array) -> None:
        """Append documents ``(m, dim)``; rows number them in the order of adding.

        Raises:
            BenchError: not trained, this index cannot be on the GPU, or FAISS refuses.
        """
        if self.needs_training:
            raise BenchError(f"{self.spec} must be trained before documents are added")
        if len(self._gpus) == 1:  # several share an index that is whole
            self._move_to_gpu()
        try:
            self._index.add(tile)
        except FAISS_ERRORS as error:
            raise self._refused("cannot hold documents", error) from error

    def search(self, queries: Float32Array, k: int) -> Hits:
        """The k best of each query ``(q, dim)`` by this index's own scores.

        Raises:
            BenchError: k is less than 1, or more than the GPU can (2,048), or FAISS refuses a
                parameter.
        """
        if k < 1 or (self._gpus and k > library.MAX_K):
            limit = f" to {library.MAX_K} on the GPU" if self._gpus else " or more"
            raise BenchError(f"depth {k}: it must be 1{limit}")
        queries = np.ascontiguousarray(queries)
        self._move_to_gpu()
        find = partial(library.search_on_gpu, self._index) if self._gpus else self._index.search
        try:
            scores, rows = find(queries, k)
        except FAISS_ERRORS as error:
            raise self._refused("cannot be searched", error, "look at its parameters") from error
        return Hits(np.where(rows >= 0, scores, np.float32(-np.inf)), rows)

    def save(self, path: Path) -> None:
        """Write the index as FAISS does.

        Raises:
            BenchError: FAISS cannot write it, as on a full disk.
        """
        faiss = import_faiss()
        index = self._index
        if self._resources:
            index = library.to_cpu(index, _create(self.spec, self.dim))
        try:
            faiss.write_index(index, str(path))
        except FAISS_ERRORS as error:
            raise BenchError(f"{path} cannot be written: {_reason(error)}") from error

    @classmethod
    def load(cls, path: Path, spec: IndexSpec, dim: int, device: str = "cpu") -> "FaissIndex":
        """Read a saved index of a spec and dimension.

        Raises:
            BenchError: it is missing, damaged, or of another dimension or metric.
        """
        index = cls(spec, dim, device)
        again = "delete it to build it again"
        try:
            index._index = import_faiss().read_index(str(path))
        except (OSError, *FAISS_ERRORS) as error:
            raise BenchError(f"cannot read the index {path}: {_reason(error)}", again) from error
        held = index._index
        if held.d != dim or held.metric_type != import_faiss().METRIC_INNER_PRODUCT:
            raise BenchError(
                f"{path} has {held.d} dimensions and FAISS metric {held.metric_type}, not {dim} "
                "and the inner product",
                again,
            )
        _set_parameters(held, spec)
        index._move_to_gpu()
        return index

    def _move_to_gpu(self) -> None:
        if not self._gpus or self._resources:
            return
        try:
            self._index, self._resources = library.move_to_gpu(self._index, self._gpus)
        except FAISS_ERRORS as error:
            raise self._refused("cannot be on a GPU", error, "use --device cpu") from error

    def _refused(self, what: str, error: Exception, hint: str = "") -> BenchError:
        """Error for what FAISS refused, with a hint; an index too large for a GPU says so."""
        if self._gpus and lacks_memory(error):
            what += ": the memory of the GPU is too small"
            hint = "use --device cpu, or a smaller index such as IVF4096,PQ64?nprobe=64"
        return BenchError(f"{self.spec} {what}: {_reason(error)}", hint)


def _create(spec: IndexSpec, dim: int) -> Any:
    faiss = import_faiss()
    if not spec.needs_faiss:
        raise BenchError(f"{spec} searches the vectors as they are stored: no index is made")
    library.check_factory(spec.factory)
    try:
        index = faiss.index_factory(dim, spec.factory, faiss.METRIC_INNER_PRODUCT)
    except FAISS_ERRORS as error:
        raise BenchError(
            f"FAISS cannot make {spec.factory!r} for {dim} dimensions: {_reason(error)}",
            f"known to work: {', '.join(INDEX_EXAMPLES)}",
        ) from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise BenchError(
            f"{spec.factory} cannot rank by inner product",
            f"known to work: {', '.join(INDEX_EXAMPLES)}",
        )
    library.check_usable(index, spec.factory)
    return index


def _set_parameters(index: Any, spec: IndexSpec) -> None:
    faiss = import_faiss()
    space = faiss.ParameterSpace()
    for name, value in spec.parameters:
        if name == "verbose":  # FAISS would write to stdout, among the results
            raise _unknown_parameter(index, spec, name)
        try:
            space.set_index_parameter(index, name, value)
        except FAISS_ERRORS as error:
            raise _unknown_parameter(index, spec, name) from error


def _unknown_parameter(index: Any, spec: IndexSpec, name: str) -> BenchError:
    space = import_faiss().ParameterSpace()
    space.initialize(index)
    ranges = space.parameter_ranges
    known = [*sorted(ranges.at(i).name for i in range(ranges.size())), "seed"]
    hint = f"{did_you_mean(name, known)} it has: {', '.join(known)}".strip()
    return BenchError(f"{spec.factory} has no parameter {name!r}", hint)


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


def _reason(error: Exception) -> str:
    """The error's first line, without the C++ signature that FAISS puts before it."""
    return _FAISS_SOURCE.sub("", first_line(error))


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Send what C++ writes to standard error nowhere: k-means warns once for each codebook.

    The file descriptor is the whole process's, so that another thread is silent meanwhile too.
    """
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _bad_spec(text: str, why: str) -> BenchError:
    return BenchError(
        f"cannot read the index {text!r}: {why}",
        "write flat, or a FAISS factory string and its parameters: IVF4096,PQ64?nprobe=64&seed=0",
    )
