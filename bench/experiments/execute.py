"""Work through a plan: finished tasks are skipped, failed ones leave a gap, others go on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.experiments.kept import Done, Failed, done, keep_done, keep_failed
from bench.experiments.plan import CellTask, GridCell, Plan
from bench.experiments.stages import Cost, ExperimentStage
from bench.experiments.times import Times
from foundation.errors import lacks_room
from foundation.locks import FileLock

Run = Callable[[ExperimentStage, CellTask, Path], Cost]
Say = Callable[[str], None]


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
    """Run unfinished tasks. Processes that execute the same plan at the same time share its cells.

    Args:
        run: does one task; in this process or in one apart.
        say: is told of each cell, and how long the rest will take.

    Raises:
        Exception: of `run`, where the disk is full, which no other cell would survive either.
    """
    outcome, times = finished(plan, out), Times()
    for record in outcome.finished.values():
        times.add(record.stage, record.cost.seconds)
    total = len(plan.cells)
    left = [pair for pair in enumerate(plan.cells, 1) if pair[1].task.key not in outcome.finished]
    while left:
        elsewhere = []
        for number, cell in left:
            todo = [task for task in cell.task.chain() if task.key not in outcome.finished]
            if claimed := _work(todo, stages, out, run, commit, outcome):
                elsewhere.append((number, cell, claimed))
                continue
            for task in todo:
                if task.key in outcome.finished:
                    times.add(task.stage, outcome.finished[task.key].cost.seconds)
            _tell(say, f"cell {number} of {total}: {cell.row}, seed {cell.seed}", cell, outcome)
            if unfinished := [t.stage for t in plan.tasks() if t.key not in outcome.finished]:
                say(f"  {times.left(unfinished)}")
        if len(elsewhere) == len(left):
            FileLock.wait(_claim(elsewhere[0][2], out)).release()
        left = [(number, cell) for number, cell, _ in elsewhere]
    return outcome


def _claim(task: CellTask, out: Path) -> Path:
    """File that the process locks which works on a task."""
    return task.folder(out).with_suffix(".claim")


def _work(
    tasks: Sequence[CellTask],
    stages: Mapping[str, ExperimentStage],
    out: Path,
    run: Run,
    commit: str,
    outcome: Outcome,
) -> CellTask | None:
    """Run tasks in turn, up to one that fails; return the one that another process works on.

    Whatever goes wrong belongs to its cell, and is kept there.
    """
    for task in tasks:
        if task.key in outcome.failed:
            return None
        task.folder(out).mkdir(parents=True, exist_ok=True)
        claim = FileLock.take(_claim(task, out))
        if claim is None:
            return task
        with claim:
            if record := done(task, out):
                outcome.finished[task.key] = record
                continue
            try:
                cost = run(stages[task.stage], task, out)
            except Exception as error:
                if lacks_room(error):
                    raise
                outcome.failed[task.key] = keep_failed(task, out, error)
                return None
            outcome.finished[task.key] = keep_done(task, out, cost, commit)
    return None


def _tell(say: Say, name: str, cell: GridCell, outcome: Outcome) -> None:
    stage, error = outcome.gap(cell)
    if stage:
        say(f"{name}: FAILED at {stage}: {error}")
        return
    spent = [outcome.finished[task.key].cost.seconds for task in cell.task.chain()]
    say(f"{name}: done, {sum(spent):,.0f} s")
