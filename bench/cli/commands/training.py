"""Parts of the commands that train: fields of a preset as typed, progress, and the report."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from bench.cli.commands.common import assignments
from bench.cli.options.shared import TrainingSettings, TrainingWork
from bench.cli.options.train import FinetuneOptions, PretrainOptions
from bench.cli.printing import print_json
from reports.plots.style import can_plot
from reports.plots.training import draw_losses
from retrievers.training.engine.arguments import Progress, TrainingContext
from retrievers.training.engine.curve import CURVE_FILE, read_curve
from retrievers.training.finetune.finetune import Finetuned
from retrievers.training.pretrain.pretrain import Trained


def typed_changes(settings: TrainingSettings, lr: str = "optimizer.lr") -> dict[str, Any]:
    """Values typed instead of a preset's fields, by field; most options are called like theirs.

    Args:
        lr: field of the learning rate.

    Raises:
        BenchError: see `assignments`.
    """
    asked = asdict(settings)
    fields = {"lr": lr, "start": "start.model"}
    own = assignments(asked.pop("set"))
    return {fields.get(k, k): value for k, value in asked.items() if value is not None} | own


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


def print_trained(
    trained: Trained | Finetuned, how: str, read: str, options: PretrainOptions | FinetuneOptions
) -> None:
    """Draw the losses of a finished training, and print a line about it or its JSON document.

    Args:
        how, read: words before and after the number of steps.
    """
    curve_file = options.out / CURVE_FILE
    curve = read_curve(curve_file)
    pictures: list[Path] = []
    if can_plot():
        pictures = draw_losses(curve, curve_file.with_name("losses"))
    else:
        print("no pictures: pip install 'retrieval-bench[plots]'", file=sys.stderr)
    first, last = curve[0], curve[-1]
    if options.output.json:
        losses = {"losses": {"first": first, "last": last}, "pictures": list(map(str, pictures))}
        print_json({**msgspec.structs.asdict(trained), **losses})
        return
    steps = f"{how}{trained.steps:,} steps"
    if trained.resumed_at:
        steps += f", resumed at {trained.resumed_at:,}"
    loss = f"loss {first.losses['loss']:.3f} -> {last.losses['loss']:.3f}"
    print(f"{trained.folder}: {steps}, {read}; {loss}")
