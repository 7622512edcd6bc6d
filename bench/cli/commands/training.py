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
from bench.cli.terminal import as_typed, print_result
from bench.requests import training
from bench.requests.fields import FolderFields, typed_options
from bench.requests.outcomes import ExitCode
from bench.runner.workspace import open_workspace
from bench.training import trainings
from bench.training.trainings import open_test_sets
from reports.experiment import plan_table, write_report
from reports.latex import report_latex
from reports.plots import can_plot, draw_losses
from retrievers.training.engine.context import CURVE_FILE, Progress, is_first, read_curve

if TYPE_CHECKING:
    from retrievers.training.finetune.finetune import FinetuneResult
    from retrievers.training.pretrain.pretrain import PretrainResult

Training = TypeVar("Training", bound=training.TrainingFields)


def pretrain(request: training.PretrainRequest, output: OutputOptions) -> int:
    """Print a summary and the command that evaluates the checkpoint."""
    with _show_progress(request) as shown:
        trained = trainings.pretrain(shown)
    read = f"{trained.texts_read:,} texts read"
    return _print_trained(trained, f"{trained.objective}, ", read, request, output)


def finetune(request: training.FinetuneRequest, output: OutputOptions) -> int:
    """Print a summary and the command that evaluates the checkpoint."""
    with _show_progress(request) as shown:
        trained = trainings.finetune(shown)
    rounds = f"{trained.rounds} rounds of " if trained.rounds > 1 else ""
    return _print_trained(trained, rounds, f"{trained.queries:,} queries", request, output)


def adapt(request: training.AdaptRequest, output: OutputOptions) -> int:
    """Print a line for each checkpoint, and the command that scores all of them."""
    with _show_progress(request) as shown:
        trained = trainings.adapt(shown)
    names = open_workspace(request).expand_names(request.on, files=True)
    folders = [_shorten_path(Path(each.folder)) for each in trained]
    command = _run_line(request.on, folders, request)
    rows, lines = [], []
    for each, name, folder in zip(trained, names, folders, strict=True):
        curve = read_curve(Path(folder) / CURVE_FILE)
        first, last = (point.losses["loss"] for point in (curve[0], curve[-1]))
        row = {"collection": name, "first_loss": first, "last_loss": last}
        rows.append({**msgspec.structs.asdict(each), **row})
        lines.append(f"{_say_found(folder, each.found)}: {name}; loss {first:.3f} -> {last:.3f}")
    lines.append(as_typed(f"score the checkpoints: {command}"))
    return print_result(output.json, {"checkpoints": rows, "scores": command}, "\n".join(lines))


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
                unit = f" {progress.unit}"
                bar = tqdm(desc=progress.stage, total=progress.total, initial=first, unit=unit)
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
    request: training.PretrainRequest | training.FinetuneRequest,
    output: OutputOptions,
) -> int:
    """Draw the losses of a finished training, and print a summary or its JSON document.

    In the summary, ``how`` stands before the number of steps, and ``read`` after it. Of several
    processes that train together, only the first one prints.
    """
    if not is_first():
        return ExitCode.OK
    curve = read_curve(request.out / CURVE_FILE)
    first, last = curve[0], curve[-1]
    if can_plot():
        draw_losses(curve, request.out / "losses")
    if output.json:
        losses = {"first": first, "last": last}
        return print_result(True, {**msgspec.structs.asdict(trained), "losses": losses}, "")
    resumed = f", resumed at {trained.resumed_at:,}" if trained.resumed_at else ""
    resumed = "" if trained.found else resumed
    change = f"loss {first.losses['loss']:.3f} -> {last.losses['loss']:.3f}"
    folder = _say_found(trained.folder, trained.found)
    text = f"{folder}: {how}{trained.steps:,} steps{resumed}, {read}; {change}\n"
    if size := getattr(trained, "size", None):  # of a fine-tuning
        share = f"{100 * size.trained / size.parameters:.3g} %"
        text += f"trained {size.trained:,} of {size.parameters:,} parameters ({share}); "
        text += f"{size.saved_bytes:,} bytes of weights\n"
    typed = (*request.on, *getattr(request, "held_out", ()))
    text += as_typed(f"evaluate it: {_run_line(typed, [str(request.out)], request)}")
    return print_result(False, None, text)


def _say_found(folder: str, found: bool) -> str:
    """Return ``folder``, marked if an earlier call had made what is in it."""
    return f"found {folder}, made by an earlier call" if found else folder


def _run_line(typed: Sequence[str], models: Sequence[str], folders: FolderFields) -> str:
    """Return the command that evaluates models on the names ``typed`` that have a test split."""
    workspace = open_workspace(folders)
    tested = open_test_sets(workspace.expand_names(typed, files=True), (), workspace)
    names = dict.fromkeys(typed)
    scored = [one for one in names if tested.keys() & workspace.expand_names([one], files=True)]
    places = {"data_dir": folders.data_dir, "cache_dir": folders.cache_dir}
    words = [*(scored or ["COLLECTION"]), *typed_options({"model": tuple(models), **places})]
    return shlex.join(["python", "-m", "bench", "run", *words])


def _shorten_path(folder: Path) -> str:
    """Return the path relative to the working directory if it is inside."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def compose(request: training.ComposeRequest, output: OutputOptions) -> int:
    """Print a summary of the combined adapter, and the command that evaluates it."""
    done = trainings.compose(request)
    size = f"{done.parameters:,} parameters on {done.base}"
    text = (
        f"{_say_found(done.folder, done.found)}: {done.how} of {', '.join(done.adapters)}; {size}"
    )
    if request.on and not output.json:
        text += as_typed(f"\nevaluate it: {_run_line(request.on, [done.folder], request)}")
    return print_result(output.json, done, text)


def ablate(request: training.AblateRequest, output: OutputOptions) -> int:
    """Print the report, or with ``--dry-run`` the plan."""
    from bench.experiments import ablate as ablate_case

    if output.dry_run:
        plan = ablate_case.plan(request)
        table = plan_table(plan.rows, plan.tasks)
        lines = [table, "", plan.progress, *plan.differing, *plan.leaks]
        return print_result(output.json, plan, "\n".join(lines))
    report = ablate_case.ablate(request, write_report)
    written = request.out / report.name / "report.md"
    text = report_latex(report) if output.format == "latex" else written.read_text(encoding="utf-8")
    print_result(output.json, report, text)
    return ExitCode.MISSING if report.gaps else ExitCode.OK
