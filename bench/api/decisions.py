"""Compare results, decide whether a candidate may ship, and rank models, from Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.boards.assembly import Choice, assemble
from bench.boards.rows import results_in
from bench.comparing.compare import Choices, Comparison, Entrant
from bench.comparing.compare import compare as compare_entrants
from bench.comparing.statistics import Resampling
from bench.evaluate.judging import mean_weights, with_inner
from bench.gate.evidence import check_against
from bench.gate.records import BASELINE, Check
from bench.gate.scope import Candidate
from bench.gate.settings import GateSettings, Rule
from bench.gate.verdicts import conclude
from bench.results.find import expand_collections
from bench.results.location import place_of
from bench.results.result import Evaluation
from foundation.errors import BenchError
from retrievers.models.card import all_cards

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Results = Evaluation | Sequence[Evaluation]


@dataclass(frozen=True)
class ComparisonResult:
    """Two models on the collections that both have.

    Attributes:
        record: everything, as ``bench compare --json`` prints it.
        resampling: how intervals and p-values were drawn.
    """

    record: Comparison
    resampling: Resampling

    @property
    def table(self) -> "pd.DataFrame":
        """One row for each collection: means, difference (a minus b), 95 % interval, p-values.

        ``better`` is the name of the better model by p of Holm at 5 %, or "" where neither is.
        """
        from reports.comparison import figures

        return figures(self.record).frame()


def compare(
    a: Results,
    b: Results,
    *,
    on: Sequence[str] = (),
    measure: str | None = None,
    force: bool = False,
    resamples: int = 9_999,
    seed: int = 0,
) -> ComparisonResult:
    """Compare two models: which is better, by how much, with intervals and p-values.

    Args:
        a, b: a result, or results of one model on several collections.
        on: only these collections and suites, whose means are in ``record.suites``; a suite of your
            own is the path of its TOML file.
        measure: instead of the main measure of each collection.
        force: compare results of different protocols.
        resamples, seed: of the bootstrap and the randomisation test.

    Raises:
        BenchError: different protocols, no collection that both have, or too few resamples.
    """
    entrants = [_entrant(results) for results in (a, b)]
    if entrants[0].name == entrants[1].name:
        first, second = entrants
        entrants = [Entrant(f"{first.name} (a)", first.entries)]
        entrants.append(Entrant(f"{second.name} (b)", second.entries))
    collections = {name for entrant in entrants for name in entrant.entries}
    choices = Choices(
        measure=measure,
        force=force,
        collections=expand_collections(on, collections) if on else None,
        suites=with_inner(on) if on else None,
        resampling=Resampling(resamples, seed),
    )
    (record,) = compare_entrants(entrants, choices)
    return ComparisonResult(record, choices.resampling)


def check(
    candidate: Results,
    baseline: Results,
    *,
    on: Sequence[str] = (),
    rule: Rule = "loss",
    margin: float = 0.01,
    floor: float = 0.1,
    expect_same: bool = False,
    tolerance: float = 0.0005,
    measure: str | None = None,
    resamples: int = 9_999,
    seed: int = 0,
) -> Check:
    """Decide whether a candidate may ship, as ``bench check`` does.

    Args:
        candidate, baseline: a result, or results of one model on several collections. A collection
            that one of them lacks is MISSING.
        on: collections and suites to check on, and the weights of their mean, as of
            ``bench check --on``; empty for all that either has.
        rule, margin, floor, expect_same, tolerance: as of ``bench check``.

    Returns:
        The verdict: ``outcome`` (OK, REGRESSION, INCONCLUSIVE, MISSING or DRIFT), ``exit_code``,
        ``reasons``, and the evidence below ``against``.

    Raises:
        BenchError: different protocols, or too few resamples.
    """
    new, old = _entrant(candidate), _entrant(baseline)
    collections = dict.fromkeys([*old.entries, *new.entries])
    weights = mean_weights(on or collections)
    settings = GateSettings(
        rule=rule, margin=margin, floor=floor, expect_same=expect_same, tolerance=tolerance
    )
    choices = Choices(measure, resampling=Resampling(resamples, seed))
    if not expect_same:
        choices.resampling.check_enough(len(weights), sides=2)
    verdict = check_against(
        *(BASELINE, old.name, Candidate(new.name, new.entries), old.entries, {}),
        *(weights, settings, choices),
    )
    return conclude(new.name, [verdict], (), settings)


def _entrant(results: Results) -> Entrant:
    """The one model of some results, by collection."""
    several = [results] if isinstance(results, Evaluation) else list(results)
    names = sorted({result.model for result in several})
    if len(names) != 1:
        listed = ", ".join(names) or "none"
        raise BenchError(
            f"results of one model are needed, and these are of {listed}",
            "pass a result, or a list of results of one model",
        )
    entries = {result.collection: result for result in several}
    if len(entries) < len(several):
        raise BenchError(f"two of the results of {names[0]} are on one collection", "pass one")
    return Entrant(names[0], entries)


def leaderboard(
    folder: str | Path = "results",
    *,
    suite: str = "",
    measure: str = "",
    resamples: int = 9_999,
    seed: int = 0,
) -> "pd.DataFrame":
    """Stored results side by side, the best model first.

    Args:
        folder: results, or a URL of a store.
        suite: only its collections and its mean; a suite of your own is the path of its TOML file,
            and its column has the name of the file.
        measure: instead of the main measure of each collection.
        resamples, seed: behind the groups.

    Returns:
        A row for each model and recipe, by name; a column for each collection and suite, with the
        mean of its measure, NaN for a gap; and ``group``: 1 for the best where models are ranked
        and all that cannot be told apart from it at 5 %.

    Raises:
        BenchError: there is no result, or one is damaged.
    """
    from reports.leaderboard import scores

    place = place_of(str(folder))
    choice = Choice(suite=suite, measure=measure)
    board = assemble(results_in(place), all_cards(), choice, Resampling(resamples, seed))
    return scores(board, measure).frame().set_index("model")


def plot(comparison: ComparisonResult) -> "Figure":
    """A forest plot of a comparison, for a paper: each difference on its 95 % interval.

    Returns:
        A matplotlib figure; ``figure.savefig("comparison.pdf")`` writes it.

    Raises:
        ImportError: matplotlib is not installed: ``pip install 'retrieval-bench[plots]'``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from reports.plots.leaderboard import differences, lines_of

    record = comparison.record
    tests = [*(row.paired for row in record.suites), *(row.paired for row in record.collections)]
    lines = lines_of([test for test in tests if test])
    figure = Figure(figsize=(7, 2 + 0.3 * len(lines)), layout="constrained")
    FigureCanvasAgg(figure)
    differences(figure, lines, f"{record.a} − {record.b}")
    return figure
