"""Approximate indexes of FAISS, and how users name a method of search.

FAISS creates indexes from factory strings that it cannot use: some refuse documents later, some
end the process. Known problems are checked on the created index, before any work.
"""

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError, did_you_mean, first_line, import_package, is_out_of_memory
from retrievers.index.hits import Hits

logger = logging.getLogger(__name__)

FLAT = "flat"
BM25 = "bm25"
MAX_SEED = 2**31 - 1  # an int of C
# FAISS's k-means draws at most this many training points for each centroid.
POINTS_PER_CENTROID = 256
ADVISED_POINTS_PER_CENTROID = 39
# C++ exceptions as SWIG raises them, and failed allocations.
FAISS_ERRORS = (RuntimeError, MemoryError)
_FAISS_SOURCE = re.compile(r"^Error in .*?\.(?:cpp|h|cu):\d+: (?:Error: )?")

MAX_FACTORY_LENGTH = 200  # characters; FAISS reads nested brackets recursively
MAX_SIZE = 1 << 24  # lists, links or dimensions, which FAISS allocates before any vector
MAX_CODE_BITS = 16  # per code of a product quantiser, whose codebook has 2 ** bits entries
_NUMBER = re.compile(r"\d+")
_CODE_BITS = re.compile(r"x(\d+)")
_INNER_ATTRIBUTES = ("index", "base_index", "refine_index", "storage", "quantizer")
# Default shared memory of a thread block on all NVIDIA GPUs so far. FAISS stores the lookup tables
# for one query and list in it (GpuIndexIVFPQ.cu, verifyPQSettings_), or the candidates of a scan.
SHARED_BYTES = 48 << 10

# What FAISS stores in an index of float vectors, by their precision.
STORAGE = {"float16": "SQfp16", "int8": "SQ8", "uint8": "SQ8"}
BINARY_FACTORY = re.compile(r"B(?:Flat|IVF\d+|HNSW\d+)")

GPU_DEPTH = 2048  # of FAISS
SCAN_DEPTHS = (32, 64, 128, 256, 512)  # for which FAISS compiles a scan that leaves memory free
CANDIDATE_BYTES = 4 * 12  # of a rank in a scan: a score and an id for each of four warps

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


def import_faiss() -> Any:
    """Return the module ``faiss``, or raise if it is not installed."""
    hint = "Pip install 'retrieval-bench[cpu]' (or [gpu] on Linux with CUDA; never both)."
    return import_package("faiss", "FAISS cannot be imported", hint)


def resolve_device(device: str) -> tuple[int, ...]:
    """Return the GPUs that FAISS uses on ``device``: all for ``cuda``, N for ``cuda:N``, or none.

    Raises:
        BenchError: FAISS does not see that GPU.
    """
    if device == "cpu":
        return ()
    number = device.partition(":")[2]
    count = getattr(import_faiss(), "get_num_gpus", lambda: 0)()
    if int(number or 0) >= count:
        problem = f"search on {device} is not available: this FAISS sees {count} GPUs"
        raise BenchError(problem, "Use cpu, or install retrieval-bench[gpu] instead of [cpu]")
    return (int(number),) if number else tuple(range(count))


