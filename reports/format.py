"""Figures as people read them: what is rounded, and how, is decided here and nowhere else.

A figure that is not known is an empty text.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # `list` needs no NumPy
    from bench.comparing.statistics import Difference, MeanScore

SMALLEST_P = 0.00005  # four digits would show 0 below it


class _Limits(Protocol):
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def as_text(value: object) -> str:
    """The value as it is."""
    if isinstance(value, str):
        return value
    return "" if value is None else str(value)


def right_aligned(figure: str) -> str:
    """A figure that is text already, and stands where numbers do."""
    return figure


def display_name(name: str) -> str:
    """A collection or suite; a suite of the user's own, named by its path, by its file's name."""
    return PurePath(name).stem if name.endswith(".toml") else name


def fixed_digits(digits: int) -> Callable[[Any], str]:
    """A format with so many digits after the point, and commas between thousands."""
    return lambda value: "" if value is None else f"{value:,.{digits}f}"


score = fixed_digits(4)
count = fixed_digits(0)


def signed(value: float | None, digits: int = 4) -> str:
    """A difference: ``-0.0123``."""
    return "" if value is None else f"{value:+.{digits}f}"


def interval(of: _Limits | None, digits: int = 4) -> str:
    """The interval of a difference: ``-0.0300 to +0.0050``."""
    if of is None or of.low is None or of.high is None:
        return ""
    return f"{signed(of.low, digits)} to {signed(of.high, digits)}"


def range_of(of: _Limits | None, digits: int = 3) -> str:
    """The interval of a score or a factor: ``0.350–0.450``."""
    if of is None or of.low is None or of.high is None:
        return ""
    return f"{of.low:.{digits}f}–{of.high:.{digits}f}"


def paired_interval(pair: "Difference | None") -> str:
    """The interval of a paired difference, marked where too few queries changed to rely on it."""
    if pair is not None and pair.low is None and not pair.changed:
        return "no query changed"
    limits = interval(pair)
    return f"{limits} (few)" if limits and pair and pair.few else limits


def mean_score(of: "MeanScore | None") -> str:
    """A score with its interval: ``0.4000 (0.3500 to 0.4500)``."""
    if of is None:
        return ""
    if of.low is None or of.high is None:
        return score(of.value)
    return f"{score(of.value)} ({score(of.low)} to {score(of.high)})"


def p_value(p: float | None) -> str:
    """Four digits; a smaller one as a power of ten, since none is 0."""
    if p is None:
        return ""
    return f"{p:.4f}" if p >= SMALLEST_P else f"{p:.0e}"


def win_tie_loss(pair: "Difference | None") -> str:
    """On how many queries the first is better, equal, worse: ``1,000 / 2,000 / 1,100``."""
    return "" if pair is None else f"{pair.wins:,} / {pair.ties:,} / {pair.losses:,}"


def score_in_domain(scored: tuple[float | None, bool]) -> str:
    """A score, marked where the model was trained on the collection."""
    value, seen = scored
    return score(value) + (" (in-domain)" if seen and value is not None else "")


def duration(seconds: float) -> str:
    """Seconds below two minutes, else hours and minutes: ``1:05:00``."""
    return f"{seconds:.1f} s" if seconds < 120 else str(timedelta(seconds=round(seconds)))


def size(number: float) -> str:
    """Bytes in decimal units: ``1.5 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def parameter_count(number: int | None) -> str:
    """A number of parameters: ``22.7 M``."""
    if number is None:
        return ""
    for unit, name in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return str(number)


DETECTABLE_LEGEND = "detectable: the true difference that would be found 80 times in 100"


def intervals_legend(resamples: int, seed: int | None = None) -> str:
    """Legend of intervals."""
    drawn = f"{resamples:,} resamples" + ("" if seed is None else f", seed {seed}")
    return f"intervals: 95 %, bootstrap over queries, {drawn}"


def tests_legend(family: str) -> str:
    """Legend of p-values.

    Args:
        family: what the correction of Holm counts, such as "the collections of a pair".
    """
    return f"p: paired randomisation (sign flips); Holm: corrected for {family}"
