"""Options of every command: one record each, in the order of ``--help``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from bench.cli.options.shared import (
    CommonOptions,
    Device,
    Duration,
    FieldValues,
    HardwareOptions,
    LocalPath,
    LocalPaths,
    ModelOptions,
    Names,
    NonNegativeInt,
    NonNegativeInts,
    Numbers,
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
Tool = Literal["sentence-transformers", "sentence-transformers-openvino", "beir", "mteb"]


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
    common: CommonOptions = CommonOptions()


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
    common: CommonOptions = CommonOptions()


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
    common: CommonOptions = CommonOptions()


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
    common: CommonOptions = CommonOptions()


@dataclass(frozen=True)
class SpeedOptions:
    """Measure the speed of a model on this machine, alone and against other tools.

    The last line of the output is one JSON document. Compare timings only within one machine.

    Attributes:
        names: Collections to evaluate end to end, in alternation with the tools of --against.
        model: Model: a name (see `list models`), card file, folder or Hub id.
        parts: Parts to measure. Default: all, or none if collections are named.
        against: Installed tools to compare with. With OpenVINO, sentence-transformers runs on the
            CPU in the precision of --dtype; int8 is calibrated on 300 of the texts.
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
    common: CommonOptions = CommonOptions()


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
    common: CommonOptions = CommonOptions()


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
        served: Address of a server of OpenAI's embeddings API, such as http://localhost:8080/v1.
        checkpoint: Another checkpoint. Alone, its vectors are the evidence ("why is it worse?");
            next to other evidence, its weights may be the cause.
        canary: File of --save-canary: do texts still have the vectors that they had?
        save_canary: Save texts of the collection with the model's vectors.

    Examples:
        python -m bench explain minilm --on beir/scifact --published .6451 --published R@100=.925
        python -m bench explain minilm --on beir/scifact --run-file theirs.trec
        python -m bench explain minilm --on beir/scifact --vectors theirs.npz
        python -m bench explain minilm --on beir/scifact --checkpoint path/to/worse-checkpoint
        python -m bench explain minilm --on beir/scifact --served http://localhost:8080/v1
        python -m bench explain minilm --on beir/scifact --save-canary canary.npz
    """

    only_if: ClassVar[OptionConditions] = {"endpoint_model": {"served": True}}
    model: str
    _: KW_ONLY
    on: Names
    published: tuple[str, ...] = ()
    per_query: LocalPath | None = None
    run_file: LocalPath | None = None
    vectors: LocalPath | None = None
    served: str = ""
    checkpoint: str | None = None
    canary: LocalPath | None = None
    save_canary: OutFile | None = None
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    common: CommonOptions = CommonOptions()


@dataclass(frozen=True)
class CheckOptions:
    """Decide whether a checkpoint may ship, or a server is faithful. The exit code is the verdict.

    Exit codes: 0 OK, 1 regression, 2 bad input, 3 inconclusive, 4 missing evaluation or baseline
    result, 5 drift (the scores or vectors are not those of the checkpoint it claims to be). In
    JUnit XML a regression is a failure, missing results and drift are errors, and inconclusive is
    skipped.

    Attributes:
        checkpoint: Candidate: a name, card file, folder or Hub id.
        baseline: Model with stored results (MODEL@FIELD=VALUE selects one of several), folder of
            results, or `published` for the scores that the card claims.
        on: Collections, suites or folders (a suite of your own is a TOML file). Default: the
            baseline's. --served sends texts of one collection. Default: stdlib-code.
        anchor: Older release to check against, too. The worse outcome decides.
        junit: Also write the verdict to this file as JUnit XML.
        measure: Measure to decide by. Default: each collection's main measure.
        results: Folder of stored results, or a URL such as s3://bucket/prefix. New results are
            added to it.
        allow_mismatch: Continue even if a collection differs from the published one. The result
            is marked.
        served: Address of a server of OpenAI's embeddings API, checked instead of a candidate:
            does it return the vectors of --against, also under load? --dtype is its intended
            precision.
        against: Checkpoint of the server: a name, card file, folder or Hub id.

    Examples:
        python -m bench check path/to/ckpt --like retromae --baseline retromae --on beir
        python -m bench check path/to/ckpt --like minilm --baseline minilm --rule margin
        python -m bench check minilm --baseline published --expect-same
        python -m bench check --served http://localhost:8080/v1 --against minilm
    """

    only_if: ClassVar[OptionConditions] = {
        "margin": {"rule": "margin"},
        "tolerance": {"expect_same": True},
        "rule": {"expect_same": False, "served": False},
        "against": {"served": True},
        **{key: {"served": False} for key in ("baseline", "anchor", "measure", "results")},
        **{key: {"served": False} for key in ("floor", "expect_same", "resamples")},
    }
    checkpoint: str = ""
    _: KW_ONLY
    baseline: str = ""
    on: Names = ()
    anchor: str | None = None
    junit: OutFile | None = None
    measure: str | None = None
    results: OutLocation = Path("results")
    terms: Annotated[GateSettings, group("Decision rule", 10)] = GateSettings()
    allow_mismatch: bool = False
    served: str = ""
    against: str = ""
    resampling: ResamplingOptions = ResamplingOptions()
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    common: CommonOptions = CommonOptions()


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
    resampling: ResamplingOptions = ResamplingOptions()
    common: CommonOptions = CommonOptions()


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


@group("Training", 30)
@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings that override the preset, and the device.

    Attributes:
        steps: Optimizer steps (in fine-tuning, per round). Default: the preset's length.
        set: Override a field of the preset; repeatable. Examples: optimizer.lr=1e-5,
            batch_size=16, seed=1, epochs=2, tokens=1_000_000. save_every=N sets the steps
            between checkpoints, from which an interrupted training continues (default 500).
        device: auto (the first GPU, or the CPU if there is none), cpu or cuda.
    """

    steps: PositiveInt | None = None
    set: FieldValues = ()
    device: Device = "auto"


