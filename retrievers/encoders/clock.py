"""Where the time goes: busy seconds by phase, and counts, added up from any thread.

Phases may overlap (texts are tokenised while others are encoded), so their sum can exceed the
time on the wall.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Clock:
    """Busy seconds by phase and counts by name; safe to share between threads.

    Attributes:
        seconds: by phase, for example ``tokenise`` or ``forward``.
        counts: by name, for example ``tokens``.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase, also where the block fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            with self._lock:
                self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def count(self, name: str, number: int) -> None:
        """Add to a count."""
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + number

    def add(self, seconds: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """Add what was measured elsewhere, such as in another process."""
        with self._lock:
            for name, spent in seconds.items():
                self.seconds[name] = self.seconds.get(name, 0.0) + spent
        for name, number in counts.items():
            self.count(name, number)

    def copy(self) -> "Clock":
        """Copy with the sums so far, which goes on by itself."""
        other = Clock()
        with self._lock:
            other.seconds, other.counts = dict(self.seconds), dict(self.counts)
        return other

    def since(self, earlier: "Clock") -> "Clock":
        """Clock with what was added after ``earlier``, a copy of this clock, was made."""
        now = self.copy()
        for name, seconds in earlier.seconds.items():
            now.seconds[name] -= seconds
        for name, number in earlier.counts.items():
            now.counts[name] -= number
        return now
