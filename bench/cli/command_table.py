"""The commands: their requests, how each field is typed, and options that only the terminal has.

The options of a command are the fields of its request, without those that only Python has, plus
those of `OutputOptions`. How a field is typed follows from its type or its name.
"""

import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin, get_type_hints

import attrs
from cyclopts import Group, Parameter

from bench.cli import parsing as parse
from bench.requests import data, deciding, evaluating, fields, training
from bench.requests.fields import ModelFields, Request
from retrievers.models.settings import CARD_FIELDS, LikeSettings, ModelSettings, VectorSettings

EVALUATE = Group("Evaluate", sort_key=1)
DECIDE = Group("Decide", sort_key=2)
TRAIN = Group("Train", sort_key=3)
STUDY = Group("Study", sort_key=4)
DATA = Group("Data", sort_key=5)

Words = tuple[str, ...]

ARGUMENTS = Group("Arguments and options", sort_key=0)
MODEL_SETTINGS = Group("Model settings", sort_key=20)
TRAINING = Group("Training", sort_key=30)
HARDWARE = Group("Hardware and workers", sort_key=80)
FOLDERS = Group("Folders and output", sort_key=90)
# Sections of the fields that a class declares. The others are `ARGUMENTS`.
SECTIONS: Mapping[type, Group] = {
    **dict.fromkeys((LikeSettings, VectorSettings, ModelSettings), MODEL_SETTINGS),
    training.TrainingFields: TRAINING,
    fields.SystemFields: Group("Search systems", sort_key=30),
    **dict.fromkeys((fields.MismatchFields, fields.ProtocolFields), Group("Protocol", sort_key=40)),
    fields.ResamplingFields: Group("Intervals", sort_key=60),
    fields.HardwareFields: HARDWARE,
    fields.WorkerFields: HARDWARE,
    fields.FolderFields: FOLDERS,
}

# Fields that only Python has.
PYTHON_ONLY = {
    *("a", "b", "others", "changes", "every_measure", "fingerprint", "method_settings", "offline"),
    *("progress", "save_every", "seed", "similarity", *CARD_FIELDS),
}

# How a field is typed, by its type, unless its name decides.
BY_TYPE: dict[Any, Any] = {
    Any: str,
    int: parse.WholeNumber,
    int | None: parse.WholeNumber | None,
    Path: parse.LocalPath,
    Path | None: parse.LocalPath | None,
    tuple[Any, ...]: Words,
    tuple[Path, ...]: parse.LocalPaths,
    tuple[int, ...]: parse.WholeNumbers,
    tuple[str, ...] | None: Annotated[Words, parse.SeveralValues] | None,
}
BY_NAME: dict[str, Any] = {
    "device": parse.Device,
    "every": parse.Duration,
    "like_cutoff": Annotated[str | None, Parameter(metavar="MODEL=SCORE")],
    "max_memory": parse.Size | None,
    "older_than": Annotated[parse.WholeNumber | None, Parameter(metavar="DAYS")],
    "rescore": Annotated[str | None, Parameter(metavar="N|N:int8")],
    "run": parse.LocalPath,
    "only": Annotated[parse.LocalPath | None, Parameter(metavar="CARD")],
    "passages": Annotated[str, Parameter(metavar="SEPARATOR")],
    "stop_after": parse.Duration | None,
    "timeout": parse.Duration | None,
    "without_answer": Annotated[parse.LocalPath | None, Parameter(metavar="FILE")],
    "workers": parse.WorkerNumber | None,
}
WRITTEN = ("log_dir", "out", "results", "write")  # fields that are one folder to write

Format = Literal["markdown", "csv", "json", "html", "latex"]
Printed = Literal["markdown", "latex"]


@dataclass(frozen=True)
class OutputOptions:
    """Options that only the terminal has.

    Attributes:
        json: Print one JSON document.
        dry_run: see the command.
        format: Format of the output. html is one page that opens from disk, latex a table for a
            paper (with the package booktabs).
        junit: Also write the verdict to this file as JUnit XML.
        figure: Also draw a figure into this file: .pdf, .svg or .png.
    """

    json: bool = False
    dry_run: bool = False
    format: Format = "markdown"
    junit: parse.OutFile | None = None
    figure: parse.Figure | None = None