@dataclass(frozen=True)
class PretrainOptions:
    """Pre-train an encoder on the corpora of collections.

    Repeat the command to continue an interrupted training.

    Attributes:
        preset: Preset for pre-training (see `list presets`), or a .toml file.
        on: Collections, suites, folders (only their documents are read) or files with one document
            a line (text, or JSON with "text"; plain or .gz).
        out: Folder to write the checkpoint to.
        start: Model to start from: a card, folder or Hub id. Default: the preset's.

    Examples:
        python -m bench pretrain retromae-small --on stdlib-code/train --out models/code
        python -m bench pretrain retromae-paper --start path/to/bert --on msmarco/dev --out models/retromae
        python -m bench pretrain my-preset.toml --on beir/scifact beir/nfcorpus --out models/mine
        accelerate launch --num_processes 8 -m bench pretrain retromae-paper --on msmarco/dev --out models/r
        python -m bench finetune dpr-small --model models/code --on stdlib-code/train --out models/tuned
    """

    preset: str
    _: KW_ONLY
    on: Names
    out: OutFolder
    start: str | None = None
    training: TrainingSettings = TrainingSettings()
    common: CommonOptions = CommonOptions()


@dataclass(frozen=True)
class FinetuneOptions:
    """Fine-tune an encoder on the judged queries of collections.

    Training queries with the text of a test query, of these collections or of --held-out, are left
    out. Repeat the command to continue an interrupted training.

    A training file of FlagEmbedding, Tevatron, DPR, sentence-transformers or MS MARCO (triples) is
    recognised by its content. Its negatives replace those of BM25, and scores in it are distilled
    if the preset's loss is.

    Attributes:
        preset: Preset for fine-tuning (see `list presets`), or a .toml file.
        model: Model to start from: a card, folder or Hub id.
        on: Collections, suites or folders with a training split, or training files with texts.
        out: Folder to write the checkpoint to.
        like: Card whose pooling, prompts and lengths a plain checkpoint uses (see `list
            models`).
        split: Split to train on.
        negatives: Training file with ids of the collection: its queries are trained on.
        held_out: Further collections whose test queries must not be trained on.

    Examples:
        python -m bench finetune dpr-small --model minilm --on stdlib-code/train --out models/code
        python -m bench finetune dpr-small --model minilm --on beir/nfcorpus --out models/mine
        python -m bench finetune retromae-beir --model models/retromae --on msmarco/train --held-out msmarco --out models/r
        python -m bench finetune dpr --model bert-base-uncased --on msmarco/train --negatives qidpidtriples.train.full.2.tsv.gz --out models/dpr
        python -m bench finetune dpr --model bert-base-uncased --on train.jsonl --held-out beir --out models/mine
        python -m bench finetune mined-small --model path/to/bert --like bert --on beir/scifact --out models/mined --set rounds.1.margin=0.5
        python -m bench run beir/nfcorpus --model minilm models/mine
    """

    preset: str
    _: KW_ONLY
    model: str
    on: Names
    out: OutFolder
    like: str | None = None
    split: str = "train"
    negatives: LocalPath | None = None
    held_out: Names = ()
    training: TrainingSettings = TrainingSettings()
    common: CommonOptions = CommonOptions()


