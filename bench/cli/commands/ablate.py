"""``ablate``: from a grid in TOML to trained cells, and from those to a table with intervals."""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from bench.cli.commands.common import resampling_of, workspace
from bench.cli.options.study import AblateOptions
from bench.cli.printing import print_json
from bench.comparing.statistics import Resampling
from bench.evaluate.pipeline import conditions_here
from bench.exit_codes import ExitCode
from bench.experiments.adapt_stage import Adapt
from bench.experiments.evaluation import Evaluate, read_scores
from bench.experiments.execute import execute, finished
from bench.experiments.findings import MadeBy, report_of
from bench.experiments.finetune_stage import Finetune
from bench.experiments.grid import Ablation, load_ablation, replaced
from bench.experiments.isolation import isolated
from bench.experiments.leakage import check_leaks
from bench.experiments.plan import CellTask, Plan, plan_of
from bench.experiments.pretrain_stage import Pretrain
from bench.experiments.rehearsal import rehearse
from bench.experiments.report_record import Report
from bench.experiments.sequence_findings import check_resamples, with_sequences
from bench.experiments.stages import Cost, ExperimentStage
from bench.experiments.times import Times
from bench.results.result import Conditions
from bench.workspace import Workspace
from datasets_cfg.verify import differences
from foundation.files import replacing
from reports.experiments.grid_report import figures, markdown, plan_table
from reports.plots.style import can_plot
from retrievers.models.model import resolve_model
from retrievers.training.engine.arguments import check_device

DECISIVE = (
    *("torch", "transformers", "sentence-transformers", "adapters", "peft"),
    *("faiss-cpu", "faiss-gpu"),
)

EQUAL = 1e-9  # weights


@dataclass(frozen=True)
class Checked:
    """An ablation, or one endpoint of it, whose plan was checked before any work."""

    stages: Mapping[str, ExperimentStage]
    plan: Plan
    leaks: tuple[str, ...]
    differing: tuple[str, ...]

    @classmethod
    def of(
        cls, ablation: Ablation, space: Workspace, conditions: Conditions, resampling: Resampling
    ) -> "Checked":
        """Read and check everything.

        Raises:
            BenchError: see `plan_of`, `check_device`, `check_resamples` and `check_leaks`.
        """
        stages = _stages(ablation, space)
        plan = plan_of(ablation, stages, _here(ablation, conditions))
        if set(plan.rows[0].settings) != {"evaluate"}:
            check_device(space.device)
        check_resamples(plan, resampling)
        return cls(stages, plan, check_leaks(plan, space), _differing(plan, space))


def ablate(options: AblateOptions) -> int:
    """Check the whole grid, run unfinished tasks, write a report for each endpoint."""
    ablation = load_ablation(options.file, options.variant)
    if options.seeds:
        ablation = replaced(ablation, "--seeds", seeds=tuple(options.seeds))
    space = workspace(options.places, options.hardware, options.allow_mismatch)
    conditions = conditions_here(options.hardware.device)
    resampling = resampling_of(options.resampling)
    parts = [Checked.of(part, space, conditions, resampling) for part in ablation.parts()]
    if options.dry_run:
        return _show(parts, options)
    for part in parts:
        _say(_overview(part.plan, options.out))
        if not options.no_rehearsal:
            rehearse(part.plan, part.stages, options.out, _apart, _say)
    records = [_run(part, options, space, conditions, resampling) for part in parts]
    if options.output.json:
        print_json(records if ablation.endpoints else records[0])
    return ExitCode.MISSING if any(record.gaps for record in records) else ExitCode.OK


def _run(
    part: Checked,
    options: AblateOptions,
    space: Workspace,
    conditions: Conditions,
    resampling: Resampling,
) -> Report:
    """Work through a plan and write its report."""
    plan = part.plan
    outcome = execute(plan, part.stages, options.out, _apart, _say, conditions.commit)
    made = MadeBy(
        command=_typed(options),
        leaks=part.leaks,
        differing=part.differing,
        weights=_weights(plan, space),
        conditions=conditions,
        resampling=resampling,
    )
    record = report_of(plan, outcome, lambda task: read_scores(task, options.out), made)
    record = with_sequences(record, plan, outcome, options.out, resampling)
    folder = options.out / plan.ablation.name
    text = markdown(record, *_pictures(record, folder))
    _keep_report(folder, record, text, figures(record).csv())
    if not options.output.json:
        print(text, end="")
    return record


def _stages(ablation: Ablation, space: Workspace) -> dict[str, ExperimentStage]:
    on = (ablation.evaluate or {}).get("on")
    held_out = tuple(on) if isinstance(on, list) else ()  # anything else is refused when resolved
    return {
        "base": Pretrain(space, "base"),
        "pretrain": Pretrain(space, after_base=ablation.base is not None),
        "adapt": Adapt(space, held_out, ablation.model),
        "finetune": Finetune(space, held_out),
        "evaluate": Evaluate(space),
    }


def _here(ablation: Ablation, conditions: Conditions) -> Mapping[str, str]:
    """Influences on figures besides the grid: libraries, the kind of device, the named model."""
    here = {name: version for name in DECISIVE if (version := _version(name))}
    here["device"] = _device_kind(conditions.device)
    if ablation.model:
        here["model"] = resolve_model(ablation.model).recipe.fingerprint
    return here


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def _device_kind(device: str) -> str:
    from retrievers.encoders.device import pick_device

    return str(pick_device(device).type)


