"""Pages of the reference that are generated from the code: options, records, presets, grids.

docs/conf.py calls `write_reference` whenever the site is built (`tox -e docs -- FOLDER`). The pages
in `COMMITTED` are part of the repository. docs/reference/index.md says where to find the rest of
the others without the site.
"""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from bench.boards.leaderboard_record import Leaderboard
from bench.bundling.manifest import BundleManifest
from bench.bundling.replay import ReplayReport
from bench.cli.command_table import COMMANDS, Command, is_required, typed_name
from bench.cli.commands.names import NameLine
from bench.cli.main import format_default
from bench.comparing.comparison import ChangedQueries
from bench.comparing.judging_list import JudgeReport
from bench.comparing.pairs import Comparison
from bench.comparing.settling import Holes
from bench.comparing.slices import SliceComparison
from bench.comparing.statistics import Resampling
from bench.cutoffs.cutoff_record import ScoreCutoff
from bench.deploying.deployment import Deployment
from bench.evaluation.judging import SuiteMean
from bench.evaluation.result_record import Conditions, Protocol, Result, Timings
from bench.experiments import grid
from bench.experiments.command_stage import CommandSettings
from bench.experiments.evaluate_stage import EvaluateSettings
from bench.experiments.report_record import Report
from bench.experiments.training_stages import FinetuneSource
from bench.explain.ledger import Ledger
from bench.explain.setup import Answer
from bench.gate.check_record import Check
from bench.monitor import Curve
from bench.requests.outcomes import MissingEvaluation
from bench.runner.run import EncodedCount
from bench.speed.speed_report import SpeedReport
from bench.store.indexes import IndexManifest
from bench.store.store import ModelUsage
from bench.training.trainings import ComposedAdapter
from bench.tuning.tuning_record import Tuning
from datasets_cfg.catalogue import Archive, Counts, Metadata, Suite, dataset_names, metadata_for
from datasets_cfg.verification import Finding
from foundation.records import PLAIN_TYPES
from retrievers.models.card import (
    Card,
    CardAdapter,
    CardPrompts,
    CardStage,
    ExpectedScore,
    Recipe,
    all_cards,
)
from retrievers.training.engine.context import LossPoint
from retrievers.training.finetune.finetune import FinetuneResult
from retrievers.training.objectives.objective import OBJECTIVES, read_objective
from retrievers.training.preset import Finetuning, Pretraining
from retrievers.training.pretrain.pretrain import PretrainResult

NAMED = list[dict[str, str]]
LOSSES = {"losses": dict[str, LossPoint]}

# Documents that commands print with ``--json``: a record, or an object with these keys. The fields
# of a record at the key "" are keys of the document itself.
DOCUMENTS: dict[str, Any] = {
    "run": {"results": list[Result], "means": list[SuiteMean], "gaps": list[MissingEvaluation]},
    "score": {"results": list[Result], "means": list[SuiteMean], "gaps": list[MissingEvaluation]},
    "work": list[EncodedCount],
    "index": IndexManifest,
    "speed": SpeedReport,
    "compare": {
        "resampling": Resampling,
        "comparisons": list[Comparison],
        "changed": list[ChangedQueries],
        "holes": list[Holes],
        "slices": list[SliceComparison],
    },
    "check": Check,
    "judge": JudgeReport,
    "deploy": Deployment,
    "cutoff": ScoreCutoff,
    "tune": Tuning,
    "explain": Answer,
    "explain SYSTEM": Ledger,
    "leaderboard": Leaderboard,
    "pretrain": {"": PretrainResult, **LOSSES},
    "finetune": {"": FinetuneResult, **LOSSES},
    "adapt": {"checkpoints": list[PretrainResult], "scores": str},
    "compose": ComposedAdapter,
    "ablate": Report,
    "watch": {"out": str, "curve": Curve | None},
    "list": NAMED,
    "list models": list[NameLine],
    "show": dict[str, Any],
    "fetch": NAMED,
    "verify": dict[str, list[Finding]],
    "cache": {"stored": list[ModelUsage], "pruned": list[ModelUsage]},
    "export": {"files": list[str]},
    "bundle": BundleManifest,
    "replay": ReplayReport,
}