@dataclass(frozen=True)
class IndexSpec:
    """Method of search: ``flat``, ``bm25``, or a FAISS factory string with its parameters.

    In ``IVF4096,PQ64?nprobe=64&seed=0`` parameters follow the factory string: those of FAISS's
    ``ParameterSpace``, and the seed of training. ``str`` gives the canonical form, sorted by name.

    Attributes:
        factory: FAISS factory string, or ``flat`` or ``bm25``.
        parameters: names and values, sorted by name.
        seed: seed of the training sample, k-means and graph levels.
    """

    factory: str
    parameters: tuple[tuple[str, float], ...] = ()
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> "IndexSpec":
        """Parse ``text`` as users type it. FAISS checks the rest when the index is created.

        Raises:
            BenchError: a parameter is not ``name=number`` or is repeated, the factory string is
                empty, or ``flat`` or ``bm25`` has parameters.
        """
        factory, _, query = text.strip().partition("?")
        try:
            pairs = [pair.split("=") for pair in query.split("&")] if query else []
            values = {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0]}
            if len(values) < len(pairs):
                raise ValueError("parameters are name=number and must not repeat")
            seed = int(values.pop("seed", "0"))
            parameters = {name: float(value) for name, value in values.items()}
        except ValueError as error:
            raise _spec_error(text, str(error)) from error
        if not factory or not all(map(math.isfinite, parameters.values())):
            raise _spec_error(text, "no factory string, or an infinite parameter")
        if not 0 <= seed <= MAX_SEED:
            raise _spec_error(text, f"a seed is 0 to {MAX_SEED}")
        if factory in (FLAT, BM25) and query:
            raise _spec_error(text, f"{factory} has no parameters")
        return cls(factory, tuple(sorted(parameters.items())), seed)

    @property
    def needs_faiss(self) -> bool:
        """True for an index of FAISS, which is built from the vectors."""
        return self.factory not in (FLAT, BM25)

    @property
    def is_binary(self) -> bool:
        """True for an index of FAISS that stores signs and ranks by Hamming distance."""
        return BINARY_FACTORY.fullmatch(self.factory) is not None

    def with_precision(self, precision: str) -> "IndexSpec":
        """Return the index that stores documents in ``precision``, see `Compression`.

        Raises:
            BenchError: the factory string states another precision.
        """
        is_binary = precision in ("binary", "ubinary")
        if not self.needs_faiss or (precision == "float32" and not self.is_binary):
            return self
        front, comma, storage = self.factory.rpartition(",")
        if storage == "Flat" and not is_binary and precision in STORAGE:
            factory = f"{front}{comma}{STORAGE[precision]}"
        elif re.fullmatch(r"HNSW\d+", self.factory) and precision in STORAGE:
            factory = f"{self.factory},{STORAGE[precision]}"
        elif is_binary and re.fullmatch(r"Flat|(IVF|HNSW)\d+(,Flat)?", self.factory):
            factory = f"B{self.factory.removesuffix(',Flat')}"
        elif storage == STORAGE.get(precision) or (is_binary and self.is_binary):
            factory = self.factory
        else:
            problem = f"the index {self} cannot store documents in {precision}"
            raise BenchError(problem, "Use Flat, HNSW32 or IVF1024,Flat; or --precision float32.")
        return replace(self, factory=factory)

    @property
    def is_bm25(self) -> bool:
        """True if BM25 retrieves the documents, whose scores are multiplied by similarities."""
        return self.factory == BM25

    def __str__(self) -> str:
        pairs = [f"{name}={value!r}".removesuffix(".0") for name, value in self.parameters]
        if self.seed:
            pairs.append(f"seed={self.seed}")
        return "?".join(filter(None, (self.factory, "&".join(pairs))))


