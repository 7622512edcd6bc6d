"""Requests that evaluate models: `run`, `work`, `index`, `score` and `speed`."""

from pathlib import Path
from typing import Any, Literal

import attrs

from bench.requests.fields import (
    RESULTS,
    FolderFields,
    HardwareFields,
    MismatchFields,
    ModelFields,
    ProtocolFields,
    Request,
    WorkerFields,
    to_items,
    to_names,
    to_optional_location,
    to_path,
)
from foundation.locations import Location

Part = Literal["encode", "latency", "indexes"]
Tool = Literal["sentence-transformers", "sentence-transformers-openvino", "beir", "mteb"]


@attrs.frozen(kw_only=True, slots=False)
class EvaluationFields(ProtocolFields, ModelFields, HardwareFields, FolderFields):
    """Settings of an evaluation.

    Attributes:
        measure: Further measure to report, instead of the collection's; several are possible (see
            `list measures`).
        name: Name of the model in results (single model only). Default: its own name, or
            MODEL+ADAPTER with an adapter. Required for a Python object.
        recompute: Evaluate again from cached vectors, even if the result is stored.
        index: flat (exact search), a FAISS factory string with search parameters (see `list
            indexes`), a folder written by `index`, or bm25 (candidates from BM25, ranked by BM25
            score times similarity).
        recall_queries: Measure the recall of an approximate index on N queries, drawn with a fixed
            seed; 0 skips it. Default: all queries, once per index.
        fingerprint: Identifier of a Python object's weights, which must change whenever its vectors
            do. Vectors are stored under it; without one, texts are encoded again each time.
        similarity: Similarity of a Python object. Default: that of a SentenceTransformer, else dot.
    """

    section = Request.section

    measure: tuple[str, ...] = attrs.field(default=(), converter=to_names)
    name: str = ""
    recompute: bool = False
    index: str = attrs.field(default="flat", converter=str)
    recall_queries: int | None = None
    fingerprint: str | None = None
    similarity: Literal["dot", "cos"] | None = None


@attrs.frozen(slots=False)
class RunRequest(EvaluationFields, WorkerFields):
    """Evaluate models on collections.

    Print a table per collection, then the means of suites. Vectors are cached, so an interrupted
    run continues. A stored result is returned if no input changed. If a model or collection cannot
    be used, the others are evaluated and the gap is shown with its reason. Exit codes: 0 complete,
    4 with gaps, 2 nothing was evaluated.

    Attributes:
        names: Collections, suites or folders (see `list datasets` and `list suites`; a suite of
            your own is a TOML file).
        model: Models: names (see `list models`), card files, folders or Hub ids.
        limit: Quick trial on the first N queries, with their judged documents and 10 N others. Its
            scores are inflated, so they are marked, stored as NAME/firstN and left out of means.
        results: Folder of stored results, or a URL such as s3://bucket/prefix. None keeps them in
            memory (Python only).
    """

    names: tuple[Any, ...] = attrs.field(converter=to_items)
    model: tuple[Any, ...] = attrs.field(kw_only=True, converter=to_items)
    limit: int | None = attrs.field(default=None, kw_only=True)
    results: Location | None = attrs.field(
        default=RESULTS, converter=to_optional_location, kw_only=True
    )


@attrs.frozen(slots=False)
class EvaluateRequest(EvaluationFields):
    """Evaluate one model on one collection, like ``bench run``.

    Attributes:
        model: Name of `list models`, card file, folder, Hub id, or any object that encodes: a
            `SentenceTransformer`, an object with beir's ``encode_queries`` and ``encode_corpus``,
            an encoder of mteb 2, or a function from a list of texts to an array ``(n, dim)``.
        dataset: Name of `list datasets`, folder, or `Dataset.from_dicts`.
        results: Folder of stored results, or a URL such as s3://bucket/prefix. Default: the result
            is kept in memory only.
    """

    model: Any
    dataset: Any
    results: Location | None = attrs.field(
        default=None, converter=to_optional_location, kw_only=True
    )