# Notes on a document that its types do not express.
REMARKS = {
    ("pretrain", "losses"): "`first` and `last`",
    ("finetune", "losses"): "`first` and `last`",
    ("adapt", "checkpoints"): "`collection`, `first_loss`, `last_loss`",
    ("adapt", "scores"): "the command to type next",
    ("ablate", ""): "with --dry-run: `rows`, `tasks`, `leaks`, `differing`, `cells`",
    ("list", ""): "`name` and `about` of each",
    ("fetch", ""): "`name` and `about` of each",
    ("show", ""): "the record, such as Card, Metadata, Suite or Result",
    ("verify", ""): "by collection",
}

# Records whose fields, and those of the records inside, are on the page about fields.
FIELD_RECORDS = (
    *(Pretraining, *map(type, map(read_objective, OBJECTIVES)), Finetuning),
    *(grid.Grid, FinetuneSource, CommandSettings, EvaluateSettings),
)
FIELDS = """\
# Fields of presets, grids and views

Presets and grids are strict TOML files: unknown fields and wrong types are errors. `python -m bench
list presets` and `list grids` list the shipped ones, and `python -m bench show NAME` prints one to
start from. `--set optimizer.lr=1e-5` changes a field of a preset.

A preset is a [Pretraining](#pretraining) or a [Finetuning](#finetuning), and a grid is a
[Grid](#grid). The stages `[base]`, `[pretrain]`, `[adapt]` and `[finetune]` of a grid have `on`,
`preset` and any field of the preset; `[adapt]` also has `method`, and `[finetune]` the fields of a
[FinetuneSource](#finetunesource). A stage that runs another program has the fields of
[CommandSettings](#commandsettings). `[evaluate]` is an [EvaluateSettings](#evaluatesettings), and
its `view` a [View](#view). Where a field has one of several tables, `name` decides which.
"""

PYTHON = """\
# Python

```{eval-rst}
.. automodule:: bench
   :members:
   :imported-members:
```
"""

CARDS = "# Model cards\n\nA model is one TOML file.\n"
COLLECTIONS = "# Collections\n\nA collection is one TOML file, or a folder.\n"
RESULTS = """\
# Results on disk

A result is a folder `RESULTS/<collection>/<model>/<key>/`:

| file | content |
| --- | --- |
| `result.json` | means, protocol, recipe, checks, timings, conditions |
| `per_query.parquet` | one row per query, one column per measure, unrounded |
| `run.arrow` | the ranking: query, document, score; Arrow with zstd |
"""

JSON_ABOUT = """\
With `--json`, a command prints one indented JSON document on stdout. `speed` always prints it as
its last line. Numbers are not rounded. A key without a value is `null`. Keys may be added in
a later version; the page about migrating lists keys that are renamed or removed.

"""

ROOT = Path(__file__).resolve().parents[1]
TRAININGS = ROOT / "retrievers/training/presets"
PRESETS = {"Pre-training": TRAININGS / "pretrain", "Fine-tuning": TRAININGS / "finetune"}
GRIDS = ROOT / "bench/experiments/grids"


def write_reference(folder: Path) -> None:
    """Write the generated pages to ``folder``. Pages that have not changed are not touched."""
    for name, make in (GENERATED | COMMITTED).items():
        path, text = folder / f"{name}.md", make()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def cell(text: object) -> str:
    """Return ``text`` for a cell of a table, on one line."""
    return " ".join(str(text).replace("|", "\\|").split())


def code(text: object) -> str:
    """Return ``text`` as code for a cell of a table, or "" for an empty text."""
    return f"`{cell(text)}`" if str(text) else ""


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table of ``rows`` below ``header``."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


PLAIN: dict[Any, str] = {
    **PLAIN_TYPES,
    type(None): "nothing",
    msgspec.UnsetType: "nothing",
    Any: "anything",
    Path: "path",
}
PLURAL = ("text", "path", "whole number", "number")  # type names that get an s in lists


