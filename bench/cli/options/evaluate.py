"""Options of the commands that evaluate, compare and decide: ``run`` ... ``export``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from bench.cli.options.shared import (
    Device,
    FolderOptions,
    HardwareOptions,
    LocalPath,
    ModelOptions,
    Names,
    NonNegativeInt,
    OptionConditions,
    OutFile,
    OutFolder,
    OutLocation,
    OutputOptions,
    PositiveInt,
    ProtocolOptions,
    ResamplingOptions,
    ResultLocations,
    SeveralValues,
    WorkerOptions,
    group,
    in_group,
)
from bench.gate.settings import GateSettings

INDEX_GROUP = in_group("Index", 30)
RUN_FILE_GROUP = in_group("Run files", 10)
SEQUENCE_GROUP = in_group("Continual learning", 20)
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
    model: Names
    limit: PositiveInt | None = None
    measure: tuple[str, ...] | None = None
    name: str | None = None
    dry_run: bool = False
    recompute: bool = False
    out: OutLocation = Path("results")
    index: Annotated[str, INDEX_GROUP] = "flat"
    recall_queries: Annotated[NonNegativeInt | None, INDEX_GROUP] = None
    workers: WorkerOptions = WorkerOptions()
    protocol: ProtocolOptions = ProtocolOptions()
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    folders: FolderOptions = FolderOptions()
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
    model: Names
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    folders: FolderOptions = FolderOptions()
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

    dataset: str
    _: KW_ONLY
    model: str
    index: str
    out: OutFolder
    allow_mismatch: bool = False
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    folders: FolderOptions = FolderOptions()
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
    dataset: str
    measure: tuple[str, ...] | None = None
    name: str | None = None
    out: OutLocation = Path("results")
    protocol: ProtocolOptions = ProtocolOptions()
    folders: FolderOptions = FolderOptions()
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
    model: str
    parts: Annotated[tuple[Part, ...], SeveralValues] = ()
    against: Annotated[tuple[Tool, ...], SeveralValues] = ()
    repeats: PositiveInt = 5
    rounds: PositiveInt = 1
    model_options: ModelOptions = ModelOptions()
    device: Device = "auto"
    folders: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class CompareOptions:
    """Compare models: which is better, by how much, and on which queries.

    Attributes:
        names: Models with stored results (MODEL@FIELD=VALUE selects one of several), folders of
            results, or run files.
        on: Compare only on these collections or suites (a suite of your own is a TOML file).
        changed: Show the N queries with the largest differences in favour of each model.
        measure: Measure to compare by. Default: each collection's main measure.
        results: Folders of stored results, or URLs such as s3://bucket/prefix.
        force: Compare across different protocols. The table is marked.
        dataset: Collection or folder whose judgements score run files.
        depth: Documents per query of run files. Default: the collection's, usually 1,000.
        split: Split whose judgements score run files. Default: the collection's.
        sequence: Collections on which the models were trained, one after the other. Show
            backward and forward transfer. The first model may be the start of the training;
            name further collections with --on.

    Examples:
        python -m bench compare minilm bm25
        python -m bench compare minilm bm25 --on beir --changed 3
        python -m bench compare minilm@dtype=float16 minilm@dtype=float32
        python -m bench compare one.trec other.trec --dataset beir/scifact
        python -m bench compare start after-bio after-law --sequence beir/nfcorpus my-law
    """

    only_if: ClassVar[OptionConditions] = {
        "depth": {"dataset": True},
        "split": {"dataset": True},
        "sequence": {"dataset": False, "changed": False, "force": False},
    }
    names: tuple[str, ...]
    _: KW_ONLY
    on: Names = ()
    changed: NonNegativeInt = 0
    measure: str | None = None
    results: ResultLocations = (Path("results"),)
    force: bool = False
    dataset: Annotated[str | None, RUN_FILE_GROUP] = None
    depth: Annotated[PositiveInt | None, RUN_FILE_GROUP] = None
    split: Annotated[str | None, RUN_FILE_GROUP] = None
    sequence: Annotated[Names, SEQUENCE_GROUP] = ()
    resampling: ResamplingOptions = ResamplingOptions()
    folders: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class ExplainOptions:
    """Find the difference of set-up that explains other vectors, another run or other scores.

    Tries single deviations (pooling, prompts, titles, lengths, special tokens, layers, precision,
    order, protocol), then pairs, and lists all that fit. "Your set-up reproduces it" and "none of
    these" are answers, too. Several kinds of evidence must fit together.

    Attributes:
        model: Name of `list models`, card file, folder or Hub id, as you use it.
        on: Collections or folders of the evidence; the first is sampled.
        published: A score as [DATASET:][MEASURE=]VALUE, rounded as published; repeatable.
        per_query: File of scores by query, such as the output of trec_eval -q.
        run_file: TREC run file.
        vectors: Vectors as .npy, .npz, .parquet or .safetensors; ids in it, or in FILE.ids.txt.
        checkpoint: Another checkpoint. Alone, its vectors are the evidence ("why is it worse?");
            next to other evidence, its weights may be the cause.
        canary: File of --save-canary: do texts still have the vectors that they had?
        save_canary: Save texts of the collection with the model's vectors.

    Examples:
        python -m bench explain minilm --on beir/scifact --published .6451 --published R@100=.925
        python -m bench explain minilm --on beir/scifact --run-file theirs.trec
        python -m bench explain minilm --on beir/scifact --vectors theirs.npz
        python -m bench explain minilm --on beir/scifact --checkpoint path/to/worse-checkpoint
        python -m bench explain minilm --on beir/scifact --save-canary canary.json
    """

    model: str
    _: KW_ONLY
    on: Names
    published: tuple[str, ...] = ()
    per_query: LocalPath | None = None
    run_file: LocalPath | None = None
    vectors: LocalPath | None = None
    checkpoint: str | None = None
    canary: LocalPath | None = None
    save_canary: OutFile | None = None
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    folders: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class CheckOptions:
    """Decide whether a checkpoint may ship. The exit code is the verdict.

    Exit codes: 0 OK, 1 regression, 2 bad input, 3 inconclusive, 4 missing evaluation or baseline
    result, 5 drift (the scores are not those of the checkpoint it claims to be). In JUnit XML a
    regression is a failure, missing results and drift are errors, and inconclusive is skipped.

    Attributes:
        checkpoint: Candidate: a name, card file, folder or Hub id.
        baseline: Model with stored results (MODEL@FIELD=VALUE selects one of several), folder of
            results, or `published` for the scores that the card claims.
        on: Collections, suites or folders (a suite of your own is a TOML file). Default: the
            baseline's.
        anchor: Older release to check against, too. The worse outcome decides.
        junit: Also write the verdict to this file as JUnit XML.
        measure: Measure to decide by. Default: each collection's main measure.
        results: Folder of stored results, or a URL such as s3://bucket/prefix. New results are
            added to it.
        allow_mismatch: Continue even if a collection differs from the published one. The result
            is marked.

    Examples:
        python -m bench check path/to/ckpt --like retromae --baseline retromae --on beir
        python -m bench check path/to/ckpt --like minilm --baseline minilm --rule margin
        python -m bench check minilm --baseline published --expect-same
    """

    only_if: ClassVar[OptionConditions] = {
        "margin": {"rule": "margin"},
        "tolerance": {"expect_same": True},
        "rule": {"expect_same": False},
    }
    checkpoint: str
    _: KW_ONLY
    baseline: str
    on: Names = ()
    anchor: str | None = None
    junit: OutFile | None = None
    measure: str | None = None
    results: OutLocation = Path("results")
    terms: Annotated[GateSettings, group("Decision rule", 10)] = GateSettings()
    allow_mismatch: bool = False
    resampling: ResamplingOptions = ResamplingOptions()
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    folders: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class LeaderboardOptions:
    """Show stored results side by side, as a table or as a page.

    Attributes:
        format: Format of the output. html is one page that opens from disk.
        suite: Show only the collections of this suite and its mean, including gaps (a suite of
            your own is a TOML file). Default: all collections.
        measure: Measure to show. Default: each collection's main measure.
        published: Also show published scores of other systems, marked as claims: names of the
            tables in bench/boards/published, `cards` for the models of `list models`, or `all`.
        results: Folders of stored results, or URLs such as s3://bucket/prefix.

    Examples:
        python -m bench leaderboard --format html > leaderboard.html
        python -m bench leaderboard --suite beir --format csv
        python -m bench leaderboard --published beir-paper dupmae
    """

    only_if: ClassVar[OptionConditions] = {"format": {"json": False}}

    _: KW_ONLY
    format: Literal["markdown", "csv", "json", "html"] = "markdown"
    suite: str = ""
    measure: str = ""
    published: Names | None = None
    results: ResultLocations = (Path("results"),)
    folders: FolderOptions = FolderOptions()
    resampling: ResamplingOptions = ResamplingOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class ExportOptions:
    """Write stored results in the formats of mteb and trec_eval.

    mteb writes scores (MODEL/REVISION/SciFact.json, for mteb 2). trec writes rankings
    (MODEL/COLLECTION.trec.gz). Existing files are never overwritten.

    Attributes:
        format: Format to write.
        names: Models with stored results, named as in `compare`.
        out: Folder to write, or a URL such as s3://bucket/prefix.
        on: Export only these collections or suites.
        name: Name of the model in the files (single model only). Default: its own name.
        results: Folders of stored results, or URLs such as s3://bucket/prefix.

    Examples:
        python -m bench export mteb minilm --as sentence-transformers/all-MiniLM-L6-v2 --out mteb
        python -m bench export trec minilm bm25 --out runs
    """

    format: Literal["mteb", "trec"]
    names: tuple[str, ...]
    _: KW_ONLY
    out: OutLocation
    on: Names = ()
    name: Annotated[str | None, Parameter(name="--as")] = None
    results: ResultLocations = (Path("results"),)
    output: OutputOptions = OutputOptions()
