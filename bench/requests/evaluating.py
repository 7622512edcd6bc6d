"""Requests that evaluate models: `run`, `work`, `index`, `score` and `speed`."""

from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen

from bench.requests.fields import (
    RESULTS,
    CompressionFields,
    FolderFields,
    HardwareFields,
    MismatchFields,
    ModelFields,
    ProtocolFields,
    SystemFields,
    WorkerFields,
    to_items,
    to_names,
    to_optional_path,
)
from foundation.files import local_path

Part = Literal["encode", "latency"]
Tool = Literal["sentence-transformers", "sentence-transformers-openvino", "beir", "mteb"]


@frozen(kw_only=True, slots=False)
class EvaluationFields(
    ProtocolFields, CompressionFields, SystemFields, HardwareFields, FolderFields
):
    """Settings of an evaluation.

    Attributes:
        measure: Further measure to report, instead of the collection's; several are possible (see
            `list measures`). The first one replaces a main measure that cannot be computed.
        name: Name of the model in results (single model only). Default: its own name, or
            MODEL+ADAPTER with an adapter.
        recompute: Evaluate again from cached vectors, even if the result is stored.
        index: flat (exact search), a FAISS factory string with search parameters (see `list
            indexes`), a folder written by `index`, or bm25 (candidates from BM25, ranked by BM25
            score times similarity).
        recall_queries: Measure the recall of an approximate index on N queries, drawn with a fixed
            seed; 0 skips it. Default: all queries, once per index.
        fingerprint: Identifier of a Python object's weights, which must change whenever its vectors
            do. Vectors are stored under it; without one, texts are encoded again each time.
        similarity: Similarity of a Python object. Default: that of a SentenceTransformer, else dot.

    In Python:
        name: required for an object.
    """

    measure: tuple[str, ...] = field(default=(), converter=to_names)
    name: str = ""
    recompute: bool = False
    index: str = field(default="flat", converter=str)
    recall_queries: int | None = None
    fingerprint: str | None = None
    similarity: Literal["dot", "cos"] | None = None


@frozen(kw_only=True, slots=False)
class RunRequest(EvaluationFields, WorkerFields):
    """Evaluate models on collections.

    Print a table per collection, then the means of suites. Vectors are cached, so an interrupted
    run continues. A stored result is returned if no input changed. If a model or collection cannot
    be used, the others are evaluated and the gap is shown with its reason. Exit codes: 0 complete,
    4 with gaps, 2 nothing was evaluated.

    Attributes:
        names: Collections, suites or folders (see `list datasets` and `list suites`; a suite of
            your own is a TOML file).
        model: Models: names (see `list models`), card files, folders, Hub ids, or
            path/to/file.py:NAME, an encoder or a search system.
        limit: Quick trial on the first N queries, with their judged documents and 10 N others. Its
            scores are inflated, so they are marked, stored as NAME/firstN and left out of means.
        results: Folder of stored results.

    Examples:
        python -m bench run stdlib-code --model minilm
        python -m bench run beir/scifact --model minilm --limit 20
        python -m bench run beir/scifact beir/nfcorpus --model minilm bm25 --data-dir DIR
        python -m bench run beir/scifact --model minilm --index 'IVF64,Flat?nprobe=8'
        python -m bench run path/to/my-collection --model path/to/sentence-transformers-folder
        python -m bench run beir/scifact --model minilm --adapter path/to/lora --name minilm-legal
        python -m bench run msmarco/dev --model retromae-msmarco-ft --measure R@50 --json
        python -m bench run path/to/mine --model search.py:prod --trust-code --concurrency 8
        python -m bench run beir --model retromae --workers auto
        python -m bench run beir --model retromae --dry-run
    """

    names: tuple[Any, ...] = field(kw_only=False, converter=to_items)
    model: tuple[Any, ...] = field(converter=to_items)
    limit: int | None = None
    results: Path | None = field(default=RESULTS, converter=to_optional_path)


@frozen(kw_only=True, slots=False)
class EvaluateRequest(EvaluationFields):
    """Evaluate one model on one collection, like ``bench run``.

    Attributes:
        model: Name of `list models`, card file, folder, Hub id, path/to/file.py:NAME, or any object
            that encodes: a `SentenceTransformer`, an object with beir's ``encode_queries`` and
            ``encode_corpus`` or with ``encode_queries(texts)`` and ``encode_documents(titles,
            texts)``, a function from a list of texts to an array ``(n, dim)``, or a search system:
            an object with ``search(queries, k)``, or such a function.
        dataset: Name of `list datasets`, folder, or `Dataset.from_dicts`.
        results: Folder of stored results. Default: the result
            is kept in memory only.
    """

    model: Any = field(kw_only=False)
    dataset: Any = field(kw_only=False)
    results: Path | None = field(default=None, converter=to_optional_path)


