"""``pretrain``, ``finetune``, ``adapt`` and ``compose`` write folders for ``run --model``."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from bench import train
from bench.cli.commands.common import is_offline, make_workspace, parse_assignments
from bench.cli.options.commands import (
    AdaptOptions,
    ComposeOptions,
    FinetuneOptions,
    PretrainOptions,
    TrainingSettings,
)
from bench.cli.options.shared import CommonOptions
from bench.cli.terminal import print_json, print_next_command
from bench.outcomes import ExitCode
from bench.training.on_collections import TRAIN, adapt_on, open_test_sets, route_on
from bench.workspace import Workspace
from datasets_cfg.catalogue import dataset_names
from datasets_cfg.readers.files import is_training_data
from foundation.errors import BenchError
from reports.plots import can_plot, draw_losses
from retrievers.adapters.compose import average_adapters, stack_adapters
from retrievers.adapters.folder import find_adapter_base
from retrievers.models.card import CARD_FILE, card_names, load_card
from retrievers.models.resolve import Model, count_parameters, resolve_model
from retrievers.training.continual.sequence import Method, read_method
from retrievers.training.engine.arguments import Progress, is_first
from retrievers.training.engine.curve import CURVE_FILE, read_curve
from retrievers.training.finetune import finetune_preset
from retrievers.training.finetune.finetune import FinetuneResult
from retrievers.training.pretrain import preset as pretrain_preset
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.pretrain import PretrainResult

FINETUNING_PRESET = "dpr-small"  # preset for a checkpoint that was pre-trained
SAVE_EVERY = "save_every"
METHOD = "method."
LENGTHS = ("epochs", "tokens")


def pretrain(options: PretrainOptions) -> int:
    """Pre-train, draw the losses, and print the next commands.

    Args:
        options: parsed options of the command.
    """
    preset = _load_pretraining(options)
    with training_arguments(options) as arguments:
        trained = train.pretrain(preset, options.on, options.out, **arguments)
    if is_first():
        read = f"{trained.texts_read:,} texts read"
        _print_trained(trained, f"{trained.objective}, ", read, options)
        if not options.common.json:
            print(_format_usage(options.out))
            _print_after_pretraining(options)
    return ExitCode.OK


def finetune(options: FinetuneOptions) -> int:
    """Fine-tune, draw the losses, and print the command that evaluates the checkpoint.

    Args:
        options: parsed options of the command.
    """
    preset = finetune_preset.load_preset(options.preset)
    preset = finetune_preset.changed(preset, _read_changes(options.training), "--set")
    with training_arguments(options) as arguments:
        trained = train.finetune(
            preset,
            options.model,
            options.on,
            options.out,
            like=options.like,
            split=options.split,
            negatives=options.negatives,
            held_out=options.held_out,
            **arguments,
        )
    if is_first():
        rounds = f"{trained.rounds} rounds of " if trained.rounds > 1 else ""
        _print_trained(trained, rounds, f"{trained.queries:,} queries", options)
        if not options.common.json:
            workspace = make_workspace(options.common)
            typed = list(dict.fromkeys((*options.on, *options.held_out)))
            tested = open_test_sets(workspace.expand_names(typed, files=True), (), workspace)
            scored = [
                one for one in typed if tested.keys() & workspace.expand_names([one], files=True)
            ]
            print_next_command("evaluate it", _run_line(scored, [trained.folder], options.common))
    return ExitCode.OK


def adapt(options: AdaptOptions) -> int:
    """Train on one collection after the other, and print the command that scores all checkpoints.

    Args:
        options: parsed options of the command.
    """
    preset, method = _load_pretraining(options), _read_method(options)
    workspace = make_workspace(options.common)
    names = workspace.expand_names(options.on, files=True)
    datasets = workspace.documents(options.on)
    with training_arguments(options) as arguments:
        context = train.training_context(
            options.out, arguments["device"], arguments["save_every"], arguments["progress"]
        )
        trained = adapt_on(preset, datasets, method, context)
    start, folders = preset.start.model, [_shorten_path(Path(each.folder)) for each in trained]
    usage = load_card(Path(folders[0]) / CARD_FILE).usage
    # Checkpoints of earlier versions are used like their start only if --like says so.
    is_like_start = start not in card_names() or load_card(start).usage == usage
    like = [] if is_like_start else ["--like", start]
    scored = open_test_sets(names, (), workspace)
    line = _run_line(list(scored), folders, options.common, like)
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
    if options.common.json:
        print_json({"checkpoints": rows, "scores": line})
        return ExitCode.OK
    for folder, row in zip(folders, rows, strict=True):
        print(f"{folder}: {row['collection']}; {_change(row['first_loss'], row['last_loss'])}")
    if is_like_start:
        print(_format_usage(Path(folders[0])))
    print_next_command("score the checkpoints", line)
    return ExitCode.OK


def _load_pretraining(options: PretrainOptions | AdaptOptions) -> Pretraining:
    """Load the preset with the changes that were typed."""
    start = {"start.model": options.start} if options.start else {}
    changes = start | _read_changes(options.training)
    preset = pretrain_preset.load_preset(options.preset)
    return pretrain_preset.changed(preset, changes, "--set")


def _read_changes(settings: TrainingSettings) -> dict[str, Any]:
    """Return the typed changes of preset fields.

    Raises:
        BenchError: two lengths were typed, or an assignment is invalid.
    """
    typed = parse_assignments(settings.set)
    if settings.steps is None:
        changes = typed
    elif length := next((name for name in LENGTHS if name in typed), ""):
        raise BenchError(f"--steps and {length} both set the length", "give one of them")
    else:
        changes = typed | {"steps": settings.steps}
    prefixes = (SAVE_EVERY, METHOD)
    return {name: value for name, value in changes.items() if not name.startswith(prefixes)}


def _read_method(options: AdaptOptions) -> Method:
    """Return the method with its settings.

    Raises:
        BenchError: the method or a setting does not exist.
    """
    typed = parse_assignments(options.training.set).items()
    fields = {name.removeprefix(METHOD): value for name, value in typed if name.startswith(METHOD)}
    return read_method({"name": options.method, **fields}, f"--method {options.method}")


@contextmanager
def training_arguments(
    options: PretrainOptions | FinetuneOptions | AdaptOptions,
) -> Iterator[dict[str, Any]]:
    """Yield the keyword arguments that all trainings share, and close their progress bars.

    They are the arguments of `bench.train.pretrain` and `bench.train.finetune` for folders, device,
    checkpoints and progress.

    Args:
        options: parsed options of the command.
    """
    bars: dict[str, Any] = {}

    def show(progress: Progress) -> None:
        if progress.stage not in bars:
            _close_bars(bars)
            # The first report of a stage says where it goes on from.
            first = progress.done - 1 if progress.unit == "steps" else 0
            bars[progress.stage] = tqdm(
                desc=progress.stage, total=progress.total, initial=first, unit=f" {progress.unit}"
            )
        bar = bars[progress.stage]
        if (point := progress.point) is not None:
            speed = f"{point.tokens / point.seconds:,.0f} tokens/s"
            bar.set_postfix_str(f"loss {point.losses['loss']:.3f}, {speed}", refresh=False)
        bar.update(progress.done - bar.n)

    settings, folders = options.training, options.common
    try:
        yield {
            "device": settings.device,
            "save_every": parse_assignments(settings.set).get(SAVE_EVERY, train.SAVE_EVERY),
            "progress": show,
            "cache_dir": folders.cache_dir,
            "data_dir": folders.data_dir,
            "offline": is_offline(),
        }
    finally:
        _close_bars(bars)


def _close_bars(bars: dict[str, Any]) -> None:
    """Close all progress bars."""
    for bar in bars.values():
        bar.close()
    bars.clear()


def _print_trained(
    trained: PretrainResult | FinetuneResult,
    how: str,
    read: str,
    options: PretrainOptions | FinetuneOptions,
) -> None:
    """Draw the losses of a finished training, and print a summary or its JSON document.

    Args:
        trained: result of the training.
        how: words before the number of steps.
        read: words after it.
        options: parsed options of the command.
    """
    curve_file = options.out / CURVE_FILE
    curve = read_curve(curve_file)
    pictures = draw_losses(curve, curve_file.with_name("losses")) if can_plot() else []
    if not pictures:
        print("no pictures: pip install 'retrieval-bench[plots]'", file=sys.stderr)
    first, last = curve[0], curve[-1]
    if options.common.json:
        losses = {"losses": {"first": first, "last": last}, "pictures": list(map(str, pictures))}
        print_json({**msgspec.structs.asdict(trained), **losses})
        return
    resumed = f", resumed at {trained.resumed_at:,}" if trained.resumed_at else ""
    change = _change(first.losses["loss"], last.losses["loss"])
    print(f"{trained.folder}: {how}{trained.steps:,} steps{resumed}, {read}; {change}")
    if isinstance(trained, FinetuneResult) and (size := trained.size):
        share = f"{100 * size.share:.3g} %"
        print(
            f"trained {size.trained:,} of {size.parameters:,} parameters ({share}); "
            f"{size.saved_bytes:,} bytes of weights"
        )


def _format_usage(folder: Path) -> str:
    """Return how the card of a trained checkpoint uses it."""
    card = load_card(folder / CARD_FILE)
    queries, documents = f"{card.max_query_tokens:,}", f"{card.max_document_tokens:,}"
    return (
        f"{CARD_FILE} states its use: {card.pooling} pooling, queries of up to {queries} and "
        f"documents of up to {documents} tokens"
    )


def _print_after_pretraining(options: PretrainOptions) -> None:
    """Print the commands that fine-tune and evaluate the checkpoint on its collections."""
    workspace = make_workspace(options.common)
    out, names = str(options.out), workspace.expand_names(options.on, files=True)
    trainable = [found for name in names if (found := _find_training_dataset(name, workspace))]
    if trainable:
        words = ["python", "-m", "bench", "finetune", FINETUNING_PRESET, "--model", out, "--on"]
        words += [*trainable, "--out", f"{out}-finetuned", *_folder_words(options.common)]
        print_next_command("fine-tune it", shlex.join(words))
    scored = list(open_test_sets(names, (), workspace))
    print_next_command("evaluate it", _run_line(scored, [out], options.common))


def _find_training_dataset(name: str, workspace: Workspace) -> str:
    """Return the dataset to fine-tune on after pre-training, or "" if it has too few queries."""
    train_set = f"{name}/{TRAIN}"
    name = train_set if train_set in dataset_names() else name
    if is_training_data(name):
        return ""
    try:
        judged = replace(workspace, offline=True).dataset(name, TRAIN).qrels
    except BenchError:
        return ""
    queries = {query for query, *_ in judged}
    return name if len(queries) >= finetune_preset.load_preset(FINETUNING_PRESET).batch_size else ""


def _run_line(
    collections: Sequence[str],
    models: Sequence[str],
    common: CommonOptions,
    more: Sequence[str] = (),
) -> str:
    """Return the command that evaluates models, with ``COLLECTION`` if none is known."""
    words = ["python", "-m", "bench", "run", *(collections or ["COLLECTION"])]
    return shlex.join([*words, "--model", *models, *more, *_folder_words(common)])


def _folder_words(common: CommonOptions) -> list[str]:
    """Return the options that repeat these folders in the next command."""
    typed = {"--data-dir": common.data_dir, "--cache-dir": common.cache_dir}
    return [word for option, path in typed.items() if path for word in (option, str(path))]


def _change(first: float, last: float) -> str:
    """Return the first and the last loss as text."""
    return f"loss {first:.3f} -> {last:.3f}"


def _shorten_path(folder: Path) -> str:
    """Return the path relative to the working directory if it is inside."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