class FaissIndex:
    """An approximate index that ranks by inner product, with its own scores.

    Lists and codebooks are trained on ``device``: the seed determines them on one kind of device.
    An index that FAISS cannot search on a GPU is searched on the CPU, with a warning. Graphs (HNSW)
    that are built by several threads differ a little between builds, since FAISS inserts in
    parallel.

    Args:
        spec: an index of FAISS.
        dim: dimension of the vectors.
        device: ``cpu``, ``cuda`` (all GPUs that FAISS sees) or ``cuda:N``.

    Raises:
        BenchError: FAISS or the device is missing, the factory string or a parameter is unknown, or
            such an index cannot rank by inner product or add documents tile by tile.
    """

    def __init__(self, spec: IndexSpec, dim: int, device: str = "cpu") -> None:
        self.spec = spec
        self.dim = dim
        self._training_gpus = self._gpus = resolve_device(device)
        self._resources: Any = None  # resources of the GPUs once the index is there
        self._index = _create_index(spec, dim)
        self._gpu_depth = largest_gpu_depth(self._index)
        if self._gpus and not self._gpu_depth:
            self._use_cpu("FAISS has no such index on a GPU")
        _seed_training(self._index, spec)
        _set_parameters(self._index, spec)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def device(self) -> str:
        """Device of the search so far: ``cpu`` or ``cuda``."""
        return "cuda" if self._gpus else "cpu"

    @property
    def code_bytes(self) -> int:
        """Size of the code of one document, without its id or links."""
        outer = next(_walk_index(self._index))
        storage = next(_walk_index(getattr(outer, "storage", None) or outer))
        return int(getattr(storage, "code_size", None) or storage.sa_code_size())

    @property
    def needs_training(self) -> bool:
        """True if ``train`` must be called before ``add``."""
        return not self._index.is_trained

    @property
    def needs_only_ranges(self) -> bool:
        """True if training finds the range of each dimension and nothing else."""
        return re.fullmatch(r"(HNSW\d+,)?SQ8", self.spec.factory) is not None

    def training_rows(self, count: int) -> Int64Array:
        """Draw sorted rows (int64) of a corpus of ``count`` documents to train on, by the seed."""
        wanted = min(count, POINTS_PER_CENTROID * _most_centroids(self._index))
        chosen = np.random.default_rng(self.spec.seed).choice(count, wanted, replace=False)
        return np.sort(chosen)

    def train(self, sample: Float32Array) -> None:
        """Learn centroids and codebooks from ``sample``, float32 ``(m, dim)``.

        Raises:
            BenchError: the sample is too small for this index.
        """
        needed = _most_centroids(self._index)
        if len(sample) < needed:
            problem = f"{self.spec} needs at least {needed} training vectors, not {len(sample)}"
            raise BenchError(problem, "Use a smaller index, or --index flat.")
        advised = ADVISED_POINTS_PER_CENTROID * needed
        if needed > 1 and len(sample) < advised:
            logger.warning(
                "%s is trained on %d vectors, and FAISS advises %d or more: its recall may suffer",
                self.spec,
                len(sample),
                advised,
            )
        try:
            with _k_means_on_gpus(self._index, self._training_gpus):
                self._index.train(self._as_stored(sample))
        except FAISS_ERRORS as error:
            raise self._refusal("cannot be trained", error) from error

    def add(self, tile: Float32Array) -> None:
        """Append the documents ``tile``, float32 ``(m, dim)``, with rising row numbers."""
        if len(self._gpus) == 1:  # several share an index that is whole
            self._move_to_gpu()
        try:
            self._index.add(self._as_stored(tile))
        except FAISS_ERRORS as error:
            raise self._refusal("cannot hold documents", error) from error

    def search(self, queries: Float32Array, k: int) -> Hits:
        """Return the ``k`` best documents of ``queries``, float32 ``(q, dim)``.

        Raises:
            BenchError: FAISS rejects a parameter.
        """
        if self._gpus and k > self._gpu_depth:
            self._use_cpu(f"FAISS finds at most {self._gpu_depth} documents on a GPU, not {k}")
        self._move_to_gpu()
        try:
            scores, rows = self._index.search(self._as_stored(queries), k)
        except FAISS_ERRORS as error:
            raise self._refusal("cannot be searched", error, "look at its parameters") from error
        if self.spec.is_binary:  # inner products of signs, from numbers of different signs
            scores = (self.dim - 2 * scores).astype(np.float32)
        return Hits.of(scores, rows)

    def save(self, path: Path) -> None:
        """Write the index to ``path`` in FAISS's format.

        Raises:
            BenchError: FAISS cannot write it, for example to a full disk.
        """
        faiss = import_faiss()
        index = self._index
        if self._resources:
            index = faiss.index_gpu_to_cpu(index)
        write = faiss.write_index_binary if self.spec.is_binary else faiss.write_index
        try:
            write(index, str(path))
        except FAISS_ERRORS as error:
            raise BenchError(f"{path} cannot be written: {_reason(error)}") from error

    @classmethod
    def load(cls, path: Path, spec: IndexSpec, dim: int, device: str = "cpu") -> "FaissIndex":
        """Read an index that ``save`` wrote; see the class for the arguments.

        Raises:
            BenchError: the file is missing or damaged, or has another dimension or metric.
        """
        index, faiss = cls(spec, dim, device), import_faiss()
        again = "Delete it to build it again."
        read = faiss.read_index_binary if spec.is_binary else faiss.read_index
        width, metric = index._index.d, index._index.metric_type
        try:
            index._index = read(str(path))
        except (OSError, *FAISS_ERRORS) as error:
            raise BenchError(f"cannot read the index {path}: {_reason(error)}", again) from error
        loaded = index._index
        if loaded.d != width or loaded.metric_type != metric:
            problem = f"{path} has {loaded.d} dimensions and metric {loaded.metric_type}, not {dim}"
            raise BenchError(problem, again)
        _set_parameters(loaded, spec)
        index._move_to_gpu()
        return index

    def _as_stored(self, vectors: Float32Array) -> Any:
        """Return float32 vectors in C order, or their signs, eight in a byte."""
        packed = np.packbits(vectors > 0, axis=1) if self.spec.is_binary else vectors
        return np.ascontiguousarray(packed)

    def _move_to_gpu(self) -> None:
        if not self._gpus or self._resources:
            return
        try:
            self._index, self._resources = _copy_to_gpus(self._index, self._gpus)
        except FAISS_ERRORS as error:
            if is_out_of_memory(error):
                raise self._refusal("cannot be on a GPU", error) from error
            self._use_cpu(_reason(error))

    def _use_cpu(self, why: str) -> None:
        """Search on the CPU from now on, with a warning."""
        logger.warning("%s is searched on the CPU: %s", self.spec, why)
        if self._resources:
            self._index, self._resources = import_faiss().index_gpu_to_cpu(self._index), None
        self._gpus = ()

    def _refusal(self, what: str, error: Exception, hint: str = "") -> BenchError:
        """Return the error for a call that FAISS rejected."""
        if self._gpus and is_out_of_memory(error):
            what += ": the memory of the GPU is too small"
            hint = "Use --device cpu, or a smaller index such as IVF4096,PQ64?nprobe=64"
        return BenchError(f"{self.spec} {what}: {_reason(error)}", hint)


