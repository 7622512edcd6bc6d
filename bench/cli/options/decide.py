"""Options of the commands that read results: ``compare``, ``check``, ``leaderboard``, ``export``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from bench.cli.options.shared import (
    DatasetName,
    FolderOptions,
    HardwareOptions,
    LocalPath,
    Measure,
    ModelName,
    ModelOptions,
    Name,
    Names,
    NonNegativeInt,
    OptionConditions,
    OutFile,
    OutLocation,
    OutputOptions,
    PositiveInt,
    ResamplingOptions,
    ResultLocations,
    SeveralValues,
    Split,
    group,
    in_group,
)
from bench.gate.settings import GateSettings

RUN_FILE_GROUP = in_group("Run files", 10)
SEQUENCE_GROUP = in_group("Continual learning", 20)


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
    measure: Measure | None = None
    results: Annotated[ResultLocations, SeveralValues] = (Path("results"),)
    force: bool = False
    dataset: Annotated[DatasetName | None, RUN_FILE_GROUP] = None
    depth: Annotated[PositiveInt | None, RUN_FILE_GROUP] = None
    split: Annotated[Split | None, RUN_FILE_GROUP] = None
    sequence: Annotated[Names, SEQUENCE_GROUP] = ()
    resampling: ResamplingOptions = ResamplingOptions()
    folder_options: FolderOptions = FolderOptions()
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

    model: ModelName
    _: KW_ONLY
    on: Names
    published: tuple[str, ...] = ()
    per_query: LocalPath | None = None
    run_file: LocalPath | None = None
    vectors: LocalPath | None = None
    checkpoint: ModelName | None = None
    canary: LocalPath | None = None
    save_canary: OutFile | None = None
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    folder_options: FolderOptions = FolderOptions()
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
    checkpoint: ModelName
    _: KW_ONLY
    baseline: ModelName
    on: Names = ()
    anchor: ModelName | None = None
    junit: OutFile | None = None
    measure: Measure | None = None
    results: OutLocation = Path("results")
    terms: Annotated[GateSettings, group("Decision rule", 10)] = GateSettings()
    allow_mismatch: bool = False
    resampling: ResamplingOptions = ResamplingOptions()
    model_options: ModelOptions = ModelOptions()
    hardware: HardwareOptions = HardwareOptions()
    folder_options: FolderOptions = FolderOptions()
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
    suite: Name = ""
    measure: Measure = ""
    published: Names | None = None
    results: Annotated[ResultLocations, SeveralValues] = (Path("results"),)
    folder_options: FolderOptions = FolderOptions()
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
    name: Annotated[Name | None, Parameter(name="--as")] = None
    results: Annotated[ResultLocations, SeveralValues] = (Path("results"),)
    output: OutputOptions = OutputOptions()