class ComposedAdapter(msgspec.Struct, frozen=True):
    """Summary of a composed adapter.

    Attributes:
        folder: folder of the adapter.
        how: method of combination, see `ComposeOptions`.
        base: name of the common base model.
        adapters: folders of the combined adapters.
        parameters: number of parameters of the adapter, without the base.
    """

    folder: str
    how: str
    base: str
    adapters: tuple[str, ...]
    parameters: int


def compose(options: ComposeOptions) -> int:
    """Combine adapters, write the result, and print the command that evaluates it.

    Args:
        options: parsed options of the command.
    """
    out, adapters = options.out, options.adapters
    if out.exists() and any(out.iterdir()):
        raise BenchError(f"{out} contains other files", "Use another folder.")
    if options.how == "route" and not options.on:
        raise BenchError(
            "route needs a collection per adapter",
            "python -m bench compose route ADAPTERS --on COLLECTIONS --out OUT",
        )
    base = find_adapter_base(adapters)
    if options.how == "stack":
        stack_adapters(base, adapters, out)
    elif options.how == "route":
        workspace = make_workspace(options.common)
        training = [workspace.dataset(name, TRAIN) for name in workspace.expand_names(options.on)]
        route_on(base, adapters, out, training)
    else:
        average_adapters(base, adapters, out, options.weights)
    counted = count_parameters(resolve_model(str(out)))
    done = ComposedAdapter(
        folder=str(out),
        how=options.how,
        base=base.card.name,
        adapters=tuple(map(str, adapters)),
        parameters=(counted.adapter or counted.total) if counted else 0,
    )
    if options.common.json:
        print_json(done)
    else:
        size = f"{done.parameters:,} parameters on {done.base}"
        print(f"{out}: {done.how} of {', '.join(done.adapters)}; {size}")
        if domains := _find_domains(options, base):
            print_next_command("evaluate it", _run_line(domains, [str(out)], options.common))
    return ExitCode.OK


def _find_domains(options: ComposeOptions, base: Model) -> list[str]:
    """Return the collections that combined adapters were trained for.

    Without ``--on``, these are declared ones: cards do not record the folders of others.
    """
    if options.on:
        workspace = make_workspace(options.common)
        return list(open_test_sets(workspace.expand_names(options.on), (), workspace))
    card = load_card(options.out / CARD_FILE)
    learnt = [name for name in card.trained_on if name not in base.card.trained_on]
    return [name for name in learnt if name in dataset_names()]