def _apart(stage: ExperimentStage, task: CellTask, out: Path) -> Cost:
    """A task in a process of its own."""
    cost: Cost = isolated(stage.work, task.settings, task.starts_from(out), task.folder(out))
    return cost


def _differing(plan: Plan, space: Workspace) -> tuple[str, ...]:
    """A sentence for each collection of the evaluation that is not the published one."""
    evaluated = space.datasets(plan.rows[0].settings["evaluate"]["on"])
    return tuple(
        f"This is not the published {dataset.name}: {'; '.join(different)}."
        for dataset in evaluated
        if (different := differences(dataset))
    )


def _weights(plan: Plan, space: Workspace) -> dict[str, float]:
    """Weights of the collections in the mean; {} where each counts the same."""
    weights = space.weights(plan.rows[0].settings["evaluate"]["on"])
    return {} if max(weights.values()) - min(weights.values()) < EQUAL else weights


def _show(parts: Sequence[Checked], options: AblateOptions) -> int:
    """``--dry-run``."""
    documents = [_plan_document(part, options.out) for part in parts]
    if options.output.json:
        print_json(documents if len(parts) > 1 else documents[0])
        return ExitCode.OK
    for part, document in zip(parts, documents, strict=True):
        if len(parts) > 1:
            print(f"## {part.plan.ablation.title}", end="\n\n")
        print(plan_table(document["rows"], document["tasks"]), end="\n\n")
        print("\n".join([_overview(part.plan, options.out), *part.differing, *part.leaks]))
    return ExitCode.OK


def _plan_document(part: Checked, out: Path) -> dict[str, Any]:
    """Rows and tasks of a plan, and what was checked."""
    plan, outcome = part.plan, finished(part.plan, out)
    tasks = []
    for stage in plan.rows[0].settings:
        keys = [task.key for task in plan.tasks() if task.stage == stage]
        tasks.append((stage, len(keys), sum(key in outcome.finished for key in keys)))
    return {
        "rows": [(row.name, row.against, row.change) for row in plan.rows],
        "tasks": tasks,
        "leaks": part.leaks,
        "differing": part.differing,
        "cells": len(plan.cells),
    }


def _overview(plan: Plan, out: Path) -> str:
    """The number of tasks left, the time they take where that is known, and an unequal budget."""
    outcome, times = finished(plan, out), Times()
    for record in outcome.finished.values():
        times.add(record.stage, record.cost.seconds)
    left = [task.stage for task in plan.tasks() if task.key not in outcome.finished]
    seeds = len(plan.ablation.seeds)
    cells = f"{len(plan.cells)} cells: {len(plan.rows)} rows, {seeds} seeds"
    if not left:
        return f"{cells}; all are finished"
    known = "" if times.seconds(left) is not None else "; the time is known after one cell"
    return f"{cells}; {times.left(left)}{known}{_unequal_budget(plan)}"


def _unequal_budget(plan: Plan) -> str:
    """A warning where objectives are compared that may read a different number of tokens a step."""
    stages = [row.settings["pretrain"] for row in plan.rows if "pretrain" in row.settings]
    names = {stage["objective"]["name"] for stage in stages}
    if len(names) < 2 or all(stage["tokens"] for stage in stages):
        return ""
    return (
        f"\n{', '.join(sorted(names))} may read different numbers of tokens in as many steps: with "
        "tokens in place of steps in [pretrain] all read equally many"
    )


def _pictures(record: Report, folder: Path) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Draw every axis, and the forgetting matrix of each row that has one."""
    if not can_plot():
        _say("no pictures: pip install 'retrieval-bench[plots]'")
        return [], {}
    from reports.plots.experiments import draw
    from reports.plots.training import draw_forgetting

    learnt = {row.name: row.sequence.forgetting for row in record.rows if row.sequence}
    files = {name: folder / f"forgetting-{file_name(name)}.svg" for name in learnt}
    draw_forgetting({files[name]: forgetting for name, forgetting in learnt.items()})
    heat_maps = {name: file.name for name, file in files.items()}
    return draw(record, folder), heat_maps


def file_name(row: str) -> str:
    """The name of a row as a part of a file's."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", row)


def _typed(options: AblateOptions) -> str:
    """The command line that makes the same report again."""
    words = ["python", "-m", "bench", "ablate", options.file]
    if options.variant:
        words += ["--variant", options.variant]
    if options.seeds:
        words += ["--seeds", *map(str, options.seeds)]
    if options.allow_mismatch:
        words.append("--allow-mismatch")
    usual = Resampling()
    if options.resampling.resamples != usual.resamples:
        words += ["--resamples", str(options.resampling.resamples)]
    return shlex.join(words)


def _keep_report(folder: Path, record: msgspec.Struct, text: str, table: str) -> None:
    """Keep a report as Markdown, CSV and JSON, each whole or not at all."""
    encoded = msgspec.json.format(msgspec.json.encode(record), indent=1)
    for name, content in (
        ("report.md", text.encode()),
        ("report.csv", table.encode()),
        ("report.json", encoded),
    ):
        with replacing(folder / name) as file:
            file.write(content)
    _say(f"kept in {folder}")


def _say(text: str) -> None:
    """Print to people, beside the output."""
    print(text, file=sys.stderr, flush=True)