@attrs.frozen(slots=False)
class WorkRequest(ModelFields, HardwareFields, FolderFields):
    """Encode documents as one of several workers sharing a cache.

    Start it any number of times, on any machine that sees the cache folder: each worker encodes
    documents that no other worker has taken. Stop a worker at any time: the others encode its
    share. It ends with exit code 0 when all vectors are cached. `run` then uses them.

    Attributes:
        names: Collections, suites or folders (see `list datasets` and `list suites`; a suite of
            your own is a TOML file).
        model: Models: names (see `list models`), card files, folders or Hub ids.
    """

    names: tuple[str, ...] = attrs.field(converter=to_names)
    model: tuple[str, ...] = attrs.field(kw_only=True, converter=to_names)


@attrs.frozen(slots=False)
class IndexRequest(ModelFields, MismatchFields, HardwareFields, FolderFields):
    """Write a FAISS index of a collection to a standalone folder.

    The folder contains index.faiss, ids.json (document ids by row), manifest.json and search.py,
    ten lines of Python that search it with FAISS and NumPy. The index is also cached. `run --index
    DIR` evaluates the folder.

    Attributes:
        dataset: Collection or folder (see `list datasets`).
        model: Model: a name (see `list models`), card file, folder or Hub id.
        index: FAISS factory string with search parameters (see `list indexes`).
        out: Folder to write.
    """

    dataset: str = attrs.field(converter=str)
    model: str = attrs.field(kw_only=True, converter=str)
    index: str = attrs.field(kw_only=True, converter=str)
    out: Path = attrs.field(kw_only=True, converter=to_path)


@attrs.frozen(slots=False)
class ScoreRequest(ProtocolFields, FolderFields):
    """Score a ranking of another program by the collection's own protocol.

    Attributes:
        run: TREC run file with six columns, plain or .gz; in Python also a `Run`, or scores by
            document id by query id, as in beir and pytrec_eval.
        dataset: Collection or folder with the judgements (see `list datasets`).
        measure: Further measure to report, instead of the collection's; several are possible (see
            `list measures`).
        name: Name of the run in results. Default: the name of the file.
        results: Folder of stored results, or a URL such as s3://bucket/prefix. None keeps the
            result in memory (Python only).
    """

    run: Any
    dataset: Any
    measure: tuple[str, ...] = attrs.field(default=(), converter=to_names, kw_only=True)
    name: str = attrs.field(default="", kw_only=True)
    results: Location | None = attrs.field(
        default=None, converter=to_optional_location, kw_only=True
    )


@attrs.frozen(slots=False)
class SpeedRequest(ModelFields, FolderFields):
    """Measure the speed of a model on this machine, alone and against other tools.

    The last line of the output is one JSON document. Compare timings only within one machine.

    Attributes:
        names: Collections to evaluate end to end, in alternation with the tools of ``against``.
        model: Model: a name (see `list models`), card file, folder or Hub id.
        parts: Parts to measure. Default: all, or none if collections are named.
        against: Installed tools to compare with. With OpenVINO, sentence-transformers runs on the
            CPU in the precision of ``dtype``; int8 is calibrated on 300 of the texts.
        repeats: Samples of each timing, after one warm-up.
        rounds: Rounds of the end-to-end comparison. Every tool runs once per round.
        device: Device to encode on: auto, cpu, cuda or cuda:N.
    """

    names: tuple[str, ...] = attrs.field(default=(), converter=to_names)
    model: str = attrs.field(kw_only=True, converter=str)
    parts: tuple[Part, ...] = attrs.field(default=(), kw_only=True, converter=to_items)
    against: tuple[Tool, ...] = attrs.field(default=(), kw_only=True, converter=to_items)
    repeats: int = attrs.field(default=5, kw_only=True)
    rounds: int = attrs.field(default=1, kw_only=True)
    device: str = attrs.field(default="auto", kw_only=True)
