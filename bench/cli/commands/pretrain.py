"""``pretrain``: from a preset and collections to a folder that ``run --model`` takes."""

import msgspec

from bench.cli.commands.assignments import typed_changes
from bench.cli.commands.common import workspace
from bench.cli.commands.losses import losses_of, resumed
from bench.cli.commands.training_bars import TrainingBars
from bench.cli.options.train import PretrainOptions
from bench.cli.printing import print_json, print_next
from bench.exit_codes import ExitCode
from bench.training.pretrain_on_collections import pretrain_on
from retrievers.training.engine.curve import CURVE_FILE
from retrievers.training.engine.processes import is_first
from retrievers.training.pretrain.preset import Pretraining, changed, load_preset
from retrievers.training.pretrain.pretrain import Trained


def pretrain(options: PretrainOptions) -> int:
    """``pretrain``: train, draw the losses, say what to type next."""
    preset = preset_of(options)
    space = workspace(options.places)
    datasets = [space.dataset(name) for name in space.expand(options.on)]
    with TrainingBars() as bars:
        context = bars.context(options.out, options.work)
        trained = pretrain_on(preset, datasets, context)
    if is_first():
        _report(trained, options)
    return ExitCode.OK


def preset_of(options: PretrainOptions) -> Pretraining:
    """The preset that was named, with what was typed instead of its fields."""
    changes = typed_changes(options.settings)
    return changed(load_preset(options.preset), changes, "command line")


def _report(trained: Trained, options: PretrainOptions) -> None:
    losses = losses_of(options.out / CURVE_FILE)
    if options.output.json:
        print_json({**msgspec.structs.asdict(trained), **losses.as_json()})
        return
    print(
        f"{trained.folder}: {trained.objective}, {trained.steps:,} steps"
        f"{resumed(trained.resumed_at)}, {trained.texts_read:,} texts read; {losses}"
    )
    print_next("evaluate it", f"python -m bench run stdlib-code --model {trained.folder}")