def type_name(kind: Any) -> str:
    """Return the name of type ``kind`` for readers; for an option, the name in `--help` if any."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is None:
        return PLAIN.get(kind) or getattr(kind, "__name__", str(kind))
    if hasattr(kind, "__metadata__"):
        metavars = [getattr(mark, "metavar", None) for mark in kind.__metadata__]
        named = next((name for name in reversed(metavars) if isinstance(name, str)), None)
        return named.replace("|", " or ") if named else type_name(arguments[0])
    if str(origin) == "typing.Literal":
        return ", ".join(map(str, arguments))
    names = [type_name(part) for part in arguments if part is not Ellipsis]
    if origin is list or (origin is tuple and Ellipsis in arguments):
        return f"list of {names[0]}{'s' * (names[0] in PLURAL)}"
    if origin is tuple:
        return " and ".join(names)
    if origin is dict:
        return f"table of {names[1]} by {names[0]}"
    if "Union" in str(origin):
        return " or ".join(name for name in names if name != "nothing")
    return str(kind)


def field_texts(record: type[Any]) -> dict[str, str]:
    """Return the description of each field of ``record``: below the field, or in ``Attributes``."""
    texts: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if base.__module__ in ("builtins", "msgspec"):
            continue
        texts |= _below_fields(base) | _attributes(base)
    return texts


def _below_fields(record: type[Any]) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
    except (OSError, TypeError):
        return {}
    body = getattr(tree, "body", [])
    return {
        before.target.id: " ".join(after.value.value.split())
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def _attributes(record: type[Any]) -> dict[str, str]:
    doc = inspect.cleandoc(record.__dict__.get("__doc__") or "")
    _, _, section = doc.partition("Attributes:\n")
    texts: dict[str, str] = {}
    for match in re.finditer(r"^    ([\w, ]+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
        for name in match[1].split(","):
            texts[name.strip()] = " ".join(match[2].split())
    return texts


def record_table(record: type[msgspec.Struct]) -> str:
    """Return a table of the fields of ``record`` with types, defaults and descriptions."""
    texts = field_texts(record)
    rows = []
    for field in msgspec.structs.fields(record):
        default = "" if field.required else field.default
        if default is msgspec.NODEFAULT:
            default = "{}" if field.default_factory is dict else []
        if field.required:
            shown = "required"
        elif isinstance(default, msgspec.Struct):
            shown = "see below"
        elif default is None or default is msgspec.UNSET:
            shown = "not set"
        elif isinstance(default, bool):
            shown = code(str(default).lower())
        else:
            shown = code(repr(default)) if default != "" else '`""`'
        rows.append(
            (code(field.name), cell(type_name(field.type)), shown, cell(texts.get(field.name, "")))
        )
    return table(("field", "type", "default", "meaning"), rows)


def summary(record: type[Any]) -> str:
    """Return the docstring of ``record`` up to its first section."""
    doc = inspect.cleandoc(record.__doc__ or "")
    return re.split(r"\n(?:Attributes|Examples|Raises):", doc)[0].strip()


def commands() -> str:
    """Return the page of all commands with their options."""
    text = ["# Commands\n\n", "Every command answers `--help`.\n"]
    for name, command in COMMANDS.items():
        text.append(f"\n## {name}\n\n*{command.group.name}.* {command.about}\n\n")
        text.append(f"```bash\n{command.examples}\n```\n\n")
        text.append(table(("option", "value", "default", "meaning"), list(_options(command))))
    return "".join(text)


def _options(command: Command) -> Iterator[tuple[str, ...]]:
    for option in command.options.parameters.values():
        kind = option.annotation
        default = "required" if is_required(option) else code(format_default(option.default) or "")
        value = "" if get_args(kind)[0] is bool else type_name(kind)
        yield code(typed_name(option)), cell(value), default, cell(kind.__metadata__[-1].help)


def fields_page(about: str, *records: type[msgspec.Struct]) -> str:
    """Return a page: ``about``, then the docstring and a table of the fields of each record."""
    text = [about]
    for one in records:
        tag = one.__struct_config__.tag
        named = f' `name = "{tag}"`.' if tag else ""
        rows = record_table(one) if one.__struct_fields__ else "It has no other fields.\n"
        text.append(f"\n## {one.__name__}\n\n{summary(one)}{named}\n\n{rows}")
    return "".join(text)


def models() -> str:
    """Return the page of the shipped model cards."""
    rows = [
        (code(card.name), cell(card.title), code(card.checkpoint), cell(card.licence))
        for card in all_cards().values()
    ]
    return "# Shipped models\n\n" + table(("name", "title", "checkpoint", "licence"), rows)


def grids() -> str:
    """Return the page of grids: an example and the shipped grids."""
    about, _, example = inspect.cleandoc(grid.__doc__ or "").partition("::\n\n")
    example, _, rest = example.partition("\n\nAny stage may")
    text = [
        "# Grids\n\n",
        f"{about.strip()}\n\n```toml\n{textwrap.dedent(example)}\n```\n\n",
        "Run `python -m bench ablate FILE.toml --dry-run` to check it. ",
        ("Any stage may" + rest).replace("::\n\n    [", ":\n\n    ["),
        "\n\nA training stage has `on`, `preset` and the fields that differ from its "
        "[preset](presets.md). `[adapt]` also has `method`. All fields: "
        "[Fields of presets, grids and views](fields.md#grid).\n",
    ]
    return "".join([*text, shipped("", {"Shipped grids": GRIDS}).removeprefix("# \n")])


def fields() -> str:
    """Return the page of the fields of presets, grids and views."""
    records: dict[str, type[Any]] = {}
    for record in FIELD_RECORDS:
        _collect(record, records)
    return fields_page(FIELDS, *records.values())


def datasets() -> str:
    """Return the page of the shipped collections."""
    rows = []
    for name, metadata in ((name, metadata_for(name)) for name in dataset_names()):
        sizes = [
            f"{n:,}" if n else "" for n in (metadata.counts.documents, metadata.counts.queries)
        ]
        rows.append((code(name), *sizes, code(metadata.main_measure), cell(metadata.licence)))
    header = ("name", "documents", "queries", "main measure", "licence")
    return "# Shipped collections\n\n" + table(header, rows)


def json_documents() -> str:
    """Return the page of the document of each command with ``--json``, and of its records."""
    text = ["# JSON output\n\n" + JSON_ABOUT]
    records: dict[str, type[Any]] = {}
    rows = []
    for command, document in DOCUMENTS.items():
        keyed = document.items() if isinstance(document, dict) else [("", document)]
        for number, (key, kind) in enumerate(keyed):
            about = cell(REMARKS.get((command, key), ""))
            shown = "" if number else command
            rows.append((code(shown), code(key), cell(_json_type(kind)), about))
            _collect(kind, records)
    text.append(table(("command", "key", "value", "remarks"), rows))
    for name, record in sorted(records.items()):
        text.append(f"\n## {name}\n\n{summary(record)}\n\n{_fields_table(record)}")
    return "".join(text)


def _fields_table(record: type[Any]) -> str:
    texts, kinds = field_texts(record), get_type_hints(record, include_extras=True)
    rows = [
        (code(key), cell(_json_type(kinds[name])), cell(texts.get(name, "")))
        for name, key in _keys(record).items()
    ]
    return table(("key", "value", "meaning"), rows)


def _json_type(kind: Any) -> str:
    return type_name(kind) + " or null" * (type(None) in get_args(kind))


def _keys(record: type[Any]) -> dict[str, str]:
    """Return the JSON key of each field of ``record``."""
    if issubclass(record, msgspec.Struct):
        return {field.name: field.encode_name for field in msgspec.structs.fields(record)}
    return {field.name: field.name for field in dataclasses.fields(record)}


def _collect(kind: Any, records: dict[str, type[Any]]) -> None:
    """Add the record type ``kind``, and the record types inside it, to ``records`` by name."""
    for inner in get_args(kind):
        _collect(inner, records)
    if not isinstance(kind, type) or kind.__name__ in records:
        return
    if issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind):
        records[kind.__name__] = kind
        for inner in get_type_hints(kind, include_extras=True).values():
            _collect(inner, records)


def shipped(title: str, folders: dict[str, Path]) -> str:
    """Return a page of TOML files: the files of ``folders``, which maps headings to folders."""
    text = [f"# {title}\n"]
    for heading, folder in folders.items():
        text.append(f"\n## {heading}\n")
        for path in sorted(folder.glob("*.toml")):
            text.append(f"\n### {path.stem}\n\n```toml\n{path.read_text().strip()}\n```\n")
    return "".join(text)


# The generated pages by name, in the order of the site's contents.
GENERATED: dict[str, Callable[[], str]] = {
    "commands": commands,
    "python": lambda: PYTHON,
    "cards": partial(fields_page, CARDS, Card, CardStage, CardPrompts, CardAdapter, ExpectedScore),
    "models": models,
    "collections": partial(fields_page, COLLECTIONS, Metadata, Archive, Counts, Suite),
    "datasets": datasets,
    "results": partial(fields_page, RESULTS, Result, Protocol, Timings, Conditions),
    "recipe": partial(fields_page, "# Recipe\n\nEverything that changes a vector.\n", Recipe),
    "json": json_documents,
    "presets": partial(shipped, "Presets", PRESETS),
    "grids": grids,
}
COMMITTED: dict[str, Callable[[], str]] = {"fields": fields}