@dataclass(frozen=True)
class AdaptOptions:
    """Continue pre-training on one collection after the other, with a checkpoint after each.

    Repeat the command to continue an interrupted training, or to add collections at the end of
    --on. Finally it prints the command that scores every checkpoint.

    Methods, with their settings (--set method.FIELD=VALUE): plain (no measure against forgetting);
    ewc (penalise changes of weights that matter for earlier collections: measured, strength); das
    (soften gradients of units that matter for earlier collections: measured); adapter (one adapter
    per collection on the frozen start model: adapter); replay (mix in texts of earlier collections:
    buffer, share); joint (train on all collections so far, the upper bound); distill (stay close to
    the predictions of the previous checkpoint: weight, temperature).

    Attributes:
        preset: Preset for pre-training (see `list presets`), or a .toml file.
        on: Collections, suites or folders, in training order.
        out: Folder to write the checkpoints to.
        method: plain, ewc, das, adapter, replay, joint or distill.
        start: Model to start from: a card, folder or Hub id. Default: the preset's.

    Examples:
        python -m bench adapt mlm-small --on beir/nfcorpus beir/scifact --method das --set method.measured=1000 --out models/das
        python -m bench adapt mlm --start path/to/bert --on beir/nfcorpus beir/fiqa --method ewc --steps 10000 --out models/ewc
        python -m bench adapt retromae-small --on beir/nfcorpus beir/fiqa --out models/plain
    """

    preset: str
    _: KW_ONLY
    on: Names
    out: OutFolder
    method: str = "plain"
    start: str | None = None
    training: TrainingSettings = TrainingSettings()
    common: CommonOptions = CommonOptions()


@dataclass(frozen=True)
class ComposeOptions:
    """Combine trained adapters of one base model.

    average: one adapter with the mean of the weights (AdapterSoup). All adapters need one method
    and size. stack: adapters on top of each other, the first at the bottom, such as a task adapter
    on a domain adapter (MAD-X). route: each query uses the adapter of the closest domain, by the
    distance of its base embedding to the mean training query of each domain; documents are encoded
    with every adapter. To learn the weights of a combination, run `finetune` with adapter.method =
    "fusion".

    Attributes:
        how: Method of combination.
        adapters: Folders written by `finetune` with an adapter or by `adapt --method adapter`, or
            adapters inside them.
        out: Folder to write.
        weights: With average: one weight per adapter, of any sum. Default: equal weights.
        on: With route: one collection per adapter, in the order of the adapters.

    Examples:
        python -m bench compose average models/a models/b --out models/mean
        python -m bench compose average models/a models/b --weights 3 1 --out models/mean
        python -m bench compose stack models/domain models/task --out models/both
        python -m bench compose route models/a models/b --on beir/nfcorpus beir/scifact --out models/routed
        python -m bench run beir/scifact --model models/mean
        python -m bench finetune adapter-small --model minilm --on beir/nfcorpus --out models/fused --set 'adapter={method="fusion", over=["models/a", "models/b"]}'
    """

    only_if: ClassVar[OptionConditions] = {"weights": {"how": "average"}, "on": {"how": "route"}}

    how: Literal["average", "stack", "route"]
    adapters: LocalPaths
    _: KW_ONLY
    out: OutFolder
    weights: Annotated[Numbers | None, SeveralValues] = None
    on: Names = ()
    common: CommonOptions = CommonOptions()


