"""Training and experiments in Python: `pretrain`, `finetune` and `ablate`, as on the command line.

They are part of the public API, and in a module of their own because it imports torch.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from bench.api import new_workspace, refuse_unknown_arguments
from bench.evaluation.pipeline import current_conditions
from bench.experiments import execute
from bench.experiments.evaluate_stage import read_scores
from bench.experiments.findings import add_sequences, make_report
from bench.experiments.grid import load_grid
from bench.experiments.prepare import prepare_experiment
from bench.experiments.report_record import Report
from bench.training.on_collections import finetune_on, open_test_sets, pretrain_on
from bench.workspace import Workspace
from foundation.errors import BenchError
from foundation.files import replace_file
from reports.experiment import markdown
from reports.plots import can_plot, draw_factors
from retrievers.models.resolve import resolve_model
from retrievers.training.engine.arguments import Progress, TrainingContext, check_device
from retrievers.training.finetune import finetune_preset
from retrievers.training.finetune.finetune import FinetuneResult
from retrievers.training.finetune.finetune_preset import Finetuning
from retrievers.training.pretrain import preset as pretrain_preset
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.pretrain import PretrainResult

SAVE_EVERY = 500  # steps
NO_CHANGES: Mapping[str, Any] = MappingProxyType({})


@refuse_unknown_arguments
def pretrain(
    preset: str | Path | Pretraining,
    on: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    start: str | Path | None = None,
    changes: Mapping[str, Any] = NO_CHANGES,
    save_every: int = SAVE_EVERY,
    progress: Callable[[Progress], None] | None = None,
    cache_dir: str | Path | None = None,
    data_dir: str | Path | None = None,
    offline: bool = False,
    device: str = "auto",
) -> PretrainResult:
    """Pre-train an encoder on the documents of collections, like ``bench pretrain``.

    The same call continues an interrupted training, and returns the result of a finished one.

    Args:
        preset: name of ``bench list presets``, TOML file, or a `Pretraining`.
        on: collections, suites, folders, or files with one document per line.
        out: folder of the checkpoint, for `evaluate`.
        start: card, folder or Hub id to start from; None for the preset's.
        changes: fields of the preset to change, such as ``{"steps": 100, "optimizer.lr": 1e-5}``.
        save_every: optimizer steps between two checkpoints.
        progress: function that is called after each step.
        cache_dir: folder of downloads and corpora; None for ``BENCH_CACHE``, then the user's cache
            folder.
        data_dir: folder of collections; None for ``BENCH_DATA``, then a download.
        offline: download nothing.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        BenchError: wrong input, ``out`` holds something else, the disk or memory is too small, or
            the loss is not finite.
    """

    context = training_context(out, device, save_every, progress)
    workspace = new_workspace(cache_dir, data_dir, offline, allow_mismatch=False)
    settings = preset if isinstance(preset, Pretraining) else pretrain_preset.load_preset(preset)
    typed = {"start.model": str(start)} if start else {}
    settings = pretrain_preset.changed(settings, {**typed, **changes}, "changes")
    return pretrain_on(settings, workspace.documents(_as_names(on)), context)


@refuse_unknown_arguments
def finetune(
    preset: str | Path | Finetuning,
    model: str | Path,
    on: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    like: str | None = None,
    split: str = "train",
    negatives: str | Path | None = None,
    held_out: str | Path | Sequence[str | Path] = (),
    changes: Mapping[str, Any] = NO_CHANGES,
    save_every: int = SAVE_EVERY,
    progress: Callable[[Progress], None] | None = None,
    cache_dir: str | Path | None = None,
    data_dir: str | Path | None = None,
    offline: bool = False,
    device: str = "auto",
) -> FinetuneResult:
    """Fine-tune an encoder on the judged queries of collections, like ``bench finetune``.

    Queries with the text of a test query of these collections are left out, with a warning. The
    same call continues an interrupted training, and returns the result of a finished one.

    Args:
        preset: name of ``bench list presets``, TOML file, or a `Finetuning`.
        model: card, folder or Hub id to start from.
        on: collections, suites or folders with a training split, or training files with texts.
        out: folder of the checkpoint, for `evaluate`.
        like: card whose pooling, prompts and lengths a plain checkpoint uses.
        split: split to train on.
        negatives: training file with ids of the collection. Its queries are trained on.
        held_out: further collections whose test queries must not be trained on.
        changes: fields of the preset to change, such as ``{"steps": 100, "optimizer.lr": 1e-5}``.
        save_every: optimizer steps between two checkpoints.
        progress: function that is called after each step.
        cache_dir: folder of downloads, corpora and vectors; None for ``BENCH_CACHE``, then the
            user's cache folder.
        data_dir: folder of collections; None for ``BENCH_DATA``, then a download.
        offline: download nothing.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        BenchError: wrong input, a training query is evaluated, ``out`` holds something else, the
            disk or memory is too small, or the loss is not finite.
    """

    context = training_context(out, device, save_every, progress)
    workspace = new_workspace(cache_dir, data_dir, offline, allow_mismatch=False)
    settings = preset if isinstance(preset, Finetuning) else finetune_preset.load_preset(preset)
    settings = finetune_preset.changed(settings, changes, "changes")
    start = resolve_model(str(model), like=like)
    names = workspace.expand_names(_as_names(on), files=True)
    training = [workspace.dataset(name, split) for name in names]
    tested = open_test_sets(names, workspace.expand_names(_as_names(held_out)), workspace)
    return finetune_on(
        settings,
        start,
        training,
        workspace.store,
        context,
        evaluated=list(tested.values()),
        negatives=Path(negatives) if negatives else None,
    )


def _as_names(names: str | Path | Sequence[str | Path]) -> list[str]:
    """Return one name or several as a list."""
    return [str(name) for name in ([names] if isinstance(names, str | Path) else names)]


def training_context(
    out: str | Path,
    device: str,
    save_every: int,
    progress: Callable[[Progress], None] | None = None,
) -> TrainingContext:
    """Return the context of a training.

    Args:
        out: folder of the checkpoint.
        device: ``auto``, ``cpu`` or ``cuda``.
        save_every: optimizer steps between two checkpoints.
        progress: function that is called after each step.

    Raises:
        BenchError: the device is not the first GPU, or ``save_every`` is not a whole number from 1.
    """

    check_device(device)
    if type(save_every) is not int or save_every < 1:
        raise BenchError(f"save_every={save_every} is not a whole number from 1")
    return TrainingContext(Path(out), device, save_every, progress)


@refuse_unknown_arguments
def ablate(
    grid: str | Path,
    *,
    variant: str = "",
    seeds: Sequence[int] = (),
    out: str | Path = "ablations",
    cache_dir: str | Path | None = None,
    data_dir: str | Path | None = None,
    offline: bool = False,
    device: str = "auto",
    allow_mismatch: bool = False,
) -> tuple[Report, ...]:
    """Run an ablation, like ``bench ablate``: train and evaluate every row with several seeds.

    Each report is also written to ``OUT/NAME/report.md``. The same call continues an interrupted
    experiment; finished cells are not computed again.

    Args:
        grid: name of ``bench list grids``, or TOML file.
        variant: variant that the grid declares; "" for none.
        seeds: seeds to train with; empty for the grid's.
        out: folder of cells and reports.
        cache_dir: folder of downloads, corpora and vectors; None for ``BENCH_CACHE``, then the
            user's cache folder.
        data_dir: folder of collections; None for ``BENCH_DATA``, then a download.
        offline: download nothing.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        allow_mismatch: evaluate a collection although it differs from the published one.

    Returns:
        One report, or one for each endpoint of the grid. A failed cell is a gap (``report.gaps``).

    Raises:
        BenchError: the grid is invalid, a collection or model is missing, or a training query is
            evaluated.
    """

    workspace = new_workspace(cache_dir, data_dir, offline, allow_mismatch, device)
    return run_grid(workspace, Path(out), str(grid), variant, seeds)


def run_grid(
    workspace: Workspace, out: Path, name: str, variant: str, seeds: Sequence[int]
) -> tuple[Report, ...]:
    """Run the unfinished tasks of a grid, and write a report for each endpoint.

    Args:
        workspace: folders and device.
        out: folder of cells and reports.
        name: name or file of the grid.
        variant: variant of the grid; "" for none.
        seeds: seeds to train with; empty for the grid's.

    Raises:
        BenchError: as `ablate`.
    """
    grid = load_grid(name, variant, seeds)
    words = ["python", "-m", "bench", "ablate", name]
    words += ["--variant", variant] if variant else []
    words += ["--seeds", *map(str, seeds)] if seeds else []
    words += ["--allow-mismatch"] if workspace.allow_mismatch else []
    conditions = current_conditions(workspace.device)
    parts = [prepare_experiment(part, workspace, conditions) for part in grid.split_endpoints()]
    for part in parts:
        _print_line(execute.count_cells(part, out))
    code = execute.describe_code(conditions)
    plan = execute.fix_plan(out / f"{grid.name}-plan.json", parts, out, code)
    reports = []
    for part in parts:
        outcome = execute.run_experiment(part, out, execute.run_task, _print_line, code)
        scores, command = partial(read_scores, out=out), shlex.join(words)
        report = make_report(part, outcome, scores, command, conditions, plan)
        reports.append(add_sequences(report, part, outcome, out))
        _write_report(reports[-1], out / part.grid.name)
    return tuple(reports)


def _write_report(report: Report, folder: Path) -> None:
    """Write a report with its pictures."""
    if not can_plot():
        _print_line("no pictures: pip install 'retrieval-bench[plots]'")
    text = markdown(report, draw_factors(report, folder) if can_plot() else [])
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=1)
    for name, content in (("md", text.encode()), ("json", encoded)):
        with replace_file(folder / f"report.{name}") as file:
            file.write(content)
    _print_line(f"report saved to {folder}")


def _print_line(text: str) -> None:
    """Print progress on stderr."""
    print(text, file=sys.stderr, flush=True)
