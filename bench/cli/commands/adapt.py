"""``adapt``: from a preset and a sequence of collections to a checkpoint for each."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
from tqdm import tqdm

from bench.cli.commands.common import print_json, workspace
from bench.cli.commands.pretrain import Bar, preset_of
from bench.cli.options.train import AdaptOptions
from bench.exit_codes import ExitCode
from bench.training.adapt_on_collections import adapt_on, forgetting_line
from foundation.errors import BenchError
from retrievers.models.card import card_names
from retrievers.training.continual.continual import Adaptation, Report
from retrievers.training.continual.measuring import Advance
from retrievers.training.engine.curve import read_curve
from retrievers.training.engine.record import Trained
from retrievers.training.engine.trainer import Progress
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.pretrain import CURVE_FILE


def adapt(options: AdaptOptions) -> int:
    """``adapt``: train on each collection in turn, say what to type for the forgetting matrix."""
    preset, adaptation = preset_of(options), _adaptation(options)
    space = workspace(options.places)
    names = space.expand(options.on)
    datasets = [space.dataset(name) for name in names]
    with Bars() as bars:
        trained = adapt_on(
            preset,
            datasets,
            options.out,
            adaptation,
            device=options.work.device,
            save_every=options.work.save_every,
            report=bars,
        )
    _print(trained, names, preset, options)
    return ExitCode.OK


def _adaptation(options: AdaptOptions) -> Adaptation:
    fields = asdict(options.against)
    try:
        return msgspec.convert(fields, type=Adaptation)
    except msgspec.ValidationError as error:
        raise BenchError(f"command line: {error}", "see python -m bench adapt --help") from error


class Bars(Report):
    """A bar for each training and each measurement, one at a time."""

    def __init__(self) -> None:
        self.close: Callable[[], None] = lambda: None

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def training(self, folder: Path) -> Callable[[Progress], None]:
        """See `Report`."""
        self.close()
        bar = Bar(folder.name)
        self.close = bar.__exit__
        return bar.show

    def measuring(self, folder: Path, texts: int) -> Advance:
        """See `Report`."""
        self.close()
        bar = tqdm(desc=f"{folder.name}: what it depends on", total=texts, unit=" texts")
        self.close = bar.close
        update: Advance = bar.update
        return update


def _print(
    trained: tuple[Trained, ...],
    names: Sequence[str],
    preset: Pretraining,
    options: AdaptOptions,
) -> None:
    start = preset.start.model
    folders = [_near(Path(one.folder)) for one in trained]
    card = (
        start in card_names() and options.against.method != "adapter"
    )  # those have the start's recipe
    line = forgetting_line(folders, names, start, card)
    curves = [read_curve(Path(folder) / CURVE_FILE) for folder in folders]
    losses = [(curve[0].losses["loss"], curve[-1].losses["loss"]) for curve in curves]
    if options.output.json:
        rows = [
            {**msgspec.structs.asdict(one), "collection": name, "first_loss": a, "last_loss": b}
            for one, name, (a, b) in zip(trained, names, losses, strict=True)
        ]
        print_json({"checkpoints": rows, "forgetting": line})
        return
    for folder, name, (first, last) in zip(folders, names, losses, strict=True):
        print(f"{folder}: {name}; loss {first:.3f} -> {last:.3f}")
    print(f"what was kept and lost: {line}")


def _near(folder: Path) -> str:
    """A path from here where it is below."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