@dataclass(frozen=True)
class AblateOptions:
    """Run an ablation: train and evaluate every row of a grid with several seeds, report the effects.

    Each row changes one field. Repeat the command to continue an interrupted experiment, or start it
    in several terminals to share the cells. Exit code 4: a cell failed; repeat the command to try it
    again. A grid with endpoints gets one report per endpoint. The report of a grid with [adapt]
    contains a forgetting matrix per row.

    Attributes:
        file: Grid: a .toml file or a name (see `list grids`).
        variant: Variant declared in the file, such as two-cores. Default: none.
        seeds: Seeds to train with. Default: the file's.
        dry_run: Check everything and show the grid; train nothing.
        out: Folder of cells and reports.
        allow_mismatch: Continue even if a collection differs from the published one. The report
            is marked.

    Examples:
        python -m bench ablate one-vector
        python -m bench ablate adapters --variant two-cores
        python -m bench ablate inference --dry-run
        python -m bench ablate inference
        python -m bench ablate retromae-table6
        python -m bench ablate three-domains --variant two-cores
        python -m bench ablate my-grid.toml --seeds 0 1 2 3 4
    """

    file: str
    _: KW_ONLY
    variant: str = ""
    seeds: Annotated[NonNegativeInts | None, SeveralValues] = None
    dry_run: bool = False
    out: OutFolder = Path("ablations")
    allow_mismatch: bool = False
    hardware: HardwareOptions = HardwareOptions()
    common: CommonOptions = CommonOptions()


@dataclass(frozen=True)
class WatchOptions:
    """Evaluate the checkpoints of a running training as they are completed.

    A checkpoint is evaluated once it is complete and its files no longer change. Its name ends in
    its step, as checkpoint-500 or epoch_3 do; run_500 counts only if a Trainer's state in it has
    that step. Its results are stored as TRAINING/checkpoint-N, after the folder of the training.
    Stop with Ctrl-C; the same command continues.

    Attributes:
        folder: Folder in which the training writes checkpoint-N.
        on: Collections, suites or folders.
        like: Card (a name or TOML file) whose pooling, prompts, lengths and precision the
            checkpoints use.
        split: Split whose judgements are used. Default: the collection's.
        once: Evaluate the present checkpoints, then stop.
        every: Time between scans of the folder, such as 30s, 5m or 1h. Default: 1m.
        stop_after: Stop if no new checkpoint is complete after this time, such as 2h. Default:
            keep watching.
        measure: Measure to select by. Default: each collection's main measure.
        results: Folder of stored results, or a URL such as s3://bucket/prefix. New results are
            added to it.
        out: Folder of the curve. Default: FOLDER/watch.
        allow_mismatch: Continue even if a collection differs from the published one. The
            results are marked.

    Examples:
        python -m bench watch runs/retromae --like retromae --on beir/nfcorpus --split dev
        python -m bench watch runs/retromae --like retromae --on beir/nfcorpus beir/fiqa --once
        python -m bench watch runs/minilm --on beir/scifact --stop-after 1h
    """

    only_if: ClassVar[OptionConditions] = {"stop_after": {"once": False}}

    folder: LocalPath
    _: KW_ONLY
    on: Names
    like: str | None = None
    split: str | None = None
    once: bool = False
    every: Duration | None = None
    stop_after: Duration | None = None
    measure: str | None = None
    results: OutLocation = Path("results")
    out: OutFolder | None = None
    allow_mismatch: bool = False
    hardware: HardwareOptions = HardwareOptions()
    common: CommonOptions = CommonOptions()


