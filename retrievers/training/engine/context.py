"""Where a training runs and who is told of it: what does not change the weights that come out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from foundation.errors import BenchError
from retrievers.training.engine.curve import LossPoint
from retrievers.training.engine.processes import is_first


@dataclass(frozen=True)
class Progress:
    """Progress of a stage of a training.

    Attributes:
        stage: its name, such as ``round 1``.
        done: units that are done, those of earlier calls included.
        total: units of the whole stage.
        unit: what is counted.
        point: of the loss curve, where this step has one.
    """

    stage: str
    done: int
    total: int
    unit: str = "steps"
    point: LossPoint | None = None


@dataclass(frozen=True)
class TrainingContext:
    """Where a training runs, how often it is saved, and who is told how far it is.

    Attributes:
        out: folder of the training; gone on with where it is not finished.
        device: ``auto``, ``cpu`` or ``cuda``, see `check_device`.
        save_every: steps between two checkpoints; the last two are kept until the end.
        progress: called in the first process after each step, and after other work.
    """

    out: Path
    device: str = "auto"
    save_every: int = 500
    progress: Callable[[Progress], None] | None = None

    def inside(self, folder: Path) -> "TrainingContext":
        """The context of a part of the training, in a folder of its own."""
        return replace(self, out=folder)

    def report(self, progress: Progress) -> None:
        """Tell how far a stage is."""
        if self.progress is not None and is_first():
            self.progress(progress)


def check_device(name: str) -> None:
    """Refuse a device that no training runs on: a trainer takes the first GPU that it sees.

    Raises:
        BenchError: it is another GPU.
    """
    number = name.partition(":")[2]
    if number and int(number):
        raise BenchError(
            f"a training runs on the first GPU, not on {name}",
            f"show it that one alone, CUDA_VISIBLE_DEVICES={int(number)}, with --device cuda",
        )