def _create_index(spec: IndexSpec, dim: int) -> Any:
    faiss = import_faiss()
    factory, works = spec.factory, f"Use one that works: {', '.join(INDEX_EXAMPLES)}."
    if not spec.needs_faiss:
        raise BenchError(f"{spec} searches stored vectors without an index")
    _check_sizes(factory)
    try:
        if spec.is_binary:
            return faiss.index_binary_factory(8 * math.ceil(dim / 8), factory)
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except FAISS_ERRORS as error:
        why = f"FAISS cannot make {factory!r} for {dim} dimensions: {_reason(error)}"
        raise BenchError(why, works) from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise BenchError(f"{factory} cannot rank by inner product", works)
    for part in _walk_index(index):
        problem, instead = _find_problem(part)
        if problem:
            raise BenchError(f"{factory} cannot be used: {problem}", f"Use {instead}.")
    return index


def _check_sizes(factory: str) -> None:
    """Raise if a factory string has a size that FAISS would use unchecked."""
    if len(factory) > MAX_FACTORY_LENGTH or not factory.isascii():
        limit = f"{MAX_FACTORY_LENGTH} ASCII characters"
        raise BenchError(f"{factory[:40]!a}... is not a FAISS factory string of at most {limit}")
    if any(not 1 <= int(number) <= MAX_SIZE for number in _NUMBER.findall(factory)):
        raise BenchError(f"{factory}: its sizes must be between 1 and {MAX_SIZE:,}")
    if any(int(bits) > MAX_CODE_BITS for bits in _CODE_BITS.findall(factory)):
        raise BenchError(f"{factory} has codes of more than {MAX_CODE_BITS} bits", "Use 8 bits.")


