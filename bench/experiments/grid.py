"""A grid is a strict TOML file: a reference, and axes along which one field changes.

::

    name = "masks"
    seeds = [0, 1, 2]

    [pretrain]
    preset = "retromae-small"          # any other key changes a field of the preset in all rows
    on = ["stdlib-code"]

    [finetune]
    preset = "dpr-small"
    on = ["beir/nfcorpus"]

    [evaluate]
    on = ["beir/nfcorpus"]

    [[axes]]
    field = "pretrain.objective.decoder_mask"
    values = [0.15, 0.5, 0.9]          # each value that differs from the reference is a row

Any stage may be absent. Without ``pretrain``, set ``model`` to the model that is fine-tuned or
evaluated. ``base`` is a pre-training before the rows' own, done once: every row and seed continues
from it. With ``base_per_seed = true`` each seed has a base of its own, which its rows share.
``adapt`` trains on the collections of its ``on`` one after the other; its ``method`` is a
name, or a table such as ``{ name = "das", measured = 1000 }`` (see
`retrievers.training.continual`).

``pretrain`` and ``finetune`` may have a ``command`` instead of a preset: another program trains the
checkpoint (see `bench.experiments.command_stage`). An axis whose ``field`` is a training stage has
whole tables as values, so that a row of another program stands next to a preset's.

Fields have the names of the command line's options: ``measure`` and ``store-dtype`` are accepted
for ``measures`` and ``store_dtype``, a single name for a list in ``on``, and the name of a model in
``start``.

Anchors are finished models to compare with, such as ``anchors = ["bm25", "minilm"]``. They are
evaluated on the same collections.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from foundation.errors import BenchError, did_you_mean
from foundation.records import Name, Record, TomlFiles, convert_table, suggest_field

STAGES = ("base", "pretrain", "adapt", "finetune", "evaluate")

Table = dict[str, Any]
Seed = Annotated[int, msgspec.Meta(ge=0)]


class Axis(Record, kw_only=True):
    """One field and its values.

    Attributes:
        field: stage and dotted path, such as ``pretrain.objective.decoder_mask``.
        values: values of the field. A table replaces the whole table of the field.
        name: title in tables; "" for the last part of ``field``.
        labels: names of the values in tables; empty to print the values.
        against: row that these rows are compared with and differ from in ``field``; "" for the
            reference. A row is called ``AXIS=LABEL``.
    """

    field: str
    values: tuple[Any, ...]
    name: str = ""
    labels: tuple[str, ...] = ()
    against: str = ""

    def __post_init__(self) -> None:
        if self.labels and len(self.labels) != len(self.values):
            raise ValueError(f"{len(self.labels)} labels for {len(self.values)} values")
        if not self.values:
            raise ValueError("values is empty: an axis needs one or more")
        known = [self.label(number) for number in range(len(self.values))]
        for label in known:
            if known.count(label) > 1:
                raise ValueError(f"the axis {self.title} has the value {label} twice")

    @property
    def title(self) -> str:
        """Name of the axis in tables."""
        return self.name or self.field.rpartition(".")[2]

    def label(self, number: int) -> str:
        """Return the label of the value ``number``, counted from 0."""
        return self.labels[number] if self.labels else format_label(self.values[number])


class Stages(Record, kw_only=True):
    """Stages of a grid or a variant.

    Attributes:
        title: title of the report.
        model: card, folder or Hub id that is adapted, fine-tuned or evaluated; "" if ``base`` or
            ``pretrain`` trains it.
        base, pretrain, adapt, finetune, evaluate: settings of the reference; None to leave the
            stage out.
    """

    title: str = ""
    model: str = ""
    base: Table | None = None
    pretrain: Table | None = None
    adapt: Table | None = None
    finetune: Table | None = None
    evaluate: Table | None = None


class Variant(Stages, kw_only=True):
    """A smaller or larger form of a grid. Its fields replace the fields of the file.

    Attributes:
        base, pretrain: train a model instead of using the file's ``model``.
        axes: titles of axes of the file, and further axes; empty for all axes of the file.
    """

    seeds: tuple[Seed, ...] = ()
    axes: tuple[str | Axis, ...] = ()


class Grid(Stages, kw_only=True):
    """A complete grid.

    Attributes:
        name: folder of the report.
        title: title of the report.
        model: card, folder or Hub id that is adapted, fine-tuned or evaluated; "" if ``base`` or
            ``pretrain`` trains it.
        seeds: seeds that every row is trained with.
        base_per_seed: train a ``base`` for each seed; False to train one for all seeds.
        base, pretrain, adapt, finetune, evaluate: settings of the reference; None to leave the
            stage out.
        axes: fields that rows change, each with its values.
        anchors: cards, folders or Hub ids of models to compare with.
        variants: variants by name, for ``--variant``.
    """

    name: Name
    seeds: tuple[Seed, ...] = (0,)
    base_per_seed: bool = False
    axes: tuple[Axis, ...]
    anchors: tuple[str, ...] = ()
    variants: dict[Name, Variant] = {}

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ValueError("seeds is empty: name one or more, such as seeds = [0]")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds has the same seed twice")
        if bool(self.model) == bool(self.base or self.pretrain):
            raise ValueError("set either model or [pretrain]")
        if self.evaluate is None:
            raise ValueError("set [evaluate]")
        if any("seed" in table for table in self.stages().values()):
            raise ValueError("a stage has a seed: use seeds, at the top of the file, instead")
        titles = [axis.title for axis in self.axes]
        for title in titles:
            if titles.count(title) > 1:
                raise ValueError(f"two axes are called {title}: set the name of one")

    def stages(self) -> dict[str, Table]:
        """Return the settings of the reference by stage, in order, without absent stages."""
        tables = {stage: getattr(self, stage) for stage in STAGES}
        return {stage: table for stage, table in tables.items() if table is not None}


FILES = TomlFiles("grid", Path(__file__).parent / "grids", Grid)


def load_grid(name_or_path: str, variant: str = "", seeds: Sequence[int] = ()) -> Grid:
    """Load a grid from a ``.toml`` file, or a shipped one by its name.

    Args:
        name_or_path: name of a shipped grid, or path of a file.
        variant: variant of the grid, such as ``small``; "" for the grid itself.
        seeds: seeds instead of the file's; empty for the file's.

    Raises:
        BenchError: the file cannot be read (see `TomlFiles.load`), the variant does not exist,
            names an unknown axis, or contradicts the grid.
    """
    if seeds:
        return _replace_settings(load_grid(name_or_path, variant), "seeds", seeds=tuple(seeds))
    grid = FILES.load(name_or_path)
    if not variant:
        return grid
    if variant not in grid.variants:
        known = ", ".join(grid.variants) or "none"
        raise BenchError(f"{grid.name} has no variant {variant!r}", f"its variants: {known}")
    fields = msgspec.structs.asdict(grid.variants[variant])
    changes = {name: value for name, value in fields.items() if value}
    changes["name"] = f"{grid.name}-{variant}"
    changes["axes"] = _variant_axes(grid, grid.variants[variant])
    if changes.keys() & {"base", "pretrain"}:
        changes.setdefault("model", "")
    return _replace_settings(grid, f"{name_or_path}, variant {variant}", **changes)


def _replace_settings(grid: Grid, source: str, **changes: Any) -> Grid:
    """Return a copy of the grid with changes, which messages attribute to their source."""
    try:
        return msgspec.structs.replace(grid, **changes)
    except ValueError as error:
        raise BenchError(f"{source}: {error}") from error


def _variant_axes(grid: Grid, variant: Variant) -> tuple[Axis, ...]:
    """Return the axes of a variant: those it names, or all axes of the grid."""
    titled = {axis.title: axis for axis in grid.axes}
    for wanted in variant.axes:
        if isinstance(wanted, str) and wanted not in titled:
            raise BenchError(
                f"{grid.name} has no axis {wanted!r}",
                did_you_mean(wanted, titled, f"its axes: {', '.join(titled)}"),
            )
    chosen = (titled[each] if isinstance(each, str) else each for each in variant.axes)
    return tuple(chosen) or grid.axes


def format_label(value: Any) -> str:
    """Format a field's ``value``: a TOML table by its name, a list with commas."""
    if isinstance(value, Mapping):
        named = value.get("name")
        return str(named) if named else msgspec.json.encode(value).decode()
    if isinstance(value, list):
        return ", ".join(format_label(each) for each in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


# Exclusive fields: setting one unsets the others.
ONE_OF = (("steps", "epochs", "tokens"), ("model", "scratch"), ("tokenizer", "vocabulary"))
UNSET = {"model": "", "tokenizer": ""}


def merge_tables(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """Return the table ``base`` with ``changes``, merged field by field.

    A table with another ``name`` replaces the old table, because its fields differ. Setting one of
    several exclusive fields, such as ``steps`` and ``epochs``, unsets the others.
    """
    table = dict(base)
    for key, value in changes.items():
        for other in (name for names in ONE_OF if key in names for name in names):
            if other in table and other not in changes:
                table[other] = UNSET.get(other)
        old = table.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping) and _same_kind(old, value):
            table[key] = merge_tables(old, value)
        else:
            table[key] = value
    return table


def _same_kind(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return True unless the new table has a ``name`` that differs from the old one."""
    return "name" not in new or old.get("name") == new["name"]


def rename_options(table: Mapping[str, Any]) -> Table:
    """Return the ``table`` of a stage with option names replaced by field names.

    ``store-dtype`` becomes ``store_dtype``, and ``measure`` becomes ``measures``. As on the command
    line, ``on`` and ``measure`` may have a single value, and ``start`` may be the name of a model.
    """
    renamed = {key.replace("-", "_"): value for key, value in table.items()}
    if "measure" in renamed:
        renamed.setdefault("measures", renamed.pop("measure"))
    for name in ("on", "measures"):
        if isinstance(renamed.get(name), str):
            renamed[name] = [renamed[name]]
    if isinstance(renamed.get("start"), str):
        renamed["start"] = {"model": renamed["start"]}
    return renamed


class TrainingSource(Record):
    """Data and preset of a training stage.

    Attributes:
        on: collections or suites.
        preset: name of a shipped preset, or path of a .toml file; "" if the settings are complete.
    """

    on: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    preset: str = ""


S = TypeVar("S", bound=TrainingSource)


def split_source(
    table: Mapping[str, Any], stage: str, kind: type[S], preset: type[Record]
) -> tuple[S, Table]:
    """Split the table of a training stage into its data source and changes of its preset.

    Args:
        table: table of the file, or complete settings.
        stage: name of the stage, for messages.
        kind: record of the data source.
        preset: record of the preset.

    Raises:
        BenchError: an unknown field, no ``on``, a wrong value, or no preset although the settings
            are incomplete.
    """
    table = rename_options(table)
    for name in table:
        if name not in (*kind.__struct_fields__, *preset.__struct_fields__):
            hint = suggest_field(name, kind, preset)
            raise BenchError(f"[{stage}]: unknown field {name!r}", hint)
    inputs = {key: table[key] for key in kind.__struct_fields__ if key in table}
    source = convert_table(inputs, kind, f"[{stage}]")
    rest = {key: value for key, value in table.items() if key not in inputs}
    if not source.preset and "title" not in rest:
        raise BenchError(
            f"[{stage}]: the field 'preset' is missing", "python -m bench list presets"
        )
    return source, rest
