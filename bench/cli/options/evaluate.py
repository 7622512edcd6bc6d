"""Options of the commands that evaluate: ``run``, ``work``, ``score``, ``speed``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from bench.cli.options.shared import (
    Device,
    FolderOptions,
    HardwareOptions,
    LocalPath,
    ModelOptions,
    Names,
    NonNegativeInt,
    OptionConditions,
    OutFolder,
    OutLocation,
    OutputOptions,
    PositiveInt,
    ProtocolOptions,
    SeveralValues,
    WorkerOptions,
)

Part = Literal["encode", "latency", "indexes"]
Tool = Literal["sentence-transformers", "beir", "mteb"]


@dataclass(frozen=True)
class RunOptions:
    """Evaluate models on collections.

    Prints a table for each collection, then the means of the suites. Vectors are kept
    (--cache-dir): an interrupted run continues. A result that is stored is shown, if all that it
    depends on is the same. Where a model or collection cannot be used, the others are still
    evaluated and the gap is shown with its reason. Exit codes: 0 complete, 4 with gaps, 2 nothing
    was evaluated.

    Attributes:
        names: Collections, suites (your own: a TOML file) or folders.
        model: Names of `list models`, card files, folders or Hub ids.
        name: Name of the model in results, where there is only one. Default: its own; with
            --adapter, MODEL+ADAPTER.
        index: flat (exact), a FAISS factory string with search parameters, a folder that
            `index` wrote, or bm25: what BM25 finds, by its score times the similarity.
        recall_queries: Number of queries, drawn with a seed, on which the recall of an
            approximate index is measured; 0 measures none. Default: all, once for each index.
        limit: Quick trial: the first N queries on the documents judged for them and 10 N
            others. Scores are far too high: they are marked, stored as a collection of their
            own (NAME/firstN), and in no mean.
        recompute: Evaluate again what is stored, from stored vectors.
        dry_run: Show what would be encoded, how long that takes on this machine, and the memory
            that is needed; evaluate nothing.
        measure: Measure to report besides the main one, instead of the collection's further
            ones; repeatable.
        out: Folder of the results, or a URL such as s3://bucket/prefix.

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

    only_if: ClassVar[OptionConditions] = {"address": {"engine": "ray"}}

    names: tuple[str, ...]
    _: KW_ONLY
    model: Names
    name: str | None = None
    index: str = "flat"
    recall_queries: NonNegativeInt | None = None
    limit: PositiveInt | None = None
    recompute: bool = False
    dry_run: bool = False
    measure: tuple[str, ...] | None = None
    out: OutLocation = Path("results")
    workers: WorkerOptions = WorkerOptions()
    protocol: ProtocolOptions = ProtocolOptions()
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class WorkOptions:
    """Encode the documents of collections, together with all who do so on the same cache folder.

    A worker joins at any time, from any machine that has the cache folder, and encodes what is
    missing and what nobody else is at work on. It may be stopped at any time: what it was at work
    on is encoded by the others. Exit code 0: all vectors are there. `run` then finds them.

    Attributes:
        names: Collections, suites (your own: a TOML file) or folders.
        model: Names of `list models`, card files, folders or Hub ids.

    Examples:
        python -m bench work msmarco --model retromae --cache-dir /shared/cache
        sbatch --array=0-7 --wrap 'python -m bench work beir --model retromae --cache-dir D'
    """

    names: tuple[str, ...]
    _: KW_ONLY
    model: Names
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class IndexOptions:
    """Write a FAISS index of a collection to a folder that needs nothing of this program.

    The folder holds index.faiss, which FAISS reads, ids.json with the documents' ids by row,
    manifest.json, and search.py, ten lines of Python with FAISS and NumPy alone. The index is kept
    in the cache, too. `run --index DIR` evaluates the folder.

    Attributes:
        dataset: Collection or folder.
        model: Name of `list models`, card file, folder or Hub id.
        index: A FAISS factory string with search parameters; see `list indexes`.
        out: Folder of the index.
        allow_mismatch: Continue although the collection differs from the published one.

    Examples:
        python -m bench index beir/scifact --model minilm --index HNSW32 --out scifact-minilm
        python -m bench run beir/scifact --model minilm --index scifact-minilm
    """

    dataset: str
    _: KW_ONLY
    model: str
    index: str
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
        run_file: TREC run file of six columns, plain or .gz.
        dataset: Collection or folder that has the judgements.
        name: Name of the run in tables. Default: the file's.
        measure: Measure to report besides the main one, instead of the collection's further
            ones; repeatable.
        out: Folder of the results, or a URL such as s3://bucket/prefix.

    Examples:
        python -m bench score my-run.trec --dataset beir/scifact
    """

    run_file: LocalPath
    _: KW_ONLY
    dataset: str
    name: str | None = None
    measure: tuple[str, ...] | None = None
    out: OutLocation = Path("results")
    protocol: ProtocolOptions = ProtocolOptions()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class SpeedOptions:
    """Measure how fast a model is on this machine, alone and beside other tools.

    The last line of stdout is one JSON document. Timings compare only within one machine.

    Attributes:
        names: Collections to race on, from start to scores.
        model: Name of `list models`, card file, folder or Hub id.
        parts: Parts to measure. Default: all; beside collections to race on, none.
        against: Installed tools to race against.
        repeats: Samples of each timing, after one warm-up.
        rounds: Rounds of the race, in each of which every tool runs once.
        device: Device to encode on: auto, cpu, cuda or cuda:N.

    Examples:
        python -m bench speed --model minilm
        python -m bench speed --model minilm --parts encode --against sentence-transformers
        python -m bench speed beir/nfcorpus --model minilm --against mteb beir
    """

    only_if: ClassVar[OptionConditions] = {"rounds": {"names": True}}

    names: tuple[str, ...] = ()
    _: KW_ONLY
    model: str
    parts: Annotated[tuple[Part, ...], SeveralValues] = ()
    against: Annotated[tuple[Tool, ...], SeveralValues] = ()
    repeats: PositiveInt = 5
    rounds: PositiveInt = 1
    model_options: ModelOptions = ModelOptions()
    device: Device = "auto"
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()
