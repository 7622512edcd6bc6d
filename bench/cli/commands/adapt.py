"""``adapt``: from a preset and a sequence of collections to a checkpoint for each."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from bench.cli.commands.common import workspace
from bench.cli.commands.pretrain import preset_of
from bench.cli.commands.training import TrainingBars
from bench.cli.options.train import AdaptOptions
from bench.cli.printing import print_json, print_next
from bench.exit_codes import ExitCode
from bench.training.adapt_on_collections import adapt_on, scores_line
from foundation.errors import BenchError
from retrievers.models.card import card_names
from retrievers.training.continual.continual import Adaptation
from retrievers.training.engine.curve import CURVE_FILE, read_curve
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.pretrain import Trained


def adapt(options: AdaptOptions) -> int:
    """``adapt``: train on each collection in turn, and print the command that scores them all."""
    preset, adaptation = preset_of(options), _adaptation(options)
    space = workspace(options.places)
    names = space.expand(options.on)
    datasets = [space.dataset(name) for name in names]
    with TrainingBars() as bars:
        context = bars.context(options.out, options.work)
        trained = adapt_on(preset, datasets, adaptation, context)
    _print(trained, names, preset, options)
    return ExitCode.OK


def _adaptation(options: AdaptOptions) -> Adaptation:
    fields = asdict(options.against)
    try:
        return msgspec.convert(fields, type=Adaptation)
    except msgspec.ValidationError as error:
        raise BenchError(f"command line: {error}", "see python -m bench adapt --help") from error


def _print(
    trained: tuple[Trained, ...],
    names: Sequence[str],
    preset: Pretraining,
    options: AdaptOptions,
) -> None:
    start = preset.start.model
    folders = [_near(Path(checkpoint.folder)) for checkpoint in trained]
    # An adapter has the start's recipe already.
    card = start in card_names() and options.against.method != "adapter"
    line = scores_line(folders, names, start if card else "")
    curves = [read_curve(Path(folder) / CURVE_FILE) for folder in folders]
    losses = [(curve[0].losses["loss"], curve[-1].losses["loss"]) for curve in curves]
    if options.output.json:
        rows = [
            {
                **msgspec.structs.asdict(checkpoint),
                "collection": name,
                "first_loss": a,
                "last_loss": b,
            }
            for checkpoint, name, (a, b) in zip(trained, names, losses, strict=True)
        ]
        print_json({"checkpoints": rows, "scores": line})
        return
    for folder, name, (first, last) in zip(folders, names, losses, strict=True):
        print(f"{folder}: {name}; loss {first:.3f} -> {last:.3f}")
    print_next("scores of the checkpoints", line)


def _near(folder: Path) -> str:
    """A path from here where it is below."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
