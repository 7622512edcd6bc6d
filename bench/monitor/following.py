"""Looks at a running training until there is a reason to end."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.monitor.scanner import CheckpointScanner, FinishedCheckpoint, ScannedFolder
from bench.monitor.watcher import Watcher

SETTLE_S = 2.0  # between two looks at what may be being written
PUBLISH_S = 10.0  # between two pictures of a curve that grows fast


@dataclass(frozen=True)
class Ending:
    """When to look, and when to end.

    Attributes:
        every_s: seconds between looks.
        once: end when what is there is evaluated.
        until: end after a checkpoint of this step or a later one.
        stop_after_s: end when no checkpoint was completed for so many seconds.
    """

    every_s: float = 60.0
    once: bool = False
    until: int | None = None
    stop_after_s: float | None = None

    def is_reached(self, look: ScannedFolder, quiet_s: float) -> bool:
        """True where this was the last look, ``quiet_s`` after the last new checkpoint."""
        if self.stop_after_s is not None and quiet_s >= self.stop_after_s:
            return True
        if self.until is not None and any(
            checkpoint.step >= self.until for checkpoint in look.finished
        ):
            return True
        return self.once


def follow(
    scanner: CheckpointScanner, watcher: Watcher, ending: Ending, publish: Callable[[], None]
) -> None:
    """Look, evaluate what is new, wait; Ctrl-C ends it, see `Watcher.interrupted`.

    Args:
        publish: called when there are new evaluations; not for each of many that are fast.
    """
    try:
        _follow(scanner, watcher, ending, publish)
    except KeyboardInterrupt:
        print("\nended by Ctrl-C; the same command goes on", file=sys.stderr)


def _follow(
    scanner: CheckpointScanner, watcher: Watcher, ending: Ending, publish: Callable[[], None]
) -> None:
    look = scanner.look()
    latest = time.monotonic()
    while True:
        soon = ending.once or any(not checkpoint.broken for checkpoint in look.unfinished)
        time.sleep(min(SETTLE_S, ending.every_s) if soon else ending.every_s)
        look = scanner.look()
        new = [checkpoint for checkpoint in look.finished if watcher.is_new(checkpoint)]
        _evaluate(new, watcher, publish)
        watcher.report_incomplete(look.unfinished)
        latest = time.monotonic() if new else latest
        if ending.is_reached(look, time.monotonic() - latest):
            return


def _evaluate(
    new: Sequence[FinishedCheckpoint], watcher: Watcher, publish: Callable[[], None]
) -> None:
    fresh, published = False, time.monotonic()
    for checkpoint in new:
        fresh |= watcher.evaluate(checkpoint)
        if fresh and (checkpoint is new[-1] or time.monotonic() - published >= PUBLISH_S):
            publish()
            fresh, published = False, time.monotonic()
