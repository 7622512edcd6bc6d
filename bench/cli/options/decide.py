"""Options of the commands that read results and decide: ``compare``, ``check``, ``leaderboard``..."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from bench.cli.options.shared import (
    FolderOptions,
    HardwareOptions,
    ModelOptions,
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
    group,
)
from bench.gate.settings import GateSettings


@dataclass(frozen=True)
class CompareOptions:
    """Show which model is better, by how much, and on which queries.

    Attributes:
        names: Models with stored results, MODEL@FIELD=VALUE, folders of results, or run files.
        on: Only these collections or suites; a suite of your own is a TOML file.
        measure: Measure to use, instead of each collection's main one.
        force: Compare across different protocols; the table is marked.
        changed: Show the N queries on which each model of a pair is better by most.
        dataset: Collection or folder whose judgements score run files.
        depth: Documents per query of run files. Default: the collection's, usually 1,000.
        split: Split that scores run files. Default: the collection's.
        sequence: Collections that the models were trained on one after the other: backward and
            forward transfer. The first model may be what the training started from; --on names
            further collections.
        results: Stored results: folders, or URLs such as s3://bucket/prefix.

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
    measure: str | None = None
    force: bool = False
    changed: NonNegativeInt = 0
    dataset: str | None = None
    depth: PositiveInt | None = None
    split: str | None = None
    sequence: Names = ()
    results: Annotated[ResultLocations, SeveralValues] = (Path("results"),)
    resampling: ResamplingOptions = ResamplingOptions()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class CheckOptions:
    """Decide whether a checkpoint may ship; the exit code is the verdict.

    Exit codes: 0 it may, 1 regression, 2 bad input, 3 inconclusive, 4 an evaluation or a result of
    the baseline is missing, 5 drift (not the checkpoint that it claims to be). In JUnit XML a
    regression is a failure, missing and drift are errors, and inconclusive is skipped.

    Attributes:
        checkpoint: Name, card file, folder or Hub id.
        baseline: Model with stored results, MODEL@FIELD=VALUE, folder of results, or
            `published`.
        anchor: Also check against this fixed older release; the worse outcome decides.
        on: Collections, suites (your own: a TOML file) or folders. Default: the baseline's.
        junit: Also write the verdict as JUnit XML.
        measure: Measure to use, instead of each collection's main one.
        results: Stored results, to which new ones are added: a folder, or a URL such as
            s3://bucket/prefix.
        allow_mismatch: Continue although a collection differs from the published one; the
            result is marked.

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
    anchor: str | None = None
    on: Names = ()
    junit: OutFile | None = None
    measure: str | None = None
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
        format: Format on stdout; html is one file that opens from disk.
        suite: Show only the collections of this suite and its mean, even where that is a gap; a
            suite of your own is a TOML file.
        measure: Measure to use, instead of each collection's main one.
        published: Also show published scores of other systems, marked as claims: names of the
            tables in bench/boards/published, `cards` for the models of `list models`, or `all`.
        results: Stored results: folders, or URLs such as s3://bucket/prefix.

    Examples:
        python -m bench leaderboard --format html > leaderboard.html
        python -m bench leaderboard --suite beir --format csv
        python -m bench leaderboard --published beir-paper dupmae
    """

    _: KW_ONLY
    format: Literal["markdown", "csv", "json", "html"] = "markdown"
    suite: str = ""
    measure: str = ""
    published: Annotated[tuple[str, ...] | None, SeveralValues] = None
    results: Annotated[ResultLocations, SeveralValues] = (Path("results"),)
    folder_options: FolderOptions = FolderOptions()
    resampling: ResamplingOptions = ResamplingOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class ExportOptions:
    """Write stored results as mteb or trec_eval read them.

    mteb: MODEL/REVISION/SciFact.json, as mteb 2 reads it. trec: MODEL/COLLECTION.trec.gz, the
    rankings.

    Attributes:
        format: Format to write.
        names: Models with stored results, as for compare.
        out: Folder or URL of the files.
        on: Only these collections or suites.
        name: Name of the model in the files, where there is only one.
        results: Stored results: folders, or URLs such as s3://bucket/prefix.

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
    results: Annotated[ResultLocations, SeveralValues] = (Path("results"),)
    output: OutputOptions = OutputOptions()
