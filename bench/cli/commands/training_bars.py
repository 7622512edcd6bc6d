"""Progress of a training on stderr: one bar for each of its stages."""

from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.cli.options.shared import TrainingWork
from retrievers.training.engine.context import Progress, TrainingContext


class TrainingBars:
    """A bar for the stage at work; the first report of a stage says where it goes on from."""

    def __init__(self) -> None:
        self._stage = ""
        self._bar: Any = None

    def __enter__(self) -> "TrainingBars":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def context(self, out: Path, work: TrainingWork) -> TrainingContext:
        """The context of a training into a folder, whose progress is shown."""
        return TrainingContext(out, work.device, work.save_every, self.show)

    def show(self, progress: Progress) -> None:
        """Show how far a stage is, and the last loss and speed where they are known."""
        if progress.stage != self._stage:
            self._close()
            self._stage = progress.stage
            first = progress.done - 1 if progress.unit == "steps" else 0
            unit = f" {progress.unit}"
            self._bar = tqdm(desc=self._stage, total=progress.total, initial=first, unit=unit)
        if (point := progress.point) is not None:
            speed = f"{point.tokens / point.seconds:,.0f} tokens/s"
            loss = f"loss {point.losses['loss']:.3f}"
            self._bar.set_postfix_str(f"{loss}, {speed}", refresh=False)
        self._bar.update(progress.done - self._bar.n)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
