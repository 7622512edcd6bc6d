"""``finetune``: from a preset, a checkpoint and collections to a folder that ``run`` takes."""

import argparse
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from bench.cli.commands.assignments import typed_changes
from bench.cli.commands.common import open_named, print_json
from bench.cli.commands.losses import losses_of, resumed
from bench.exit_codes import ExitCode
from bench.store import VectorStore
from bench.training.finetune_on_collections import finetune_on
from datasets_cfg.catalogue import expand
from datasets_cfg.dataset import Dataset, open_dataset
from foundation.errors import MissingFileError
from retrievers.models.model import resolve_model
from retrievers.training.engine.processes import is_first
from retrievers.training.finetune.finetune_preset import Finetuning, changed, load_preset
from retrievers.training.finetune.finetuning import CURVE_FILE, Finetuned

# Option: the preset's field that it replaces.
CHANGES = {
    "steps": "steps",
    "epochs": "epochs",
    "batch_size": "batch_size",
    "lr": "optimizer.lr",
    "precision": "precision",
    "gradient_checkpointing": "gradient_checkpointing",
    "seed": "seed",
}
TRAINING = "train"  # a collection whose own split this is, is there to train on
DEFAULT = "stdlib-code"


def finetune(options: argparse.Namespace, cache_dir: Path) -> int:
    """``finetune``: mine, train, draw the losses, say what to type next."""
    preset = _preset(options)
    model = resolve_model(options.model, like=options.like)
    names = expand(options.on, options.data_dir)
    training = [open_named(name, options, cache_dir) for name in names]
    evaluated = _evaluated(names, options, cache_dir)
    with _Bars() as bars:
        trained = finetune_on(
            preset,
            model,
            training,
            options.out,
            VectorStore(cache_dir / "vectors"),
            evaluated=list(evaluated.values()),
            device=options.device,
            save_every=options.save_every,
            report=bars.show,
        )
    if is_first():
        every = {name: expand([name], options.data_dir) for name in options.on}
        _report(trained, options, [name for name in every if {*every[name]} & {*evaluated}])
    return ExitCode.OK


def _preset(options: argparse.Namespace) -> Finetuning:
    preset = load_preset(options.preset)
    own_rate = {"lr": "adapter.lr"} if preset.adapter and preset.adapter.lr else {}
    return changed(preset, typed_changes(options, CHANGES | own_rate), "command line")


def _evaluated(
    names: list[str], options: argparse.Namespace, cache_dir: Path
) -> dict[str, Dataset]:
    """The splits that are held out: what was named, and what else the collections have."""
    held_out = expand(options.held_out, options.data_dir)
    found = {}
    for name in dict.fromkeys((*held_out, *names)):
        try:
            dataset = open_dataset(
                name,
                cache_dir=cache_dir,
                data_dir=options.data_dir,
                download=not options.offline,
            )
        except MissingFileError:
            if name in held_out:
                raise
            continue  # a folder that has nothing but a training split
        if name in held_out or dataset.facts.split != TRAINING:
            found[name] = dataset
    return found


class _Bars:
    """One bar a stage, on stderr; the first call of a stage says where it goes on from."""

    def __init__(self) -> None:
        self._stage = ""
        self._bar: Any = None

    def __enter__(self) -> "_Bars":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def show(self, stage: str, done: int, total: int) -> None:
        """After each piece of a stage's work."""
        if stage != self._stage:
            self._close()
            self._stage = stage
            self._bar = tqdm(desc=stage, total=total, initial=done - 1, mininterval=0.5)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _report(trained: Finetuned, options: argparse.Namespace, evaluated: list[str]) -> None:
    losses = losses_of(options.out / CURVE_FILE)
    if options.json:
        print_json({**msgspec.structs.asdict(trained), **losses.as_json()})
        return
    rounds = f"{trained.rounds} rounds of " if trained.rounds > 1 else ""
    print(
        f"{trained.folder}: {rounds}{trained.steps:,} steps{resumed(trained.resumed_at)}, "
        f"{trained.queries:,} queries; {losses}"
    )
    if size := trained.size:
        share = f"{100 * size.share:.3g} %"
        print(
            f"trained {size.trained:,} of {size.parameters:,} parameters ({share}); "
            f"{size.saved_bytes:,} bytes of weights"
        )
    names = " ".join(evaluated or [DEFAULT])
    print(f"evaluate it: python -m bench run {names} --model {trained.folder}")
