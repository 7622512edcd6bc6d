"""Growth of a cost with a size: a power fitted in logarithms, and a straight line."""

from collections.abc import Callable, Sequence

import numpy as np

from bench.speed.machine import timed
from bench.speed.records import Growth, Spread
from foundation.arrays import Float64Array
from foundation.errors import BenchError


def fit(x: str, y: str, at: str, sizes: Sequence[float], costs: Sequence[Spread]) -> Growth:
    """Least squares on the logarithms of sizes and median costs, all sizes weighing the same.

    Args:
        x, y: what sizes and costs are, with units.
        at: what was kept the same.

    Raises:
        BenchError: fewer than two different sizes, or one that is not positive.
    """
    at_x = np.asarray(sizes, dtype=np.float64)
    at_y = np.array([cost.median for cost in costs])
    if len(np.unique(at_x)) < 2 or at_x.min() <= 0 or at_y.min() <= 0:
        raise BenchError(f"growth of {y} needs two positive sizes and costs, not {list(sizes)}")
    exponent, log_constant, error = _line(np.log(at_x), np.log(at_y))
    per_x, base, _ = _line(at_x, at_y)
    return Growth(
        x=x,
        y=y,
        at=at,
        sizes=tuple(map(float, sizes)),
        costs=tuple(costs),
        exponent=exponent,
        error=error,
        constant=float(np.exp(log_constant)),
        base=base,
        per_x=per_x,
    )


def measure(work: Callable[[int], object], sizes: Sequence[int], repeats: int) -> list[Spread]:
    """Seconds of some work by size: once uncounted each, then all sizes in turn, repeatedly."""
    for size in sizes:
        work(size)
    samples: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(repeats):
        for size in sizes:
            samples[size].append(timed(lambda size=size: work(size))[0])  # type: ignore[misc]
    return [Spread.of(samples[size]) for size in sizes]


def _line(x: Float64Array, y: Float64Array) -> tuple[float, float, float | None]:
    """Slope, intercept and the slope's standard error (n - 2 degrees of freedom)."""
    centred = x - x.mean()
    squares = float(centred @ centred)
    slope = float(centred @ y) / squares
    intercept = float(y.mean() - slope * x.mean())
    if len(x) < 3:
        return slope, intercept, None
    residual = y - intercept - slope * x
    return slope, intercept, float(np.sqrt(residual @ residual / (len(x) - 2) / squares))
