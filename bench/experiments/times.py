"""Forecast of the time that is left, from what the first cells took."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from statistics import median


class Times:
    """Seconds by stage, as they become known."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, stage: str, seconds: float) -> None:
        """Note what a task took."""
        self._seconds[stage].append(seconds)

    def seconds(self, stages: Sequence[str]) -> float | None:
        """Seconds of these tasks together; None where one is of a stage that was never timed."""
        if not set(stages) <= set(self._seconds):
            return None
        return sum(median(self._seconds[stage]) for stage in stages)

    def left(self, stages: Sequence[str]) -> str:
        """The time left, as people read it."""
        total = self.seconds(stages)
        if total is None:
            return f"{len(stages)} tasks left"
        return f"{len(stages)} tasks left, about {timedelta(seconds=round(total))}"
