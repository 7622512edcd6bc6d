"""The commands: their requests, how each field is typed, and options that only the terminal has.

Most fields are typed in the same way by every command (`KINDS`). The options of a command are the
fields of its request without those that only Python has, plus those of `OUTPUT`.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
from cyclopts import Group, Parameter

from bench.cli import parsing as parse
from bench.requests import data, deciding, evaluating, training
from bench.requests.fields import (
    RESULTS,
    FolderFields,
    ModelFields,
    Request,
    describe_fields,
    described_in,
    sections_of_fields,
)
from retrievers.models.recipe import ModelDtype

EVALUATE = Group("Evaluate", sort_key=1)
DECIDE = Group("Decide", sort_key=2)
TRAIN = Group("Train", sort_key=3)
STUDY = Group("Study", sort_key=4)
DATA = Group("Data", sort_key=5)

Words = tuple[str, ...]
Several = parse.SeveralValues

# How a field is typed. A command may differ, see `Command.kinds`. Fields that are missing here
# exist in Python only.
KINDS: dict[str, Any] = {
    "names": Words,
    "model": parse.Names,
    "on": parse.Names,
    "dataset": str,
    "limit": parse.PositiveInt | None,
    "measure": str | None,
    "name": str | None,
    "recompute": bool,
    "results": parse.OutLocation,
    "index": str,
    "recall_queries": parse.NonNegativeInt | None,
    "workers": parse.WorkerNumber | None,
    "engine": Literal["ray"] | None,
    "address": str | None,
    "depth": parse.PositiveInt | None,
    "split": str | None,
    "allow_mismatch": bool,
    "like": str | None,
    "endpoint_model": str | None,
    "adapter": str | None,
    "dtype": ModelDtype | None,
    "trust_code": bool,
    "device": parse.Device,
    "max_memory": parse.Size | None,
    "data_dir": parse.LocalPath | None,
    "cache_dir": parse.LocalPath | None,
    "resamples": parse.Resamples,
    "out": parse.OutFolder,
    "run": parse.LocalPath,
    "parts": Annotated[tuple[evaluating.Part, ...], Several],
    "against": Annotated[tuple[evaluating.Tool, ...], Several],
    "repeats": parse.PositiveInt,
    "rounds": parse.PositiveInt,
    "changed": parse.NonNegativeInt,
    "force": bool,
    "sequence": parse.Names,
    "published": Words,
    "per_query": parse.LocalPath | None,
    "run_file": parse.LocalPath | None,
    "vectors": parse.LocalPath | None,
    "served": str,
    "checkpoint": str | None,
    "canary": parse.LocalPath | None,
    "save_canary": parse.OutFile | None,
    "candidate": str,
    "baseline": str,
    "anchor": str | None,
    "rule": Literal["loss", "margin"],
    "margin": float,
    "floor": float,
    "expect_same": bool,
    "tolerance": float,
    "suite": str,
    "form": Literal["mteb", "trec"],
    "preset": str,
    "start": str | None,
    "negatives": parse.LocalPath | None,
    "held_out": parse.Names,
    "method": str,
    "how": Literal["average", "stack", "route"],
    "adapters": parse.LocalPaths,
    "weights": parse.Numbers | None,
    "grid": str,
    "variant": str,
    "seeds": parse.NonNegativeInts,
    "folder": parse.LocalPath,
    "once": bool,
    "every": parse.Duration,
    "stop_after": parse.Duration | None,
    "what": data.Listed,
    "match": str,
    "group": Annotated[tuple[data.ModelGroup, ...], Several],
    "verify": bool,
    "prune": parse.Names,
    "older_than": Annotated[parse.NonNegativeInt | None, Parameter(metavar="DAYS")],
}

Format = Literal["markdown", "csv", "json", "html"]


@dataclass(frozen=True)
class OutputOptions:
    """Options that only the terminal has.

    Attributes:
        json: Print one JSON document.
        dry_run: see the command.
        format: Format of the output. html is one page that opens from disk.
        junit: Also write the verdict to this file as JUnit XML.
    """

    json: bool = False
    dry_run: bool = False
    format: Format = "markdown"
    junit: Path | None = None


# Remarks in the description of a field that `--help` leaves out.
PYTHON = re.compile(r"; in Python[^.]*| \(in Python[^)]*\)| [A-Z][^.]*\bPython\b[^.]*\.")

FOLDERS = FolderFields.section
OUTPUT: dict[str, tuple[Any, tuple[str, int]]] = {
    "json": (bool, FOLDERS),
    "dry_run": (bool, Request.section),
    "format": (Format, Request.section),
    "junit": (parse.OutFile | None, Request.section),
}
SET_CARD = (
    "Override a field of the card; repeatable. Fields: max_query_tokens and max_document_tokens "
    "(truncation length), query_prompt (prefix of every query), store_dtype (float16 halves the "
    "disk space of vectors; results are kept separately)."
)
SET_PRESET = (
    "Override a field of the preset; repeatable. Examples: optimizer.lr=1e-5, batch_size=16, "
    "seed=1, epochs=2, tokens=1_000_000. save_every=N sets the steps between checkpoints, from "
    "which an interrupted training continues (default 500)."
)
COMPARED = (
    "Models with stored results (MODEL@FIELD=VALUE selects one of several), folders of results, or "
    "run files."
)
STEPS = "Optimizer steps (in fine-tuning, per round). Default: the preset's length."


@dataclass(frozen=True)
class Option:
    """Option or positional argument of a command.

    Attributes:
        name: name of the field.
        kind: type of the field with its marks.
        help: sentences of ``--help``.
        section: title and place of its section in ``--help``.
        positional: whether it is typed without a name.
        default: default value; MISSING if it is required.
    """

    name: str
    kind: Any
    help: str
    section: tuple[str, int]
    positional: bool = False
    default: Any = None

    @property
    def required(self) -> bool:
        """True if it has no default."""
        return self.default is dataclasses.MISSING

    @property
    def takes_several(self) -> bool:
        """True if it takes several values."""
        return "tuple[" in str(self.kind)

    @property
    def typed_name(self) -> str:
        """Name as in ``--help``."""
        return self.name.upper() if self.positional else option_name(self.name)


def option_name(name: str) -> str:
    """Return the option of a field, such as ``--data-dir``."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Command:
    """A command of the program.

    Attributes:
        request: class of its request.
        group: group in ``--help``.
        function: module and function below `bench.cli.commands`.
        examples: commands to copy, a line each.
        output: options of `OutputOptions` that it has, with their help if it is not the usual one.
        kinds: how fields are typed, if not as in `KINDS`.
        named: fields that are options here, and positional in Python.
        defaults: defaults of fields, if not those of the request.
        only_if: for an option, what the others must be for it to have an effect:
            ``{"weights": {"how": "average"}}``. True means that the other option is given, False
            that it is not.
    """

    request: type[Request]
    group: Group
    function: str
    examples: str
    output: Mapping[str, str] = field(default_factory=lambda: {"json": ""})
    kinds: Mapping[str, Any] = field(default_factory=dict)
    named: Words = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only_if: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def about(self) -> str:
        """Description without the fields, a line a paragraph."""
        paragraphs = without_fields(self.request).split("\n\n")
        return "\n\n".join(" ".join(text.split()) for text in paragraphs)

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

    def options(self) -> Iterator[Option]:
        """Yield positional arguments and options, in the order of ``--help``."""
        help_of, section_of = describe_fields(self.request), sections_of_fields(self.request)
        if self.to_fields is parse.read_compared_models:
            yield Option("names", Words, COMPARED, Request.section, True, dataclasses.MISSING)
        for each in sorted(attrs.fields(self.request), key=lambda each: each.inherited):
            kind = self.kinds.get(each.name, KINDS.get(each.name))
            if kind is None:
                continue
            default = self.defaults.get(each.name, each.default)
            default = dataclasses.MISSING if default is attrs.NOTHING else default
            text = re.sub(
                r"``(\w+)``", lambda name: option_name(name[1]), PYTHON.sub("", help_of[each.name])
            )
            positional = not each.kw_only and each.name not in self.named
            yield Option(each.name, kind, text, section_of[each.name], positional, default)
        for name, help_ in self.output.items():
            kind, section = OUTPUT[name]
            text = help_ or described_in(OutputOptions)[name]
            yield Option(name, kind, text, section, default=getattr(OutputOptions(), name))
        if self.to_fields is parse.read_card_settings:
            yield Option("set", parse.FieldValues, SET_CARD, ModelFields.section, default=())
        elif self.to_fields is parse.read_training_changes:
            section = training.TrainingFields.section
            yield Option("steps", parse.PositiveInt | None, STEPS, section)
            yield Option("set", parse.FieldValues, SET_PRESET, section, default=())