def _find_problem(part: Any) -> tuple[str, str]:
    """Return why an index cannot add documents tile by tile or would end the process, if so.

    The second value is an index that can. Both are empty if there is no problem.
    """
    faiss = import_faiss()
    if isinstance(part, (faiss.IndexIDMap, faiss.IndexIDMap2)):
        return "IDMap has ids of its own, and here rows are the ids", "the string without IDMap"
    if isinstance(part, (faiss.IndexNSG, faiss.IndexNNDescent)):
        return "NSG is built from all vectors at once, and documents come in pieces", "HNSW32"
    if isinstance(part, faiss.IndexHNSW) and part.hnsw.cum_nneighbor_per_level.size() < 2:
        return "a graph has 2 links or more for each vector", "HNSW32"
    if isinstance(part, faiss.IndexRefine):
        refined = faiss.downcast_index(part.refine_index)
        if not isinstance(refined, faiss.IndexFlatCodes):
            return "it is refined on vectors that FAISS cannot read one by one", "RFlat"
    if isinstance(part, faiss.IndexIVF):
        inner = _walk_index(part.quantizer)
        if any(isinstance(index, faiss.IndexIVF) for index in inner):
            # Such a search may find no list, and FAISS then reads a list that does not exist.
            return "its lists are found by a search in lists", "IVF4096 or IVF65536_HNSW32"
    return "", ""


def _walk_index(index: Any) -> Iterator[Any]:
    """Yield an index and the indexes inside it, each as its own class."""
    faiss = import_faiss()
    if isinstance(index, faiss.Index):  # and not a binary one
        index = faiss.downcast_index(index)
    yield index
    for name in _INNER_ATTRIBUTES:
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            yield from _walk_index(inner)


def _seed_training(index: Any, spec: IndexSpec) -> None:
    """Seed the random steps: k-means of inverted lists and codebooks, levels of graphs.

    Polysemous codes take most of the training time, so they are trained only if the parameter
    ``ht`` is given.
    """
    faiss = import_faiss()
    for part in _walk_index(index):
        clusterings = (getattr(owner, "cp", None) for owner in (part, getattr(part, "pq", None)))
        for clustering in filter(None, clusterings):
            clustering.seed = spec.seed
            clustering.min_points_per_centroid = 1  # FAISS would warn for each codebook
        if hasattr(part, "hnsw"):
            part.hnsw.rng = faiss.RandomGenerator(spec.seed)
        if hasattr(part, "do_polysemous_training"):
            part.do_polysemous_training = "ht" in dict(spec.parameters)


def _most_centroids(index: Any) -> int:
    """Return the largest number of centroids inside, which is the fewest vectors for training."""
    counts = [1]
    for part in _walk_index(index):
        counts.append(getattr(part, "nlist", 1))
        counts.append(getattr(getattr(part, "pq", None), "ksub", 1))
        additive = getattr(part, "aq", None)
        if additive is not None:
            bits = [int(additive.nbits.at(i)) for i in range(additive.nbits.size())]
            counts.append(1 << max(bits))
    return max(counts)


def largest_gpu_depth(index: Any) -> int:
    """Return the largest depth at which FAISS searches an index on a GPU; 0 if it cannot.

    A scan of lists keeps its candidates, for the next power of two of the depth, in the shared
    memory of a thread block: from 513 on, they fill it. A scalar quantiser keeps its ranges there
    too, 8 bytes per dimension. FAISS 1.15 does not check whether both fit, and CUDA's error ends
    the process (IVFInterleaved.cuh, GpuScalarQuantizer.cuh).
    """
    faiss = import_faiss()
    index = next(_walk_index(index))
    while isinstance(index, faiss.IndexPreTransform):
        index = faiss.downcast_index(index.index)
    if type(index) is faiss.IndexScalarQuantizer:
        return GPU_DEPTH if index.sq.qtype == index.sq.QT_fp16 else 0
    if type(index) is faiss.IndexIVFScalarQuantizer:
        if index.sq.qtype not in (index.sq.QT_8bit, index.sq.QT_6bit, index.sq.QT_4bit):
            return GPU_DEPTH
        ranges = 8 * index.d
        fitting = (k for k in SCAN_DEPTHS if CANDIDATE_BYTES * k + ranges <= SHARED_BYTES)
        return max(fitting, default=0)
    # Subclasses would lose what they add.
    kinds = (faiss.IndexFlat, faiss.IndexFlatIP, faiss.IndexIVFFlat, faiss.IndexIVFPQ)
    return GPU_DEPTH if type(index) in kinds else 0


