"""All stored results side by side as a data frame, and a comparison as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from bench.api.decisions import ComparisonResult
from bench.boards.assembly import Choice, assemble
from bench.boards.rows import results_in
from bench.comparing.statistics import Resampling
from bench.results.location import place_of
from retrievers.models.card import all_cards

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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
    from reports.leaderboard.exports import scores

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
