"""An ablation as a strict TOML file: a reference, and axes along which one field changes.

::

    name = "masks"
    seeds = [0, 1, 2]

    [pretrain]
    preset = "retromae-small"          # any other key changes the preset, for all rows
    on = ["stdlib-code"]

    [finetune]
    preset = "dpr-small"
    on = ["beir/nfcorpus"]

    [evaluate]
    on = ["beir/nfcorpus"]

    [[axes]]
    field = "pretrain.objective.decoder_mask"
    values = [0.15, 0.5, 0.9]          # each that is not the reference's is a row

Any stage may be absent; without ``pretrain``, ``model`` says what is fine-tuned or evaluated.
``base`` is a pre-training before that of the rows, done once: every row and seed goes on from it.
``adapt`` trains on one collection of its ``on`` after the other: its ``method`` is a name, or a
table such as ``{ name = "das", soften = "update" }`` (see `retrievers.training.continual`).

Endpoints are several evaluations of what the rows trained, each after a fine-tuning of its own or
after none; each is an ablation of its own, and cells are shared::

    [endpoints.untrained.evaluate]
    on = ["beir/nfcorpus"]

    [endpoints.few.finetune]           # its evaluate as above
    preset = "dpr-small"
    on = ["beir/nfcorpus"]
    queries = 100

Hypotheses are comparisons of two rows that were fixed before any result::

    [[hypotheses]]
    row = "objective=retromae"
    against = "objective=condenser"
    expected = "better"                # or "equal"
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from foundation.errors import BenchError, did_you_mean
from foundation.records import Name, Record, TomlFiles, convert_table

STAGES = ("base", "pretrain", "adapt", "finetune", "evaluate")

Table = dict[str, Any]
Seed = Annotated[int, msgspec.Meta(ge=0)]


class Axis(Record, kw_only=True):
    """One field and its values.

    Attributes:
        field: stage and dotted path, such as ``pretrain.objective.decoder_mask``.
        values: that it takes. A table replaces the field's table as a whole.
        name: in tables; the last part of ``field`` where it is "".
        labels: of the values, if they do not speak for themselves.
        against: the row that these rows change one field of; "" for the reference. A row is named
            ``AXIS=LABEL``.
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
            raise ValueError("an axis needs values")
        known = [self.label(number) for number in range(len(self.values))]
        for label in known:
            if known.count(label) > 1:
                raise ValueError(f"the axis {self.title} has the value {label} twice")

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.name or self.field.rpartition(".")[2]

    def label(self, number: int) -> str:
        """Label of a value."""
        return self.labels[number] if self.labels else format_label(self.values[number])


class Hypothesis(Record, kw_only=True):
    """A comparison that was fixed before any result.

    Attributes:
        row, against: names of two rows.
        expected: of the row; ``equal`` is never shown, but a difference refutes it.
    """

    row: str
    against: str
    expected: Literal["better", "equal"]


class Endpoint(Record, kw_only=True):
    """An evaluation of what the rows trained, after a fine-tuning of its own or after none.

    Attributes:
        title: in the report; its name if it is "".
        finetune, evaluate: tables of these stages.
    """

    title: str = ""
    finetune: Table | None = None
    evaluate: Table


class Variant(Record, kw_only=True):
    """The same question at another scale: what is set here takes the file's own place.

    Attributes:
        base, pretrain: train what the file names as its ``model``, whose place they take.
        axes: titles of the axes that are kept, and axes of the variant's own; the file's where it
            is empty.
    """

    title: str = ""
    seeds: tuple[Seed, ...] = ()
    model: str = ""
    base: Table | None = None
    pretrain: Table | None = None
    adapt: Table | None = None
    finetune: Table | None = None
    evaluate: Table | None = None
    endpoints: dict[Name, Endpoint] = {}
    axes: tuple[str | Axis, ...] = ()