def without_fields(cls: type) -> str:
    """Return a docstring without its section "Attributes"."""
    return (inspect.getdoc(cls) or "").partition("Attributes:")[0].strip()


RESULT_LOCATIONS = {"results": parse.Locations}
ONE_MODEL = {"model": str}
DRY_RUN = "Show the documents to encode, the expected time and the memory; evaluate nothing."

COMMANDS: dict[str, Command] = {
    "run": Command(
        evaluating.RunRequest,
        EVALUATE,
        "run.run",
        """\
python -m bench run stdlib-code --model minilm
python -m bench run beir/scifact --model minilm --limit 20
python -m bench run beir/scifact beir/nfcorpus --model minilm bm25 --data-dir DIR
python -m bench run beir/scifact --model minilm --index 'IVF64,Flat?nprobe=8'
python -m bench run path/to/my-collection --model path/to/sentence-transformers-folder
python -m bench run beir/scifact --model minilm --adapter path/to/lora --name minilm-legal
python -m bench run msmarco/dev --model retromae-msmarco-ft --measure R@50 --json
python -m bench run beir --model retromae --workers auto
python -m bench run beir --model retromae --dry-run""",
        output={"dry_run": DRY_RUN, "json": ""},
        kinds={"measure": Words},
        only_if={"address": {"engine": "ray"}, "recall_queries": {"index": True}},
    ),
    "work": Command(
        evaluating.WorkRequest,
        EVALUATE,
        "run.work",
        """\
python -m bench work msmarco --model retromae --cache-dir /shared/cache
sbatch --array=0-7 --wrap 'python -m bench work beir --model retromae --cache-dir D'""",
    ),
    "index": Command(
        evaluating.IndexRequest,
        EVALUATE,
        "run.index",
        """\
python -m bench index beir/scifact --model minilm --index HNSW32 --out scifact-minilm
python -m bench run beir/scifact --model minilm --index scifact-minilm""",
        kinds=ONE_MODEL,
    ),
    "score": Command(
        evaluating.ScoreRequest,
        EVALUATE,
        "run.score",
        "python -m bench score my-run.trec --dataset beir/scifact",
        kinds={"measure": Words},
        named=("dataset",),
        defaults={"results": RESULTS},
    ),
    "speed": Command(
        evaluating.SpeedRequest,
        EVALUATE,
        "speed.speed",
        """\
python -m bench speed --model minilm
python -m bench speed --model minilm --parts encode --against sentence-transformers
python -m bench speed beir/nfcorpus --model minilm --against mteb beir""",
        kinds=ONE_MODEL,
        only_if={"rounds": {"names": True}},
    ),
    "compare": Command(
        deciding.CompareRequest,
        DECIDE,
        "compare.compare",
        """\
python -m bench compare minilm bm25
python -m bench compare minilm bm25 --on beir --changed 3
python -m bench compare minilm@dtype=float16 minilm@dtype=float32
python -m bench compare one.trec other.trec --dataset beir/scifact
python -m bench compare start after-bio after-law --sequence beir/nfcorpus my-law""",
        kinds={**RESULT_LOCATIONS, "dataset": str | None},
        only_if={
            "depth": {"dataset": True},
            "split": {"dataset": True},
            "sequence": {"dataset": False, "changed": False, "force": False},
        },
    ),
    "check": Command(
        deciding.CheckRequest,
        DECIDE,
        "check.check",
        """\
python -m bench check path/to/ckpt --like retromae --baseline retromae --on beir
python -m bench check path/to/ckpt --like minilm --baseline minilm --rule margin
python -m bench check minilm --baseline published --expect-same
python -m bench check --served http://localhost:8080/v1 --against minilm""",
        output={"junit": "", "json": ""},
        kinds={"against": str},
        named=("baseline",),
        only_if={
            "margin": {"rule": "margin"},
            "tolerance": {"expect_same": True},
            "rule": {"expect_same": False, "served": False},
            "against": {"served": True},
            **{key: {"served": False} for key in ("baseline", "anchor", "measure", "results")},
            **{key: {"served": False} for key in ("floor", "expect_same", "resamples")},
        },
    ),
    "explain": Command(
        deciding.ExplainRequest,
        DECIDE,
        "explain.explain",
        """\
python -m bench explain minilm --on beir/scifact --published .6451 --published R@100=.925
python -m bench explain minilm --on beir/scifact --run-file theirs.trec
python -m bench explain minilm --on beir/scifact --vectors theirs.npz
python -m bench explain minilm --on beir/scifact --checkpoint path/to/worse-checkpoint
python -m bench explain minilm --on beir/scifact --served http://localhost:8080/v1
python -m bench explain minilm --on beir/scifact --save-canary canary.npz""",
        kinds=ONE_MODEL,
        only_if={"endpoint_model": {"served": True}},
    ),
    "leaderboard": Command(
        deciding.LeaderboardRequest,
        DECIDE,
        "compare.leaderboard",
        """\
python -m bench leaderboard --format html > leaderboard.html
python -m bench leaderboard --suite beir --format csv
python -m bench leaderboard --published beir-paper dupmae""",
        output={"format": "", "json": ""},
        kinds={**RESULT_LOCATIONS, "measure": str, "published": parse.Names | None},
        named=("results",),
        only_if={"format": {"json": False}},
    ),
    "pretrain": Command(
        training.PretrainRequest,
        TRAIN,
        "training.pretrain",
        """\
python -m bench pretrain retromae-small --on stdlib-code/train --out models/code
python -m bench pretrain retromae-paper --start path/to/bert --on msmarco/dev --out models/retromae
python -m bench pretrain my-preset.toml --on beir/scifact beir/nfcorpus --out models/mine
accelerate launch --num_processes 8 -m bench pretrain retromae-paper --on msmarco/dev --out models/r
python -m bench finetune dpr-small --model models/code --on stdlib-code/train --out models/tuned""",
        named=("on", "out"),
    ),
    "finetune": Command(
        training.FinetuneRequest,
        TRAIN,
        "training.finetune",
        """\
python -m bench finetune dpr-small --model minilm --on stdlib-code/train --out models/code
python -m bench finetune dpr-small --model minilm --on beir/nfcorpus --out models/mine
python -m bench finetune retromae-beir --model models/retromae --on msmarco/train --held-out \
msmarco --out models/r
python -m bench finetune dpr --model bert-base-uncased --on msmarco/train --negatives \
qidpidtriples.train.full.2.tsv.gz --out models/dpr
python -m bench finetune dpr --model bert-base-uncased --on train.jsonl --held-out beir --out \
models/mine
python -m bench finetune mined-small --model path/to/bert --like bert --on beir/scifact --out \
models/mined --set rounds.1.margin=0.5
python -m bench run beir/nfcorpus --model minilm models/mine""",
        kinds=ONE_MODEL | {"split": str},
        named=("model", "on", "out"),
    ),
    "adapt": Command(
        training.AdaptRequest,
        TRAIN,
        "training.adapt",
        """\
python -m bench adapt mlm-small --on beir/nfcorpus beir/scifact --method das --set \
method.measured=1000 --out models/das
python -m bench adapt mlm --start path/to/bert --on beir/nfcorpus beir/fiqa --method ewc --steps \
10000 --out models/ewc
python -m bench adapt retromae-small --on beir/nfcorpus beir/fiqa --out models/plain""",
        named=("on", "out"),
    ),
    "compose": Command(
        training.ComposeRequest,
        TRAIN,
        "training.compose",
        """\
python -m bench compose average models/a models/b --out models/mean
python -m bench compose average models/a models/b --weights 3 1 --out models/mean
python -m bench compose stack models/domain models/task --out models/both
python -m bench compose route models/a models/b --on beir/nfcorpus beir/scifact --out models/routed
python -m bench run beir/scifact --model models/mean
python -m bench finetune adapter-small --model minilm --on beir/nfcorpus --out models/fused --set \
'adapter={method="fusion", over=["models/a", "models/b"]}'""",
        only_if={"weights": {"how": "average"}, "on": {"how": "route"}},
    ),
    "ablate": Command(
        training.AblateRequest,
        STUDY,
        "training.ablate",
        """\
python -m bench ablate one-vector
python -m bench ablate adapters --variant two-cores
python -m bench ablate inference --dry-run
python -m bench ablate inference
python -m bench ablate retromae-table6
python -m bench ablate three-domains --variant two-cores
python -m bench ablate my-grid.toml --seeds 0 1 2 3 4""",
        output={"dry_run": "Check everything and show the grid; train nothing.", "json": ""},
    ),
    "watch": Command(
        training.WatchRequest,
        STUDY,
        "watch.watch",
        """\
python -m bench watch runs/retromae --like retromae --on beir/nfcorpus --split dev
python -m bench watch runs/retromae --like retromae --on beir/nfcorpus beir/fiqa --once
python -m bench watch runs/minilm --on beir/scifact --stop-after 1h""",
        kinds={"out": parse.OutFolder | None},
        only_if={"stop_after": {"once": False}},
    ),
    "list": Command(
        data.ListRequest,
        DATA,
        "names.list_names",
        """\
python -m bench list models --group ready
python -m bench list models --match apache
python -m bench list datasets --match cqadupstack
python -m bench list presets""",
        only_if={"group": {"what": "models"}},
    ),
    "show": Command(
        data.ShowRequest,
        DATA,
        "names.show",
        """\
python -m bench show retromae
python -m bench show beir/scifact
python -m bench show my-suite.toml""",
        kinds={"name": str},
    ),
    "fetch": Command(
        data.FetchRequest,
        DATA,
        "data.fetch",
        "python -m bench fetch beir --model retromae",
        only_if={
            name: {"model": True} for name in ("like", "adapter", "dtype", "set", "trust_code")
        },
    ),
    "verify": Command(
        data.VerifyRequest, DATA, "data.verify", "python -m bench verify beir/scifact"
    ),
    "cache": Command(
        data.CacheRequest,
        DATA,
        "data.cache",
        """\
python -m bench cache --verify
python -m bench cache --prune retromae --dry-run
python -m bench cache --older-than 90""",
        output={"dry_run": "Show what --prune and --older-than would remove.", "json": ""},
    ),
    "export": Command(
        deciding.ExportRequest,
        DATA,
        "export.export",
        """\
python -m bench export mteb minilm --as sentence-transformers/all-MiniLM-L6-v2 --out mteb
python -m bench export trec minilm bm25 --out runs""",
        kinds={
            **RESULT_LOCATIONS,
            "out": parse.OutLocation,
            "name": Annotated[str | None, Parameter(name="--as")],
        },
    ),
}