OUTPUT_KINDS = get_type_hints(OutputOptions, include_extras=True)
SET_CARD = (
    "Override fields of the card. Fields: max_query_tokens and max_document_tokens "
    "(truncation length), query_prompt (prefix of every query), store_dtype (float16 halves the "
    "disk space of vectors; results are kept separately), allow_unknown_tokens (true evaluates a "
    "model whose tokenizer does not know most of the words)."
)
SET_PRESET = (
    "Override fields of the preset. Examples: optimizer.lr=1e-5, batch_size=16, "
    "seed=1, epochs=2, tokens=1_000_000. save_every=N sets the steps between checkpoints, from "
    "which an interrupted training continues (default: one every 5 minutes)."
)
COMPARED = (
    "Models with stored results (MODEL@FIELD=VALUE selects one of several), folders of results, or "
    "run files."
)
STEPS = "Optimizer steps (in fine-tuning, per round). Default: the preset's length."


def option_name(name: str) -> str:
    """Return the option of a field, such as ``--data-dir``."""
    return f"--{name.replace('_', '-')}"


def is_positional(option: inspect.Parameter) -> bool:
    """Return True if an option is typed without its name."""
    return option.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD


def is_required(option: inspect.Parameter) -> bool:
    """Return True if an option has no default."""
    return option.default is inspect.Parameter.empty


def typed_name(option: inspect.Parameter) -> str:
    """Return the name of an option as in ``--help``."""
    return option.name.upper() if is_positional(option) else option_name(option.name)


def make_option(
    name: str, kind: Any, text: str, section: Group, default: Any, positional: bool = False
) -> inspect.Parameter:
    """Return an option or positional argument with its help, as Cyclopts reads it."""
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD if positional else inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, Parameter(help=text, group=section)],
    )


def name_options(text: str) -> str:
    """Return a description with the options of the fields that it names in double backquotes."""
    words = text.split("``")
    words[1::2] = map(option_name, words[1::2])
    return "".join(words)


@dataclass(frozen=True)
class Command:
    """A command of the program.

    Attributes:
        request: class of its request.
        group: group in ``--help``.
        function: module and function below `bench.cli.commands`.
        output: options of `OutputOptions` that it has, with their help if it is not the usual one.
        kinds: how fields are typed, if neither their name nor their type decides.
        named: fields that are options here, and positional in Python.
        defaults: defaults of fields, if not those of the request.
        only_if: for an option, what the others must be for it to have an effect: ``{"on":
            {"how": "route"}}``. True means that the other option is given, False that it is not.
    """

    request: type[Request]
    group: Group
    function: str
    output: Mapping[str, str] = field(default_factory=lambda: {"json": ""})
    kinds: Mapping[str, Any] = field(default_factory=dict)
    named: Words = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only_if: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def about(self) -> str:
        """Description without the fields, a line a paragraph."""
        text, _, _ = (inspect.getdoc(self.request) or "").partition("Examples:\n")
        text, _, _ = text.partition("Attributes:\n")
        paragraphs = name_options(text).strip().split("\n\n")
        return "\n\n".join(" ".join(part.split()) for part in paragraphs)

    @property
    def examples(self) -> str:
        """Commands to copy, a line each."""
        _, _, examples = (inspect.getdoc(self.request) or "").partition("Examples:\n")
        return textwrap.dedent(examples).strip()

    @property
    def to_fields(self) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
        """Function that turns typed values into fields of the request, if they differ."""
        readers = {
            ModelFields: parse.read_card_settings,
            training.TrainingFields: parse.read_training_changes,
            deciding.CompareRequest: parse.read_compared_models,
        }
        found = (read for kind, read in readers.items() if issubclass(self.request, kind))
        return next(found, None)

    @cached_property
    def options(self) -> inspect.Signature:
        """Positional arguments, then options in the order of ``--help``."""
        options = [*self._fields(), *self._output()]
        if self.to_fields is parse.read_compared_models:
            empty = inspect.Parameter.empty
            options.insert(0, make_option("names", Words, COMPARED, ARGUMENTS, empty, True))
        elif self.to_fields is parse.read_card_settings:
            options.append(make_option("set", parse.FieldValues, SET_CARD, MODEL_SETTINGS, ()))
        elif self.to_fields is parse.read_training_changes:
            steps = make_option("steps", parse.WholeNumber | None, STEPS, TRAINING, None)
            options.append(steps)
            options.append(make_option("set", parse.FieldValues, SET_PRESET, TRAINING, ()))
        return inspect.Signature(sorted(options, key=lambda option: option.kind))

    def _fields(self) -> Iterator[inspect.Parameter]:
        """Yield the options that are fields of the request."""
        described = fields.describe_fields(self.request)
        type_of = get_type_hints(self.request)
        for each in fields.ordered_fields(self.request):
            if each.name in PYTHON_ONLY:
                continue
            positional = not each.kw_only and each.name not in self.named
            kind = self.kinds.get(each.name) or _kind_of(each.name, type_of[each.name], positional)
            default = self.defaults.get(each.name, each.default)
            if default is attrs.NOTHING:
                default = inspect.Parameter.empty
            elif each.converter is not None and default is not None:
                default = each.converter(default)
            text, declared_by = described[each.name]
            section = SECTIONS.get(declared_by, ARGUMENTS)
            yield make_option(each.name, kind, name_options(text), section, default, positional)

    def _output(self) -> Iterator[inspect.Parameter]:
        """Yield the options that only the terminal has."""
        described = fields.described_in(OutputOptions)
        for name, text in self.output.items():
            kind = self.kinds.get(name, OUTPUT_KINDS[name])
            section = FOLDERS if name == "json" else ARGUMENTS
            default = getattr(OutputOptions(), name)
            yield make_option(name, kind, text or described[name], section, default)


