"""``pretrain``: from a preset and collections to a folder that ``run --model`` takes."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from bench.commands.assignments import typed_changes
from bench.commands.common import check_out, open_named, print_json
from bench.errors import ExitCode
from bench.training import pretrain_on
from datasets_cfg.catalogue import expand
from reports.training_plots import draw_losses
from retrievers.training.curve import read_curve
from retrievers.training.preset import Pretraining, changed, load_preset
from retrievers.training.pretrain import CURVE_FILE
from retrievers.training.record import Trained
from retrievers.training.trainer import Progress

# Option: the preset's field that it replaces.
CHANGES = {
    "start": "start.model",
    "steps": "steps",
    "epochs": "epochs",
    "batch_size": "batch_size",
    "accumulate": "accumulate",
    "max_tokens": "max_tokens",
    "lr": "optimizer.lr",
    "precision": "precision",
    "gradient_checkpointing": "gradient_checkpointing",
    "seed": "seed",
}


def pretrain(options: argparse.Namespace, cache_dir: Path) -> int:
    """``pretrain``: train, draw the losses, say what to type next."""
    preset = preset_of(options)
    check_out(options.out)
    datasets = [open_named(name, options, cache_dir) for name in expand(options.on)]
    with Bar(options.out.name) as bar:
        trained = pretrain_on(
            preset,
            datasets,
            options.out,
            device=options.device,
            save_every=options.save_every,
            progress=bar.show,
        )
    if os.environ.get("RANK", "0") == "0":  # of the processes of `accelerate launch`, the first
        _report(trained, options)
    return ExitCode.OK


def preset_of(options: argparse.Namespace) -> Pretraining:
    """The preset that was named, with what was typed instead of its fields."""
    return changed(load_preset(options.preset), typed_changes(options, CHANGES), "command line")


class Bar:
    """Steps on stderr, with the last loss and the speed."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.bar: Any = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def show(self, progress: Progress) -> None:
        """After each step; the first one says where the training goes on from."""
        if self.bar is None:
            first = progress.step - 1
            self.bar = tqdm(desc=self.title, total=progress.steps, initial=first, unit=" steps")
        if progress.point is not None:
            point = progress.point
            speed = point.tokens / point.seconds
            said = f"loss {point.losses['loss']:.3f}, {speed:,.0f} tokens/s"
            self.bar.set_postfix_str(said, refresh=False)
        self.bar.update(progress.step - self.bar.n)


def _report(trained: Trained, options: argparse.Namespace) -> None:
    curve = read_curve(options.out / CURVE_FILE)
    try:
        pictures = [str(path) for path in draw_losses(curve, options.out / "losses")]
    except ImportError:
        pictures = []
        print("no pictures: pip install 'retrieval-bench[plots]'", file=sys.stderr)
    if options.json:
        losses = {"first": curve[0], "last": curve[-1]}
        print_json({**msgspec.structs.asdict(trained), "losses": losses, "pictures": pictures})
        return
    first, last = curve[0].losses["loss"], curve[-1].losses["loss"]
    resumed = f", resumed at {trained.resumed_at:,}" if trained.resumed_at else ""
    print(
        f"{trained.folder}: {trained.objective}, {trained.steps:,} steps{resumed}, "
        f"{trained.texts_read:,} texts read; loss {first:.3f} -> {last:.3f}"
    )
    print(f"evaluate it: python -m bench run stdlib-code --model {trained.folder}")
