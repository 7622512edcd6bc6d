"""``pretrain``: from a preset and collections to a folder that ``run --model`` takes."""

from bench.cli.commands.common import workspace
from bench.cli.commands.training import TrainingBars, print_trained, typed_changes
from bench.cli.options.train import AdaptOptions, PretrainOptions
from bench.cli.printing import print_next
from bench.exit_codes import ExitCode
from bench.training.pretrain_on_collections import pretrain_on
from retrievers.training.engine.arguments import is_first
from retrievers.training.pretrain.preset import Pretraining, changed, load_preset


def pretrain(options: PretrainOptions) -> int:
    """``pretrain``: train, draw the losses, say what to type next."""
    preset = preset_of(options)
    space = workspace(options.places)
    datasets = [space.dataset(name) for name in space.expand(options.on)]
    with TrainingBars() as bars:
        context = bars.context(options.out, options.work)
        trained = pretrain_on(preset, datasets, context)
    if is_first():
        read = f"{trained.texts_read:,} texts read"
        print_trained(trained, f"{trained.objective}, ", read, options)
        if not options.output.json:
            print_next("evaluate it", f"python -m bench run stdlib-code --model {trained.folder}")
    return ExitCode.OK


def preset_of(options: PretrainOptions | AdaptOptions) -> Pretraining:
    """The preset that was named, with what was typed instead of its fields."""
    changes = typed_changes(options.settings)
    return changed(load_preset(options.preset), changes, "command line")