def _kind_of(name: str, type_: Any, positional: bool) -> Any:
    """Return how a field is typed. One option with several values takes them all."""
    if name in WRITTEN and type_ in (Path, Path | None):
        return parse.OutFolder if type_ is Path else parse.OutFolder | None
    kind = BY_NAME.get(name, BY_TYPE.get(type_, type_))
    is_tuple = get_origin(kind) is tuple
    return Annotated[kind, parse.SeveralValues] if is_tuple and not positional else kind


LATEX = "Format of the output. latex is a table for a paper (with the package booktabs)."
FIGURE = "Also draw {} into this file: .pdf, .svg or .png."
FIGURE_OF_INDEXES = FIGURE.format("queries per second against the recall of indexes")
FIGURE_OF_COSTS = FIGURE.format("scores against encoding speed and bytes per document")
FIGURE_OF_SETTINGS = FIGURE.format("the loss of each tested setting against its bytes and its time")
FIGURE_OF_SLICES = FIGURE.format("the differences of all slices with their intervals")
FIGURE_OF_CUTOFFS = FIGURE.format("what each cut-off keeps against what it lets through")
FIGURE_OF_PIPELINES = FIGURE.format("the gain of each setting with its interval against its cost")
DRY_RUN = "Show the documents to encode, the expected time and the memory; evaluate nothing."