def trained_on(spec: IndexSpec, dim: int, device: str) -> str:
    """Return ``cuda`` if lists or codebooks of an index are trained on a GPU, else ""."""
    return "cuda" if device != "cpu" and any(_k_means(_create_index(spec, dim))) else ""


def _k_means(index: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield what trains by k-means, its attribute for the index that assigns vectors, and it."""
    faiss = import_faiss()
    for part in _walk_index(index):
        if hasattr(part, "clustering_index"):
            yield part, "clustering_index", faiss.IndexFlatIP(part.d)
        if hasattr(getattr(part, "pq", None), "assign_index"):
            yield part.pq, "assign_index", faiss.IndexFlatL2(part.pq.dsub)


@contextmanager
def _k_means_on_gpus(index: Any, gpus: Sequence[int]) -> Iterator[None]:
    """Let the training of an index assign vectors to centroids on GPUs, if there are any."""
    copies = [
        (owner, name, *_copy_to_gpus(flat, gpus))
        for owner, name, flat in (_k_means(index) if gpus else ())
    ]
    try:
        for owner, name, copied, _ in copies:
            setattr(owner, name, copied)
        yield
    finally:
        for owner, name, _, _ in copies:
            setattr(owner, name, None)


def lookup_table_bytes(index: Any) -> int:
    """Return the size of float32 lookup tables of the IVFPQ indexes inside ``index``, or 0."""
    faiss = import_faiss()
    parts = (part for part in _walk_index(index) if isinstance(part, faiss.IndexIVFPQ))
    return max((4 * part.pq.M * part.pq.ksub for part in parts), default=0)


def _copy_to_gpus(index: Any, gpus: Sequence[int]) -> tuple[Any, Any]:
    """Return the index on GPUs, and resources that must live as long.

    Each of several GPUs holds the whole index and searches some queries; if one lacks the memory,
    each holds some documents. Lookup tables of product quantisation are float16 if they do not fit
    in float32, which leaves scores eleven bits instead of 24.
    """
    faiss = import_faiss()
    resources = [faiss.StandardGpuResources() for _ in gpus]
    options, needed = faiss.GpuMultipleClonerOptions(), lookup_table_bytes(index)
    options.useFloat16 = needed > SHARED_BYTES
    if options.useFloat16:
        logger.warning(
            "lookup tables are float16 on the GPU: float32 takes %d bytes of its %d",
            needed,
            SHARED_BYTES,
        )
    try:
        return faiss.index_cpu_to_gpu_multiple_py(resources, index, options, gpus), resources
    except FAISS_ERRORS as error:
        if len(gpus) == 1 or not is_out_of_memory(error):
            raise
    logger.warning("the index is split over %d GPUs, since one cannot hold all of it", len(gpus))
    options.shard = True
    return faiss.index_cpu_to_gpu_multiple_py(resources, index, options, gpus), resources


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
    hint = f"{did_you_mean(name, known)} Use one of {', '.join(known)}.".strip()
    return BenchError(f"{spec.factory} has no parameter {name!r}", hint)


def _reason(error: Exception) -> str:
    """Return the first line of an error without the C++ signature that FAISS puts before it."""
    return _FAISS_SOURCE.sub("", first_line(error))


def _spec_error(text: str, why: str) -> BenchError:
    return BenchError(
        f"cannot read the index {text!r}: {why}",
        "Write flat, or a FAISS factory string and its parameters: IVF4096,PQ64?nprobe=64&seed=0",
    )


def faiss_device(device: str) -> str:
    """Return the device of FAISS for ``device``: a GPU if this FAISS supports it, else the CPU."""
    if device == "cpu" or not getattr(import_faiss(), "get_num_gpus", lambda: 0)():
        return "cpu"
    return "cuda" if device == "auto" else device
