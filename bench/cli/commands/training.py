"""``pretrain``, ``finetune``, ``adapt``, ``compose`` and ``ablate``."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from attrs import evolve
from tqdm import tqdm

from bench.cli.command_table import OutputOptions
from bench.cli.terminal import print_json, print_next_command
from bench.requests.fields import FolderFields
from bench.requests.outcomes import ExitCode
from bench.requests.training import (
    AblateRequest,
    AdaptRequest,
    ComposeRequest,
    FinetuneRequest,
    PretrainRequest,
    TrainingFields,
)
from bench.runner.workspace import open_workspace
from bench.training import trainings
from bench.training.trainings import open_test_sets
from reports.latex import report_latex
from reports.plots import can_plot, draw_losses
from reports.training import plan_table, write_report
from retrievers.training.engine.context import CURVE_FILE, Progress, is_first, read_curve

if TYPE_CHECKING:
    from retrievers.training.finetune.finetune import FinetuneResult
    from retrievers.training.pretrain.pretrain import PretrainResult

Training = TypeVar("Training", bound=TrainingFields)


def pretrain(request: PretrainRequest, output: OutputOptions) -> int:
    """Print a summary and the command that evaluates the checkpoint."""
    with _show_progress(request) as shown:
        trained = trainings.pretrain(shown)
    if is_first():
        read = f"{trained.texts_read:,} texts read"
        _print_trained(trained, f"{trained.objective}, ", read, request, output)
    return ExitCode.OK


def finetune(request: FinetuneRequest, output: OutputOptions) -> int:
    """Print a summary and the command that evaluates the checkpoint."""
    with _show_progress(request) as shown:
        trained = trainings.finetune(shown)
    if is_first():
        rounds = f"{trained.rounds} rounds of " if trained.rounds > 1 else ""
        _print_trained(trained, rounds, f"{trained.queries:,} queries", request, output)
    return ExitCode.OK


def adapt(request: AdaptRequest, output: OutputOptions) -> int:
    """Print a line for each checkpoint, and the command that scores all of them."""
    with _show_progress(request) as shown:
        trained = trainings.adapt(shown)
    names = open_workspace(request).expand_names(request.on, files=True)
    folders = [_shorten_path(Path(each.folder)) for each in trained]
    line = _run_line(request.on, folders, request)
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
    if output.json:
        print_json({"checkpoints": rows, "scores": line})
        return ExitCode.OK
    for folder, row in zip(folders, rows, strict=True):
        change = f"loss {row['first_loss']:.3f} -> {row['last_loss']:.3f}"
        print(f"{folder}: {row['collection']}; {change}")
    print_next_command("score the checkpoints", line)
    return ExitCode.OK


@contextmanager
def _show_progress(request: Training) -> Iterator[Training]:
    """Yield the request with a function that draws progress bars, and close them at the end."""
    with ExitStack() as open_bars:
        bars: dict[str, Any] = {}  # of the current stage

        def show(progress: Progress) -> None:
            if progress.stage not in bars:
                open_bars.close()
                bars.clear()
                # The first report of a stage says where it goes on from.
                first = progress.done - 1 if progress.unit == "steps" else 0
                bar = tqdm(
                    desc=progress.stage,
                    total=progress.total,
                    initial=first,
                    unit=f" {progress.unit}",
                )
                bars[progress.stage] = open_bars.enter_context(bar)
            bar = bars[progress.stage]
            if (point := progress.point) is not None:
                speed = f"{point.tokens / point.seconds:,.0f} tokens/s"
                bar.set_postfix_str(f"loss {point.losses['loss']:.3f}, {speed}", refresh=False)
            bar.update(progress.done - bar.n)

        yield evolve(request, progress=show)


def _print_trained(
    trained: "PretrainResult | FinetuneResult",
    how: str,
    read: str,
    request: PretrainRequest | FinetuneRequest,
    output: OutputOptions,
) -> None:
    """Draw the losses of a finished training, and print a summary or its JSON document.

    In the summary, ``how`` stands before the number of steps, and ``read`` after it.
    """
    curve = read_curve(request.out / CURVE_FILE)
    first, last = curve[0], curve[-1]
    if can_plot():
        draw_losses(curve, request.out / "losses")
    if output.json:
        print_json({**msgspec.structs.asdict(trained), "losses": {"first": first, "last": last}})
        return
    resumed = f", resumed at {trained.resumed_at:,}" if trained.resumed_at else ""
    change = f"loss {first.losses['loss']:.3f} -> {last.losses['loss']:.3f}"
    print(f"{trained.folder}: {how}{trained.steps:,} steps{resumed}, {read}; {change}")
    if size := getattr(trained, "size", None):  # of a fine-tuning
        share = 100 * size.trained / size.parameters
        print(
            f"trained {size.trained:,} of {size.parameters:,} parameters ({share:.3g} %); "
            f"{size.saved_bytes:,} bytes of weights"
        )
    typed = (*request.on, *getattr(request, "held_out", ()))
    print_next_command("evaluate it", _run_line(typed, [str(request.out)], request))


def _run_line(typed: Sequence[str], models: Sequence[str], folders: FolderFields) -> str:
    """Return the command that evaluates models on the names ``typed`` that have a test split."""
    workspace = open_workspace(folders)
    tested = open_test_sets(workspace.expand_names(typed, files=True), (), workspace)
    names = dict.fromkeys(typed)
    scored = [one for one in names if tested.keys() & workspace.expand_names([one], files=True)]
    given = {"--data-dir": folders.data_dir, "--cache-dir": folders.cache_dir}
    places = [word for option, path in given.items() if path for word in (option, str(path))]
    words = ["python", "-m", "bench", "run", *(scored or ["COLLECTION"])]
    return shlex.join([*words, "--model", *models, *places])


def _shorten_path(folder: Path) -> str:
    """Return the path relative to the working directory if it is inside."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def compose(request: ComposeRequest, output: OutputOptions) -> int:
    """Print a summary of the combined adapter, and the command that evaluates it."""
    done = trainings.compose(request)
    if output.json:
        print_json(done)
        return ExitCode.OK
    size = f"{done.parameters:,} parameters on {done.base}"
    print(f"{done.folder}: {done.how} of {', '.join(done.adapters)}; {size}")
    if request.on:
        print_next_command("evaluate it", _run_line(request.on, [done.folder], request))
    return ExitCode.OK


def ablate(request: AblateRequest, output: OutputOptions) -> int:
    """Print the report, or with ``--dry-run`` the plan."""
    from bench.experiments import ablate as ablate_case

    if output.dry_run:
        plan = ablate_case.plan(request)
        if output.json:
            print_json(plan)
        else:
            print(plan_table(plan.rows, plan.tasks), end="\n\n")
            print("\n".join([plan.progress, *plan.differing, *plan.leaks]))
        return ExitCode.OK
    report = ablate_case.ablate(request, write_report)
    if output.json:
        print_json(report)
    elif output.format == "latex":
        print(report_latex(report), end="")
    else:
        print((request.out / report.name / "report.md").read_text(encoding="utf-8"), end="")
    return ExitCode.MISSING if report.gaps else ExitCode.OK