@frozen(kw_only=True, slots=False)
class WorkRequest(ModelFields, HardwareFields, FolderFields):
    """Encode documents as one of several workers sharing a cache.

    Start it any number of times, on any machine that sees the cache folder: each worker encodes
    documents that no other worker has taken. Stop a worker at any time: the others encode its
    share. It ends with exit code 0 when all vectors are cached. `run` then uses them.

    Attributes:
        names: Collections, suites or folders (see `list datasets` and `list suites`; a suite of
            your own is a TOML file).
        model: Models: names (see `list models`), card files, folders, Hub ids, or
            path/to/file.py:NAME.

    Examples:
        python -m bench work msmarco --model retromae --cache-dir /shared/cache
        sbatch --array=0-7 --wrap 'python -m bench work beir --model retromae --cache-dir D'
    """

    names: tuple[str, ...] = field(kw_only=False, converter=to_names)
    model: tuple[str, ...] = field(converter=to_names)


@frozen(kw_only=True, slots=False)
class IndexRequest(CompressionFields, MismatchFields, HardwareFields, FolderFields):
    """Write a FAISS index of a collection to a standalone folder.

    The folder contains index.faiss, ids.json (document ids by row), manifest.json and search.py,
    twenty lines of Python that search it with FAISS and NumPy. The index is also cached. `run
    --index DIR` evaluates the folder.

    Attributes:
        dataset: Collection or folder (see `list datasets`).
        model: Model: a name (see `list models`), card file, folder, Hub id, or
            path/to/file.py:NAME.
        index: FAISS factory string with search parameters (see `list indexes`).
        out: Folder to write.

    Examples:
        python -m bench index beir/scifact --model minilm --index HNSW32 --out scifact-minilm
        python -m bench run beir/scifact --model minilm --index scifact-minilm
    """

    dataset: str = field(kw_only=False, converter=str)
    model: str = field(converter=str)
    index: str = field(converter=str)
    out: Path = field(converter=local_path)


@frozen(kw_only=True, slots=False)
class ScoreRequest(ProtocolFields, FolderFields):
    """Score a ranking of another program by the collection's own protocol.

    Attributes:
        run: Run file: six columns of TREC, three of Tevatron or MS MARCO, four of ColBERT, or
            predictions of mteb or sentence-transformers; plain, .gz or .zst.
        dataset: Collection or folder with the judgements (see `list datasets`).
        measure: Further measure to report, instead of the collection's; several are possible (see
            `list measures`). The first one replaces a main measure that cannot be computed.
        name: Name of the run in results. Default: the name of the file.
        passages: Separator between the id of a document and that of a passage, such as '#': d1#3
            counts for d1, with the best score of its passages.
        results: Folder of stored results.

    In Python:
        run: also a `Run`, or scores by document id by query id, as in beir and pytrec_eval.
        results: None, the default, keeps the result in memory.

    Examples:
        python -m bench score my-run.trec --dataset beir/scifact
    """

    run: Any = field(kw_only=False)
    dataset: Any = field(kw_only=False)
    measure: tuple[str, ...] = field(default=(), converter=to_names)
    name: str = ""
    passages: str = ""
    results: Path | None = field(default=None, converter=to_optional_path)


@frozen(kw_only=True, slots=False)
class SpeedRequest(CompressionFields, FolderFields):
    """Measure the speed of a model on this machine, alone and against other tools.

    The last line of the output is one JSON document. Compare timings only within one machine.

    Attributes:
        names: Collections to evaluate end to end, in alternation with the tools of ``against``; or
            the one whose vectors the indexes of ``index`` search.
        model: Model: a name (see `list models`), card file, folder, Hub id, or
            path/to/file.py:NAME.
        parts: Parts to measure. Default: all, or none if collections are named.
        index: Indexes to compare by speed and recall, as in `run`, on one collection.
        against: Installed tools to compare with. With OpenVINO, sentence-transformers runs on the
            CPU in the precision of ``dtype``; int8 is calibrated on 300 of the texts.
        repeats: Samples of each timing, after one warm-up.
        rounds: Rounds of the end-to-end comparison. Every tool runs once per round.
        device: Device to encode on: auto, cpu, cuda or cuda:N.

    Examples:
        python -m bench speed --model minilm
        python -m bench speed --model minilm --parts encode --against sentence-transformers
        python -m bench speed beir/nfcorpus --model minilm --against mteb beir
        python -m bench speed beir/scifact --model minilm --figure indexes.pdf --index \
            'HNSW32?efSearch=16' 'HNSW32?efSearch=64' 'IVF64,Flat?nprobe=4'
    """

    names: tuple[str, ...] = field(kw_only=False, default=(), converter=to_names)
    model: str = field(converter=str)
    parts: tuple[Part, ...] = field(default=(), converter=to_items)
    index: tuple[str, ...] = field(default=(), converter=to_names)
    against: tuple[Tool, ...] = field(default=(), converter=to_items)
    repeats: int = 5
    rounds: int = 1
    device: str = "auto"
