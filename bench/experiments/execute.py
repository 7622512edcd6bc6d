"""Work through a plan: finished tasks are skipped, failed ones leave a gap, others go on."""

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.experiments.kept import Done, Failed, done, keep_done, keep_failed
from bench.experiments.plan import CellTask, GridCell, Plan
from bench.experiments.stages import Cost, ExperimentStage
from bench.experiments.times import Times
from foundation.locks import FileLock

Run = Callable[[ExperimentStage, CellTask, Path], Cost]
Say = Callable[[str], None]
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass
class Outcome:
    """Tasks by key: what each left."""

    finished: dict[str, Done] = field(default_factory=dict)
    failed: dict[str, Failed] = field(default_factory=dict)

    def gap(self, cell: GridCell) -> tuple[str, str]:
        """Stage that failed and its error; two empty strings where the cell is finished."""
        for task in cell.task.chain():
            if task.key in self.failed:
                return task.stage, self.failed[task.key].error
        return ("", "") if cell.task.key in self.finished else (cell.task.stage, "not done")


def finished(plan: Plan, out: Path) -> Outcome:
    """Records of the tasks that are on disk already."""
    kept = {task.key: done(task, out) for task in plan.tasks()}
    return Outcome({key: record for key, record in kept.items() if record})


def execute(
    plan: Plan,
    stages: Mapping[str, ExperimentStage],
    out: Path,
    run: Run,
    say: Say,
    commit: str = "",
) -> Outcome:
    """Run unfinished tasks.

    Args:
        run: does one task; in this process or in one apart.
        say: is told of each cell, and how long the rest will take.

    Raises:
        OSError: the disk is full, which no other cell would survive either.
    """
    outcome, times = finished(plan, out), Times()
    for record in outcome.finished.values():
        times.add(record.stage, record.cost.seconds)
    total = len(plan.cells)
    for number, cell in enumerate(plan.cells, start=1):
        todo = [task for task in cell.task.chain() if task.key not in outcome.finished]
        if not todo:
            continue
        for task in todo:
            if task.key in outcome.failed or not _attempt(task, stages, out, run, commit, outcome):
                break
            times.add(task.stage, outcome.finished[task.key].cost.seconds)
        _tell(say, f"cell {number} of {total}: {cell.row}, seed {cell.seed}", cell, outcome)
        if left := [task.stage for task in plan.tasks() if task.key not in outcome.finished]:
            say(f"  {times.left(left)}")
    return outcome


def _attempt(
    task: CellTask,
    stages: Mapping[str, ExperimentStage],
    out: Path,
    run: Run,
    commit: str,
    outcome: Outcome,
) -> bool:
    """Run a task unless another ablation that shares it did; True where it is finished.

    Whatever went wrong belongs to its cell, and is kept there.
    """
    task.folder(out).mkdir(parents=True, exist_ok=True)
    with FileLock.wait(task.folder(out).with_suffix(".claim")):
        if record := done(task, out):
            outcome.finished[task.key] = record
            return True
        try:
            cost = run(stages[task.stage], task, out)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            outcome.failed[task.key] = keep_failed(task, out, error)
            return False
        outcome.finished[task.key] = keep_done(task, out, cost, commit)
        return True


def _tell(say: Say, name: str, cell: GridCell, outcome: Outcome) -> None:
    stage, error = outcome.gap(cell)
    if stage:
        say(f"{name}: FAILED at {stage}: {error}")
        return
    spent = [outcome.finished[task.key].cost.seconds for task in cell.task.chain()]
    say(f"{name}: done, {sum(spent):,.0f} s")