Listed = Literal["models", "datasets", "suites", "measures", "indexes", "presets", "grids"]
ModelGroup = Literal["ready", "download", "pretrained", "unpublished"]


@dataclass(frozen=True)
class ListOptions:
    """List models, datasets, suites, measures, indexes, presets or grids.

    Models come in groups: ready (on this machine), download, pretrained (not fine-tuned) and
    unpublished. A question mark after a licence means that no first-party source confirms it.

    Attributes:
        what: Kind of names to list.
        match: List only lines whose name, description or licence contains this text. Letter case
            is ignored.
        group: List only models of these groups.

    Examples:
        python -m bench list models --group ready
        python -m bench list models --match apache
        python -m bench list datasets --match cqadupstack
        python -m bench list presets
    """

    only_if: ClassVar[OptionConditions] = {"group": {"what": "models"}}

    what: Listed
    _: KW_ONLY
    match: str = ""
    group: Annotated[tuple[ModelGroup, ...], SeveralValues] = ()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class ShowOptions:
    """Show the declaration of a model, collection, suite, preset or grid, or a stored result.

    Attributes:
        name: Name (see `list`), TOML file of your own suite, or folder of a result.

    Examples:
        python -m bench show retromae
        python -m bench show beir/scifact
        python -m bench show my-suite.toml
    """

    name: str
    _: KW_ONLY
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class FetchOptions:
    """Download collections and models, and build corpora, for later use offline.

    Attributes:
        names: Collections or suites (see `list datasets` and `list suites`).
        model: Models: names (see `list models`), card files, folders or Hub ids.

    Examples:
        python -m bench fetch beir --model retromae
    """

    only_if: ClassVar[OptionConditions] = {
        name: {"model": True} for name in ("like", "adapter", "dtype", "set", "trust_code")
    }

    names: tuple[str, ...] = ()
    _: KW_ONLY
    model: Names = ()
    model_options: ModelOptions = ModelOptions()
    common: CommonOptions = CommonOptions()


@dataclass(frozen=True)
class VerifyOptions:
    """Check the data of collections: counts, duplicate ids, missing documents.

    Attributes:
        names: Collections, suites or folders (see `list datasets` and `list suites`).
        split: Split whose judgements are checked. Default: the collection's.

    Examples:
        python -m bench verify beir/scifact
    """

    names: tuple[str, ...]
    _: KW_ONLY
    split: str | None = None
    common: CommonOptions = CommonOptions()


@dataclass(frozen=True)
class CacheOptions:
    """Show the disk space of cached vectors by model, verify them, or remove them.

    Attributes:
        verify: Read all files and list damaged ones. Exit code 2 if there are any.
        prune: Remove the vectors of these models (names, or prefixes of fingerprints).
        older_than: Remove vectors that have not been used for this many days, of the models of
            --prune or of all models.
        dry_run: Show what --prune and --older-than would remove; remove nothing.
        cache_dir: Folder of the cache. Default: $BENCH_CACHE, then the user's cache folder.

    Examples:
        python -m bench cache --verify
        python -m bench cache --prune retromae --dry-run
        python -m bench cache --older-than 90
    """

    _: KW_ONLY
    verify: bool = False
    prune: Names = ()
    older_than: Annotated[NonNegativeInt | None, Parameter(metavar="DAYS")] = None
    dry_run: bool = False
    cache_dir: LocalPath | None = None
    output: OutputOptions = OutputOptions()
