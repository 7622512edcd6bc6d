"""Figures as people read them: what is rounded, and how, is decided here and nowhere else.

A figure that is not known is an empty text.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from bench.compare.statistics import Paired, Resampling
from bench.monitor.quality_curve import Level

SMALLEST_P = 0.00005  # four digits would show 0 below it


def text(value: object) -> str:
    """The value as it is."""
    return "" if value is None else str(value)


def fixed(digits: int) -> Callable[[Any], str]:
    """A format with so many digits after the point, and commas between thousands."""
    return lambda value: "" if value is None else f"{value:,.{digits}f}"


score = fixed(4)
count = fixed(0)


def signed(value: float | None, digits: int = 4) -> str:
    """A difference: ``-0.0123``."""
    return "" if value is None else f"{value:+.{digits}f}"


def interval(low: float | None, high: float | None, digits: int = 4) -> str:
    """The interval of a difference: ``-0.0300 to +0.0050``."""
    return "" if low is None else f"{signed(low, digits)} to {signed(high, digits)}"


def paired_interval(pair: Paired | None) -> str:
    """The interval of a paired difference, marked where too few queries changed to rely on it."""
    if pair is None or pair.low is None:
        return ""
    return interval(pair.low, pair.high) + (" (few)" if pair.few else "")


def paired_difference(pair: Paired | None) -> str:
    """A paired difference with its interval: ``-0.0123 (-0.0300 to +0.0050)``."""
    if pair is None:
        return ""
    limits = interval(pair.low, pair.high)
    return signed(pair.difference) + (f" ({limits})" if limits else "")


def level(value: Level) -> str:
    """A score with its interval: ``0.4000 (0.3500 to 0.4500)``."""
    if value.low is None or value.high is None:
        return score(value.value)
    return f"{score(value.value)} ({score(value.low)} to {score(value.high)})"


def p_value(p: float | None) -> str:
    """Four digits; a smaller one as a power of ten, since none is 0."""
    if p is None:
        return ""
    return f"{p:.4f}" if p >= SMALLEST_P else f"{p:.0e}"


def win_tie_loss(pair: Paired | None) -> str:
    """On how many queries the first is better, equal, worse: ``1,000 / 2,000 / 1,100``."""
    return "" if pair is None else f"{pair.wins:,} / {pair.ties:,} / {pair.losses:,}"


def in_domain(value: float | None, seen: bool) -> str:
    """A score, marked where the model was trained on the collection."""
    return score(value) + (" (in-domain)" if seen and value is not None else "")


def first_names(names: tuple[str, ...], most: int) -> str:
    """The first few names."""
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])


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


def parameters(number: int) -> str:
    """A number of parameters: ``22.7 M``."""
    for unit, name in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return str(number)


def resampling_legend(resampling: Resampling, family: str) -> list[str]:
    """How intervals and p-values were made, in a line each.

    Args:
        family: what the correction of Holm counts, such as "the collections of a pair".
    """
    return [
        f"intervals: 95 %, bootstrap over queries, {resampling.resamples:,} resamples, "
        f"seed {resampling.seed}",
        f"p: paired randomisation (sign flips); Holm: corrected for {family}",
    ]
