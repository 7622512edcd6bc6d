"""Formats of numbers for people. All rounding is decided here."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from foundation.errors import to_one_line

if TYPE_CHECKING:  # `list` needs no NumPy
    from bench.comparing.statistics import Difference, Estimate
    from bench.evaluation.result_record import Latency

WIDEST = 80  # characters of a cell with text: tables are read in a terminal
SMALLEST_P = 0.00005  # four digits would show 0 below it


def short_text(value: object, width: int = WIDEST) -> str:
    """Return ``value`` as text on one line of at most ``width`` characters."""
    line = to_one_line(str(value))
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"


TEXT = (str, short_text)  # formats aligned to the left


def numeric(figure: str) -> str:
    """Return ``figure``, which is text already, for a column aligned like numbers."""
    return figure


def display_name(name: str) -> str:
    """Return the name of a collection or suite, without folder and ending of a user's TOML file."""
    return PurePath(name).stem if name.endswith(".toml") else name


def fixed_digits(digits: int) -> Callable[[Any], str]:
    """Return a format with so many ``digits`` after the point, and commas between thousands."""
    return lambda value: f"{value:,.{digits}f}"


score = fixed_digits(4)
count = fixed_digits(0)


def milliseconds(value: float) -> str:
    """Format milliseconds with two digits: ``1.50``, ``under 0.01``."""
    return "under 0.01" if 0 < value < 0.01 else f"{value:,.2f}"


def signed(value: float | None, digits: int = 4) -> str:
    """Format a difference ``value`` with so many ``digits``: ``-0.0123``."""
    return "" if value is None else f"{value:+.{digits}f}"


def limits(of: "Estimate | Difference | None") -> tuple[float, float] | tuple[()]:
    """Return the lower and the upper limit of an interval, or () if there is no interval."""
    return () if of is None or of.low is None or of.high is None else (of.low, of.high)


def interval(of: "Estimate | Difference | None", digits: int = 4) -> str:
    """Format the interval ``of`` a difference with so many ``digits``: ``-0.0300 to +0.0050``."""
    return " to ".join(signed(limit, digits) for limit in limits(of))


def range_of(of: "Estimate | Difference") -> str:
    """Format the interval ``of`` a score: ``0.350–0.450``."""
    return "–".join(f"{limit:.3f}" for limit in limits(of))


def half_width(of: "Estimate", digits: int = 4) -> str:
    """Format half the interval ``of`` a mean with so many ``digits``: `` ± 0.0123``."""
    return "" if of.high is None else f" ± {of.high - of.value:.{digits}f}"


def paired_interval(pair: "Difference") -> str:
    """Format the interval of ``pair``, marked if too few queries changed for a reliable one."""
    if pair.low is None and not pair.changed:
        return "no query changed"
    between = interval(pair)
    return f"{between} (few)" if between and pair.few else between


def mean_score(of: "Estimate | None") -> str:
    """Format a score ``of`` a model with its interval: ``0.4000 (0.3500 to 0.4500)``."""
    if of is None:
        return ""
    between = " to ".join(map(score, limits(of)))
    return score(of.value) + (f" ({between})" if between else "")


def p_value(p: float) -> str:
    """Format ``p`` with four digits, or a smaller one as a power of ten."""
    return f"{p:.4f}" if p >= SMALLEST_P else f"{p:.0e}"


def win_tie_loss(pair: "Difference") -> str:
    """Format the wins, ties and losses of ``pair``: ``1,000 / 2,000 / 1,100``."""
    return f"{pair.wins:,} / {pair.ties:,} / {pair.losses:,}"


def score_in_domain(scored: tuple[float | None, bool]) -> str:
    """Format a score, marked if the model was trained on the collection."""
    value, in_domain = scored
    return "" if value is None else score(value) + " (in-domain)" * in_domain


def duration(seconds: float) -> str:
    """Format ``seconds`` below two minutes as such, and longer times as ``1:05:00``."""
    return f"{seconds:.1f} s" if seconds < 120 else str(timedelta(seconds=round(seconds)))


def latency(of: "Latency") -> str:
    """Format percentiles ``of`` a system: ``median 12.0 ms, 95 % 30.1, 99 % 44.0 (8 at once)``."""
    numbers = f"median {of.median_ms:.1f} ms, 95 % {of.p95_ms:.1f}, 99 % {of.p99_ms:.1f}"
    return f"{numbers} ({of.concurrency} at once)"


def parameter_count(number: int) -> str:
    """Format a ``number`` of parameters: ``22.7 M``."""
    for unit, name in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return str(number)


NOTHING_VARIES = "A mean without ± is the same with each seed and for each query"
DETECTABLE_LEGEND = "detectable: the true difference that is found with a power of 80 %"


def intervals_legend(resamples: int, seed: int | None = None) -> str:
    """Return the legend of intervals from so many ``resamples`` with this ``seed``."""
    drawn = f"{resamples:,} resamples" + ("" if seed is None else f", seed {seed}")
    return f"intervals: 95 %, bootstrap over queries, {drawn}"


def tests_legend(family: str) -> str:
    """Return the legend of p-values, corrected for a ``family`` of tests."""
    return f"p: paired randomisation (sign flips); Holm: corrected for {family}"
