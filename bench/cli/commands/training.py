"""The commands that train: from a preset and collections to folders that ``run --model`` takes."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from bench.cli.commands.common import assignments, workspace
from bench.cli.options.train import (
    AdaptOptions,
    FinetuneOptions,
    PretrainOptions,
    TrainingSettings,
)
from bench.cli.terminal import print_json, print_next
from bench.exit_codes import ExitCode
from bench.training.on_collections import adapt_on, finetune_on, pretrain_on
from bench.workspace import Workspace
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError, MissingFileError
from reports.plots.style import can_plot
from reports.plots.training import draw_losses
from retrievers.models.card import card_names
from retrievers.models.model import resolve_model
from retrievers.training.continual.sequence import Method, read_method
from retrievers.training.engine.arguments import Progress, TrainingContext, check_device, is_first
from retrievers.training.engine.curve import CURVE_FILE, read_curve
from retrievers.training.finetune import finetune_preset
from retrievers.training.finetune.finetune import Finetuned
from retrievers.training.pretrain import preset as pretrain_preset
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.pretrain import Trained

TRAINING = "train"  # a collection whose own split this is, is there to train on
DEFAULT = "stdlib-code"
SAVE_EVERY = "save_every"
OF_THE_METHOD = "method."
LENGTHS = ("epochs", "tokens")


def pretrain(options: PretrainOptions) -> int:
    """``pretrain``: train, draw the losses, print what to type next."""
    preset = _pretraining(options)
    space = workspace(options.places)
    datasets = [space.dataset(name) for name in space.expand(options.on)]
    with TrainingBars() as bars:
        trained = pretrain_on(preset, datasets, bars.context(options.out, options.training))
    if is_first():
        read = f"{trained.texts_read:,} texts read"
        _print_trained(trained, f"{trained.objective}, ", read, options)
        if not options.output.json:
            _print_evaluation([DEFAULT], trained.folder)
    return ExitCode.OK


def finetune(options: FinetuneOptions) -> int:
    """``finetune``: mine, train, draw the losses, print what to type next."""
    preset = finetune_preset.load_preset(options.preset)
    preset = finetune_preset.changed(preset, _changes(options.training), "command line")
    model = resolve_model(options.model, like=options.like)
    space = workspace(options.places)
    names = space.expand(options.on)
    training = [space.dataset(name, options.split) for name in names]
    evaluated = _evaluated(names, space.expand(options.held_out), space)
    with TrainingBars() as bars:
        context = bars.context(options.out, options.training)
        left_out = list(evaluated.values())
        trained = finetune_on(preset, model, training, space.store, context, evaluated=left_out)
    if is_first():
        rounds = f"{trained.rounds} rounds of " if trained.rounds > 1 else ""
        _print_trained(trained, rounds, f"{trained.queries:,} queries", options)
        if not options.output.json:
            _print_size(trained)
            scored = [name for name in options.on if {*space.expand([name])} & {*evaluated}]
            _print_evaluation(scored or [DEFAULT], trained.folder)
    return ExitCode.OK


def adapt(options: AdaptOptions) -> int:
    """``adapt``: train on each collection in turn, and print the command that scores them all."""
    preset, method = _pretraining(options), _method(options)
    space = workspace(options.places)
    names = space.expand(options.on)
    datasets = [space.dataset(name) for name in names]
    with TrainingBars() as bars:
        context = bars.context(options.out, options.training)
        trained = adapt_on(preset, datasets, method, context)
    start, folders = preset.start.model, [_near(Path(each.folder)) for each in trained]
    # A checkpoint is used as the start's card says; an adapter has the start's recipe already.
    like = ["--like", start] if start in card_names() and not method.kept_apart else []
    line = shlex.join(["python", "-m", "bench", "run", *names, "--model", *folders, *like])
    curves = [read_curve(Path(folder) / CURVE_FILE) for folder in folders]
    rows = [
        {
            **msgspec.structs.asdict(each),
            "collection": name,
            "first_loss": curve[0].losses["loss"],
            "last_loss": curve[-1].losses["loss"],
        }
        for each, name, curve in zip(trained, names, curves, strict=True)
    ]
    if options.output.json:
        print_json({"checkpoints": rows, "scores": line})
        return ExitCode.OK
    for folder, row in zip(folders, rows, strict=True):
        losses = f"loss {row['first_loss']:.3f} -> {row['last_loss']:.3f}"
        print(f"{folder}: {row['collection']}; {losses}")
    print_next("scores of the checkpoints", line)
    return ExitCode.OK


def _pretraining(options: PretrainOptions | AdaptOptions) -> Pretraining:
    """Return the preset that was named, with what was typed instead of its fields."""
    start = {"start.model": options.start} if options.start else {}
    changes = start | _changes(options.training)
    preset = pretrain_preset.load_preset(options.preset)
    return pretrain_preset.changed(preset, changes, "command line")


def _changes(settings: TrainingSettings) -> dict[str, Any]:
    """Return the values that were typed instead of a preset's fields.

    Raises:
        BenchError: a length twice, or see `assignments`.
    """
    typed = assignments(settings.set)
    if settings.steps is None:
        changes = typed
    elif length := next((name for name in LENGTHS if name in typed), ""):
        raise BenchError(f"--steps and {length} each say how long to train", "type one of them")
    else:
        changes = typed | {"steps": settings.steps}
    own = (SAVE_EVERY, OF_THE_METHOD)
    return {name: value for name, value in changes.items() if not name.startswith(own)}


def _method(options: AdaptOptions) -> Method:
    """Return the method with its settings.

    Raises:
        BenchError: there is none of that name, or it has no such setting.
    """
    typed = assignments(options.training.set).items()
    own = {
        name.removeprefix(OF_THE_METHOD): value
        for name, value in typed
        if name.startswith(OF_THE_METHOD)
    }
    return read_method({"name": options.method, **own}, f"--method {options.method}")


def _evaluated(
    names: Sequence[str], held_out: Sequence[str], space: Workspace
) -> dict[str, Dataset]:
    """Return the splits that are held out: what was named, and what else the collections have."""
    datasets = {}
    for name in dict.fromkeys((*held_out, *names)):
        try:
            dataset = space.dataset(name)
        except MissingFileError:
            if name in held_out:
                raise
            continue  # a folder that has nothing but a training split
        if name in held_out or dataset.facts.split != TRAINING:
            datasets[name] = dataset
    return datasets


class TrainingBars:
    """A bar for the stage at work; the first report of a stage says where it goes on from."""

    def __init__(self) -> None:
        self._stage = ""
        self._bar: Any = None

    def __enter__(self) -> "TrainingBars":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def context(self, out: Path, settings: TrainingSettings) -> TrainingContext:
        """Return the context of a training into a folder, whose progress is shown.

        Raises:
            BenchError: another GPU than the first, or no number of steps between checkpoints.
        """
        check_device(settings.device)
        save_every = assignments(settings.set).get(SAVE_EVERY, TrainingContext.save_every)
        if type(save_every) is not int or save_every < 1:
            raise BenchError(f"--set save_every={save_every}: a whole number from 1")
        return TrainingContext(out, settings.device, save_every, self.show)

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


def _print_trained(
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


def _print_size(trained: Finetuned) -> None:
    if size := trained.size:
        share = f"{100 * size.share:.3g} %"
        print(
            f"trained {size.trained:,} of {size.parameters:,} parameters ({share}); "
            f"{size.saved_bytes:,} bytes of weights"
        )


def _print_evaluation(collections: Sequence[str], model: str) -> None:
    words = ["python", "-m", "bench", "run", *collections, "--model", model]
    print_next("evaluate it", shlex.join(words))


def _near(folder: Path) -> str:
    """Return a path from here where it is below."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