class Grid(Record, kw_only=True):
    """A whole ablation.

    Attributes:
        name: of the folder of its report.
        title: in the report.
        model: card, folder or Hub id that is adapted, fine-tuned or evaluated; "" if ``base``
            or ``pretrain`` says what is trained.
        seeds: every row is trained once with each; ``base`` is not.
        base, pretrain, adapt, finetune, evaluate: settings of the reference; None for no such
            stage.
        endpoints: by name, instead of ``finetune`` and ``evaluate``.
        axes: fields that rows change, each with its values.
        hypotheses: comparisons of two rows that were fixed before any result.
        variants: by name, for ``--variant``.
    """

    name: Name
    title: str = ""
    model: str = ""
    seeds: tuple[Seed, ...] = (0,)
    base: Table | None = None
    pretrain: Table | None = None
    adapt: Table | None = None
    finetune: Table | None = None
    evaluate: Table | None = None
    endpoints: dict[Name, Endpoint] = {}
    axes: tuple[Axis, ...]
    hypotheses: tuple[Hypothesis, ...] = ()
    variants: dict[Name, Variant] = {}

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ValueError("at least one seed is needed")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("a seed is named twice")
        if bool(self.model) == bool(self.base or self.pretrain):
            raise ValueError("set either model or [pretrain]: what is trained or evaluated")
        if self.endpoints and (self.finetune or self.evaluate):
            raise ValueError("[finetune] and [evaluate] belong into the endpoints")
        if not self.endpoints and self.evaluate is None:
            raise ValueError("set [evaluate] or [endpoints]")
        if any("seed" in table for table in self.stages().values()):
            raise ValueError("seeds says with which seeds every row is trained")
        titles = [axis.title for axis in self.axes]
        for title in titles:
            if titles.count(title) > 1:
                raise ValueError(f"two axes are called {title}: give one a name of its own")

    def stages(self) -> dict[str, Table]:
        """Settings of the reference, by stage, in order; absent stages are left out."""
        tables = {stage: getattr(self, stage) for stage in STAGES}
        return {stage: table for stage, table in tables.items() if table is not None}

    def split_endpoints(self) -> tuple["Grid", ...]:
        """An ablation for each endpoint, in their order; itself where it has none."""
        return tuple(
            msgspec.structs.replace(
                self,
                name=f"{self.name}-{name}",
                title=": ".join(filter(None, (self.title, endpoint.title or name))),
                finetune=endpoint.finetune,
                evaluate=endpoint.evaluate,
                endpoints={},
                variants={},
            )
            for name, endpoint in self.endpoints.items()
        ) or (self,)


FILES = TomlFiles("ablation", Path(__file__).parent / "grids", Grid)


def load_grid(name_or_path: str, variant: str = "") -> Grid:
    """The ablation of a ``.toml`` file, or a shipped one by its name.

    Args:
        variant: of the file, such as ``small``.

    Raises:
        BenchError: see `TomlFiles.load`; no such variant, or it keeps an unknown axis or does not
            fit the file.
    """
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
    return replace_settings(grid, f"{name_or_path}, variant {variant}", **changes)


def replace_settings(grid: Grid, source: str, **changes: Any) -> Grid:
    """An ablation with other fields; ``source`` names where they come from in messages.

    Raises:
        BenchError: they contradict each other or the others.
    """
    try:
        return msgspec.structs.replace(grid, **changes)
    except ValueError as error:
        raise BenchError(f"{source}: {error}") from error


def _variant_axes(grid: Grid, variant: Variant) -> tuple[Axis, ...]:
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
    """A value for people: a table by its name, numbers and words as they are written."""
    if isinstance(value, Mapping):
        named = value.get("name")
        return str(named) if named else msgspec.json.encode(value).decode()
    if isinstance(value, list):
        return ", ".join(format_label(each) for each in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


# Fields of which one is set: naming one unsets the others.
ONE_OF = (("steps", "epochs", "tokens"), ("model", "scratch"), ("tokenizer", "vocabulary"))
UNSET = {"model": "", "tokenizer": ""}


def merge_tables(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """A preset's table with changes; a table of another ``name`` takes the old one's place."""
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
    return "name" not in new or old.get("name") == new["name"]


class TrainingSource(Record):
    """What a training reads: collections, and its preset, without which settings are complete."""

    on: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    preset: str = ""


S = TypeVar("S", bound=TrainingSource)


def split_source(table: Mapping[str, Any], stage: str, kind: type[S]) -> tuple[S, Table]:
    """What a training reads, and the rest of its table.

    Raises:
        BenchError: there is no ``on``, neither a preset nor complete settings, or a wrong value.
    """
    inputs = {key: table[key] for key in kind.__struct_fields__ if key in table}
    source = convert_table(inputs, kind, f"[{stage}]")
    rest = {key: value for key, value in table.items() if key not in inputs}
    if not source.preset and "title" not in rest:
        raise BenchError(f"[{stage}] needs a preset", 'preset = "NAME", or a .toml file')
    return source, rest
