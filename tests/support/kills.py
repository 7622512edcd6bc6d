"""A training that ends in the middle of it, as if it had been killed."""

from collections.abc import Callable

from retrievers.training.engine.context import Progress


class KilledError(Exception):
    """Stands for a kill."""


def killed_at(step: int, stage: str = "") -> Callable[[Progress], None]:
    """A report of progress that kills the training at a step, of one stage where it is stated."""

    def kill(progress: Progress) -> None:
        if (progress.unit, progress.done) == ("steps", step) and stage in ("", progress.stage):
            raise KilledError

    return kill
