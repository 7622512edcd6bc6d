"""``finetune``: from a preset, a checkpoint and collections to a folder that ``run`` takes."""

from collections.abc import Sequence

from bench.cli.commands.common import workspace
from bench.cli.commands.training import TrainingBars, print_trained, typed_changes
from bench.cli.options.train import FinetuneOptions
from bench.cli.printing import print_next
from bench.exit_codes import ExitCode
from bench.training.finetune_on_collections import finetune_on
from bench.workspace import Workspace
from datasets_cfg.dataset import Dataset
from foundation.errors import MissingFileError
from retrievers.models.model import resolve_model
from retrievers.training.engine.arguments import is_first
from retrievers.training.finetune.finetune import Finetuned
from retrievers.training.finetune.finetune_preset import Finetuning, changed, load_preset

TRAINING = "train"  # a collection whose own split this is, is there to train on
DEFAULT = "stdlib-code"


def finetune(options: FinetuneOptions) -> int:
    """``finetune``: mine, train, draw the losses, say what to type next."""
    preset = _preset(options)
    model = resolve_model(options.model, like=options.like)
    space = workspace(options.places)
    names = space.expand(options.on)
    training = [space.dataset(name, options.split) for name in names]
    evaluated = _evaluated(names, space.expand(options.held_out), space)
    with TrainingBars() as bars:
        context = bars.context(options.out, options.work)
        left_out = list(evaluated.values())
        trained = finetune_on(preset, model, training, space.store, context, evaluated=left_out)
    if is_first():
        every = {name: space.expand([name]) for name in options.on}
        _report(trained, options, [name for name in every if {*every[name]} & {*evaluated}])
    return ExitCode.OK


def _preset(options: FinetuneOptions) -> Finetuning:
    preset = load_preset(options.preset)
    lr = "adapter.lr" if preset.adapter and preset.adapter.lr else "optimizer.lr"
    return changed(preset, typed_changes(options.settings, lr), "command line")


def _evaluated(
    names: Sequence[str], held_out: Sequence[str], space: Workspace
) -> dict[str, Dataset]:
    """The splits that are held out: what was named, and what else the collections have."""
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


def _report(trained: Finetuned, options: FinetuneOptions, evaluated: list[str]) -> None:
    rounds = f"{trained.rounds} rounds of " if trained.rounds > 1 else ""
    print_trained(trained, rounds, f"{trained.queries:,} queries", options)
    if options.output.json:
        return
    if size := trained.size:
        share = f"{100 * size.share:.3g} %"
        print(
            f"trained {size.trained:,} of {size.parameters:,} parameters ({share}); "
            f"{size.saved_bytes:,} bytes of weights"
        )
    names = " ".join(evaluated or [DEFAULT])
    print_next("evaluate it", f"python -m bench run {names} --model {trained.folder}")
