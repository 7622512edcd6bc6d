"""Options of the commands that evaluate: ``run``, ``work``, ``index``, ``score``, ``speed``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from bench.cli.options.shared import (
    DatasetName,
    Device,
    FolderOptions,
    HardwareOptions,
    IndexName,
    LocalPath,
    Measures,
    ModelName,
    ModelNames,
    ModelOptions,
    Name,
    NonNegativeInt,
    OptionConditions,
    OutFolder,
    OutLocation,
    OutputOptions,
    PositiveInt,
    ProtocolOptions,
    SeveralValues,
    WorkerOptions,
    in_group,
)

INDEX_GROUP = in_group("Index", 30)
Part = Literal["encode", "latency", "indexes"]
Tool = Literal["sentence-transformers", "beir", "mteb"]


@dataclass(frozen=True)
class RunOptions:
    """Evaluate models on collections.

    Print a table per collection, then the means of suites. Vectors are cached, so an interrupted
    run continues. A stored result is returned if no input changed. If a model or collection cannot
    be used, the others are evaluated and the gap is shown with its reason. Exit codes: 0 complete,
    4 with gaps, 2 nothing was evaluated.

    Attributes:
        names: Collections, suites or folders (see `list datasets` and `list suites`; a suite of
            your own is a TOML file).
        model: Models: names (see `list models`), card files, folders or Hub ids.
        limit: Quick trial on the first N queries, with their judged documents and 10 N others.
            Its scores are far too high, so they are marked, stored as NAME/firstN and left out
            of means.
        measure: Further measure to report, instead of the collection's; repeatable (see `list
            measures`).
        name: Name of the model in results (single model only). Default: its own name, or
            MODEL+ADAPTER with --adapter.
        dry_run: Show the documents to encode, the expected time and the memory; evaluate
            nothing.
        recompute: Evaluate again from cached vectors, even if the result is stored.
        out: Folder of the results, or a URL such as s3://bucket/prefix.
        index: flat (exact search), a FAISS factory string with search parameters (see `list
            indexes`), a folder written by `index`, or bm25 (candidates from BM25, ranked by
            BM25 score times similarity).
        recall_queries: Measure the recall of an approximate index on N queries, drawn with a
            fixed seed; 0 skips it. Default: all queries, once per index.

    Examples:
        python -m bench run stdlib-code --model minilm
        python -m bench run beir/scifact --model minilm --limit 20
        python -m bench run beir/scifact beir/nfcorpus --model minilm bm25 --data-dir DIR
        python -m bench run beir/scifact --model minilm --index 'IVF64,Flat?nprobe=8'
        python -m bench run path/to/my-collection --model path/to/sentence-transformers-folder
        python -m bench run beir/scifact --model minilm --adapter path/to/lora --name minilm-legal
        python -m bench run msmarco/dev --model retromae-msmarco-ft --measure R@50 --json
        python -m bench run beir --model retromae --workers auto
        python -m bench run beir --model retromae --dry-run
    """

    only_if: ClassVar[OptionConditions] = {
        "address": {"engine": "ray"},
        "recall_queries": {"index": True},
    }

    names: tuple[str, ...]
    _: KW_ONLY
    model: ModelNames
    limit: PositiveInt | None = None
    measure: Measures | None = None
    name: Name | None = None
    dry_run: bool = False
    recompute: bool = False
    out: OutLocation = Path("results")
    index: Annotated[IndexName, INDEX_GROUP] = "flat"
    recall_queries: Annotated[NonNegativeInt | None, INDEX_GROUP] = None
    workers: WorkerOptions = WorkerOptions()
    protocol: ProtocolOptions = ProtocolOptions()
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class WorkOptions:
    """Encode documents as one of several workers sharing a cache.

    Start it any number of times, on any machine that sees the cache folder: each worker encodes
    documents that no other worker has taken. Stop a worker at any time: the others encode its share.
    It ends with exit code 0 when all vectors are cached. `run` then uses them.

    Attributes:
        names: Collections, suites or folders (see `list datasets` and `list suites`; a suite of
            your own is a TOML file).
        model: Models: names (see `list models`), card files, folders or Hub ids.

    Examples:
        python -m bench work msmarco --model retromae --cache-dir /shared/cache
        sbatch --array=0-7 --wrap 'python -m bench work beir --model retromae --cache-dir D'
    """

    names: tuple[str, ...]
    _: KW_ONLY
    model: ModelNames
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class IndexOptions:
    """Write a FAISS index of a collection to a standalone folder.

    The folder contains index.faiss, ids.json (document ids by row), manifest.json and search.py, ten
    lines of Python that search it with FAISS and NumPy. The index is also cached. `run --index DIR`
    evaluates the folder.

    Attributes:
        dataset: Collection or folder (see `list datasets`).
        model: Model: a name (see `list models`), card file, folder or Hub id.
        index: FAISS factory string with search parameters (see `list indexes`).
        out: Folder to write.
        allow_mismatch: Continue even if the collection differs from the published one.

    Examples:
        python -m bench index beir/scifact --model minilm --index HNSW32 --out scifact-minilm
        python -m bench run beir/scifact --model minilm --index scifact-minilm
    """

    dataset: DatasetName
    _: KW_ONLY
    model: ModelName
    index: IndexName
    out: OutFolder
    allow_mismatch: bool = False
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class ScoreOptions:
    """Score a TREC run file by the collection's own protocol.

    Attributes:
        run_file: TREC run file with six columns, plain or .gz.
        dataset: Collection or folder with the judgements (see `list datasets`).
        measure: Further measure to report, instead of the collection's; repeatable (see `list
            measures`).
        name: Name of the run in results. Default: the name of the file.
        out: Folder of the results, or a URL such as s3://bucket/prefix.

    Examples:
        python -m bench score my-run.trec --dataset beir/scifact
    """

    run_file: LocalPath
    _: KW_ONLY
    dataset: DatasetName
    measure: Measures | None = None
    name: Name | None = None
    out: OutLocation = Path("results")
    protocol: ProtocolOptions = ProtocolOptions()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class SpeedOptions:
    """Measure the speed of a model on this machine, alone and against other tools.

    The last line of the output is one JSON document. Compare timings only within one machine.

    Attributes:
        names: Collections to evaluate end to end, in alternation with the tools of --against.
        model: Model: a name (see `list models`), card file, folder or Hub id.
        parts: Parts to measure. Default: all, or none if collections are named.
        against: Installed tools to compare with.
        repeats: Samples of each timing, after one warm-up.
        rounds: Rounds of the end-to-end comparison. Every tool runs once per round.
        device: Device to encode on: auto, cpu, cuda or cuda:N.

    Examples:
        python -m bench speed --model minilm
        python -m bench speed --model minilm --parts encode --against sentence-transformers
        python -m bench speed beir/nfcorpus --model minilm --against mteb beir
    """

    only_if: ClassVar[OptionConditions] = {"rounds": {"names": True}}

    names: tuple[str, ...] = ()
    _: KW_ONLY
    model: ModelName
    parts: Annotated[tuple[Part, ...], SeveralValues] = ()
    against: Annotated[tuple[Tool, ...], SeveralValues] = ()
    repeats: PositiveInt = 5
    rounds: PositiveInt = 1
    model_options: ModelOptions = ModelOptions()
    device: Device = "auto"
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()
