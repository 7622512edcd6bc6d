"""Two steps of every training before the first of them, so that what cannot work fails now."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bench.experiments.execute import Run, Say
from bench.experiments.kept import done, keep_done
from bench.experiments.plan import CellTask, GridCell, Plan
from bench.experiments.stages import MODEL, ExperimentStage
from foundation.errors import BenchError


def rehearse(
    plan: Plan, stages: Mapping[str, ExperimentStage], out: Path, run: Run, say: Say
) -> None:
    """Rehearse the rows of the first seed whose work is not finished. Done once for each.

    Raises:
        BenchError: a row's training fails; which, at what stage, and why.
    """
    first = [cell for cell in plan.cells if cell.seed == plan.ablation.seeds[0]]
    place = out / "rehearsals"
    for cell in (each for each in first if not done(each.task, out)):
        for task in _short(cell, stages):
            if done(task, place):
                continue
            say(f"rehearsal of {cell.row}: two steps of {task.stage}")
            _try(cell.row, task, stages, place, run)
    for model in place.glob(f"*/*/{MODEL}"):
        shutil.rmtree(model)


def _short(cell: GridCell, stages: Mapping[str, ExperimentStage]) -> list[CellTask]:
    """The stages of a cell up to the first that is not rehearsed."""
    tasks: list[CellTask] = []
    for task in cell.task.chain():
        settings = stages[task.stage].rehearsal(task.settings)
        if settings is None:
            break
        tasks.append(replace(task, settings=settings, before=tasks[-1] if tasks else None))
    return tasks


def _try(
    row: str, task: CellTask, stages: Mapping[str, ExperimentStage], place: Path, run: Run
) -> None:
    folder = task.folder(place)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if task.before and not Path(task.starts_from(place)).exists():
        _try(row, task.before, stages, place, run)
    try:
        cost = run(stages[task.stage], task, place)
    except Exception as error:
        hint = getattr(error, "hint", "") or "no cell was trained; --no-rehearsal trains the others"
        raise BenchError(f"{row} fails at {task.stage}, in a rehearsal: {error}", hint) from error
    keep_done(task, place, cost, "")