COMMANDS: dict[str, Command] = {
    "run": Command(
        evaluating.RunRequest,
        EVALUATE,
        "evaluating.run",
        output={"dry_run": DRY_RUN, "json": ""},
        kinds={"measure": Words},
        only_if={"address": {"engine": "ray"}, "recall_queries": {"index": True}},
    ),
    "work": Command(evaluating.WorkRequest, EVALUATE, "evaluating.work"),
    "index": Command(evaluating.IndexRequest, EVALUATE, "evaluating.index"),
    "score": Command(
        evaluating.ScoreRequest,
        EVALUATE,
        "evaluating.score",
        kinds={"measure": Words},
        named=("dataset",),
        defaults={"results": fields.RESULTS},
    ),
    "speed": Command(
        evaluating.SpeedRequest,
        EVALUATE,
        "evaluating.speed",
        output={"figure": FIGURE_OF_INDEXES, "json": ""},
        only_if={"rounds": {"names": True}, "figure": {"index": True}},
    ),
    "compare": Command(
        deciding.CompareRequest,
        DECIDE,
        "deciding.compare",
        output={"format": LATEX, "figure": FIGURE_OF_SLICES, "json": ""},
        kinds={"format": Printed},
        only_if={
            "format": dict.fromkeys(("json", "changed", "holes", "sequence", "by"), False),
            "figure": {"by": True},
            "depth": {"dataset": True},
            "split": {"dataset": True},
            "sequence": dict.fromkeys(("on", "dataset", "changed", "holes", "by"), False),
        },
    ),
    "check": Command(
        deciding.CheckRequest,
        DECIDE,
        "deciding.check",
        output={"junit": "", "json": ""},
        named=("baseline",),
        only_if={
            "tolerance": {"expect_same": True},
            **{name: {"expect_same": False} for name in ("margin", "floor", "by")},
        },
    ),
    "deploy": Command(
        deciding.DeployRequest,
        DECIDE,
        "deciding.deploy",
        output={"figure": FIGURE_OF_SETTINGS, "json": ""},
        named=("on",),
    ),
    "cutoff": Command(
        deciding.CutoffRequest,
        DECIDE,
        "deciding.cutoff",
        output={"figure": FIGURE_OF_CUTOFFS, "json": ""},
        named=("on",),
        only_if={"keep": {"like_cutoff": False}},
    ),
    "tune": Command(
        deciding.TuneRequest,
        DECIDE,
        "deciding.tune",
        output={"figure": FIGURE_OF_PIPELINES, "json": ""},
        named=("on",),
        kinds={"out": parse.OutFile | None},
    ),
    "explain": Command(
        deciding.ExplainRequest,
        DECIDE,
        "deciding.explain",
        kinds={"published": Words, "measure": Words},
        only_if={"measure": {"checkpoint": True}},
    ),
    "judge": Command(
        deciding.JudgeRequest,
        DECIDE,
        "deciding.judge",
        only_if={"budget": {"action": "export"}, "measure": {"action": "export"}},
    ),
    "leaderboard": Command(
        deciding.LeaderboardRequest,
        DECIDE,
        "deciding.leaderboard",
        output={"format": "", "figure": FIGURE_OF_COSTS, "json": ""},
        named=("results",),
        only_if={"format": {"json": False}},
    ),
    "pretrain": Command(training.PretrainRequest, TRAIN, "training.pretrain", named=("on", "out")),
    "finetune": Command(
        training.FinetuneRequest, TRAIN, "training.finetune", named=("model", "on", "out")
    ),
    "adapt": Command(training.AdaptRequest, TRAIN, "training.adapt", named=("on", "out")),
    "compose": Command(
        training.ComposeRequest, TRAIN, "training.compose", only_if={"on": {"how": "route"}}
    ),
    "ablate": Command(
        training.AblateRequest,
        STUDY,
        "training.ablate",
        output={
            "dry_run": "Check everything and show the grid; train nothing.",
            "format": LATEX,
            "json": "",
        },
        kinds={"format": Printed},
        only_if={"format": {"json": False, "dry_run": False}},
    ),
    "watch": Command(
        training.WatchRequest, STUDY, "evaluating.watch", only_if={"stop_after": {"once": False}}
    ),
    "list": Command(data.ListRequest, DATA, "names.list_names"),
    "show": Command(data.ShowRequest, DATA, "names.show"),
    "fetch": Command(
        data.FetchRequest,
        DATA,
        "data.fetch",
        only_if={
            name: {"model": True} for name in ("like", "adapter", "dtype", "set", "trust_code")
        },
    ),
    "verify": Command(data.VerifyRequest, DATA, "data.verify"),
    "cache": Command(data.CacheRequest, DATA, "data.cache"),
    "export": Command(deciding.ExportRequest, DATA, "deciding.export"),
    "bundle": Command(data.BundleRequest, DATA, "bundling.bundle"),
    "replay": Command(data.ReplayRequest, DATA, "bundling.replay"),
}
