"""Ways to learn one sequence, compared on the same queries: what each knows after it.

After the sequence a collection is searched with the last checkpoint, or, where each domain has an
adapter of its own, with that one: what is kept apart is not forgotten.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.compare.panels import Choices, Entrant, Panel, panel_of
from bench.compare.statistics import ALPHA, Paired, Resampling, holm, paired
from bench.compare.transfer import Forgetting, Sequenced, alone, forgetting_of, mean_level
from bench.monitor.quality_curve import Level
from bench.results.record import Conditions
from foundation.records import Record


class Row(Record, kw_only=True):
    """One way to learn the sequence.

    Attributes:
        settings: of the method, for people.
        after: level on each domain after the sequence.
        average: over the domains.
        gained: average minus that of the start.
        forgotten: over all domains but the last, after the sequence minus just after the domain;
            None where each has an adapter of its own.
        against: average minus that of the first method; None for the first.
        p_holm: of ``against``, corrected for all methods.
        losses: of masked language modelling on each domain, at the end of its own training.
        seconds: of the optimizer's steps.
        forgetting: the whole matrix of its checkpoints.
    """

    method: str
    settings: str
    after: dict[str, Level]
    average: Level
    gained: Paired
    forgotten: Paired | None
    against: Paired | None
    p_holm: float | None
    losses: dict[str, float]
    seconds: float
    forgetting: Forgetting

    @property
    def separated(self) -> bool:
        """Whether it differs from the first method on average."""
        return self.p_holm is not None and self.p_holm <= ALPHA


class Compared(Record, kw_only=True):
    """All ways.

    Attributes:
        base: what every sequence starts from, with its level on each domain and on average.
        trained: what every training is, for people.
        unofficial: collections whose counts are not the published ones.
    """

    name: str
    title: str
    measure: str
    domains: tuple[str, ...]
    also: tuple[str, ...]
    queries: dict[str, int]
    base: str
    before: dict[str, Level]
    before_average: Level
    rows: tuple[Row, ...]
    trained: str
    command: str
    conditions: Conditions
    resampling: Resampling
    unofficial: tuple[str, ...] = ()


@dataclass(frozen=True)
class Learnt:
    """A sequence that was learnt.

    Attributes:
        checkpoints: one for each domain, in order, with their results.
        losses: see `Row`, one for each domain.
        apart: whether each domain keeps its own.
    """

    method: str
    settings: str
    checkpoints: Sequence[Entrant]
    losses: Sequence[float]
    apart: bool
    seconds: float

    def after(self, place: int) -> str:
        """The checkpoint that a domain is searched with after the sequence."""
        return self.checkpoints[place if self.apart else -1].name


@dataclass(frozen=True)
class Domains:
    """The collections of the sequence, and how their queries are resampled."""

    names: tuple[str, ...]
    also: tuple[str, ...]
    measure: str
    resampling: Resampling


def rows_of(base: Entrant, learnt: Sequence[Learnt], domains: Domains) -> tuple[Row, ...]:
    """Each way with its figures, in the order given.

    Raises:
        BenchError: a result is missing or under another protocol, or too few resamples.
    """
    matrices = [_matrix(base, one, domains) for one in learnt]
    panels = _panels(base, learnt, domains)
    against = [None, *(_between(one, learnt[0], panels) for one in learnt[1:])]
    adjusted = iter(holm([one.p for one in against if one is not None]))
    return tuple(
        Row(
            method=one.method,
            settings=one.settings,
            after={
                name: _average([one.after(j)], {name: panel}, domains)
                for j, (name, panel) in enumerate(panels.items())
            },
            average=_average([one.after(j) for j in range(len(panels))], panels, domains),
            gained=_paired([(one.after(j), base.name) for j in range(len(panels))], panels),
            forgotten=None if one.apart else _forgotten(one, panels),
            against=other,
            p_holm=None if other is None else next(adjusted),
            losses=dict(zip(domains.names, one.losses, strict=True)),
            seconds=one.seconds,
            forgetting=matrix,
        )
        for one, other, matrix in zip(learnt, against, matrices, strict=True)
    )


def before(
    base: Entrant, learnt: Sequence[Learnt], domains: Domains
) -> tuple[dict[str, Level], Level]:
    """Level of the start on each domain, and on average."""
    panels = _panels(base, learnt, domains)
    levels = {name: _average([base.name], {name: one}, domains) for name, one in panels.items()}
    return levels, _average([base.name] * len(panels), panels, domains)


def _matrix(base: Entrant, one: Learnt, domains: Domains) -> Forgetting:
    sequence = Sequenced(one.checkpoints, domains.names, domains.also, base)
    return forgetting_of(sequence, domains.measure, domains.resampling)


def _panels(base: Entrant, learnt: Sequence[Learnt], domains: Domains) -> dict[str, Panel]:
    entrants = [base, *(checkpoint for one in learnt for checkpoint in one.checkpoints)]
    choices = Choices(domains.measure, resampling=domains.resampling)
    return {name: panel_of(name, entrants, choices) for name in domains.names}


def _between(one: Learnt, other: Learnt, panels: Mapping[str, Panel]) -> Paired:
    return _paired([(one.after(j), other.after(j)) for j in range(len(panels))], panels)


def _forgotten(one: Learnt, panels: Mapping[str, Panel]) -> Paired:
    names = list(panels)[:-1]
    asked = [(one.after(j), one.checkpoints[j].name) for j in range(len(names))]
    return _paired(asked, {name: panels[name] for name in names})


def _paired(asked: Sequence[tuple[str, str]], panels: Mapping[str, Panel]) -> Paired:
    """Mean over collections of the difference of two checkpoints, one pair for each."""
    parts = []
    for (after, earlier), panel in zip(asked, panels.values(), strict=True):
        found = panel.differences(after, earlier)
        if found is None:
            raise ValueError("every checkpoint was evaluated on every collection")
        parts.append(found)
    return paired(parts, [1 / len(parts)] * len(parts))


def _average(names: Sequence[str], panels: Mapping[str, Panel], domains: Domains) -> Level:
    """Mean over collections of a checkpoint's level, one for each."""
    pairs = zip(panels.values(), names, strict=True)
    return mean_level([alone(panel, name, domains.resampling) for panel, name in pairs])
