"""``watch``: the checkpoints of a running training, evaluated as they are completed."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from bench.cli.commands.common import load_model, resampling_of, workspace
from bench.cli.early_checks import check_out
from bench.cli.options.study import WatchOptions
from bench.cli.printing import print_json
from bench.comparing.panels import Entry
from bench.evaluate.judging import common_measure
from bench.evaluate.pipeline import Options
from bench.exit_codes import ExitCode
from bench.monitor.following import Ending, follow
from bench.monitor.ledger import Ledger
from bench.monitor.quality_curve import Aim, Curve, curve_of
from bench.monitor.scanner import CheckpointScanner, training_of
from bench.monitor.watcher import Watcher, WatchSettings
from bench.results.choose import choose_results
from bench.results.find import find_named
from bench.workspace import OpenDataset, Workspace
from foundation.atomic import replacing
from foundation.errors import BenchError
from reports.plots.style import load_library
from reports.plots.training import draw_quality
from reports.training.quality_curve import figures, markdown
from retrievers.models.card import load_card


def watch(options: WatchOptions) -> int:
    """``watch``: evaluates until it is told to end; then the table, or one JSON document."""
    out = options.out or training_of(options.folder) / "watch"
    _check(options, out)
    space = workspace(options.places, options.hardware, options.protocol.allow_mismatch)
    opened = space.open_all(options.on, options.protocol.split)
    aim = _aim(options, space, opened)
    work = _work(options, space, out, aim, opened)
    load_library()
    with Ledger(out / "ledger.jsonl") as ledger:
        watcher = Watcher(work, ledger)
        end = options.end
        ending = Ending(end.every, end.once, end.until, end.stop_after)
        follow(
            CheckpointScanner(options.folder),
            watcher,
            ending,
            lambda: _write(curve_of(ledger.lines, aim), out),
        )
        curve = curve_of(ledger.lines, aim)
        _write(curve, out)
    if curve is None and options.end.once:
        raise _nothing(options.folder, watcher.reported)
    if options.output.json:
        print_json({"out": str(out), "curve": curve})
    elif curve is not None:
        print(markdown(curve), end="")
    if watcher.interrupted:
        print(f"{watcher.interrupted} was not evaluated to the end", file=sys.stderr)
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _check(options: WatchOptions, out: Path) -> None:
    """Bad input stops before the first look."""
    if not options.folder.is_dir():
        raise BenchError(
            f"{options.folder} is no folder",
            "name the folder that the training writes its checkpoints to (its output_dir)",
        )
    check_out(out)
    if options.use.like is not None:
        load_card(options.use.like)


def _aim(options: WatchOptions, space: Workspace, opened: Mapping[str, OpenDataset]) -> Aim:
    resampling = resampling_of(options.resampling)
    resampling.check_enough(1)  # a max-statistic test is one, over all pairs
    weights = space.weights(options.on)
    baseline = None
    if options.best.baseline:
        name = options.best.baseline
        stored = choose_results(name, find_named(name, options.results), weights)
        baseline = name, {key: Entry.of(each) for key, each in stored.items()}
    return Aim(
        training="_".join(training_of(options.folder).name.split()) or "training",
        weights=weights,
        measure=common_measure(
            [each.dataset for each in opened.values()], options.measure, options.protocol.depth
        ),
        method=options.best.select,
        baseline=baseline,
        resampling=resampling,
    )


def _work(
    options: WatchOptions,
    space: Workspace,
    out: Path,
    aim: Aim,
    opened: Mapping[str, OpenDataset],
) -> WatchSettings:
    return WatchSettings(
        training=aim.training,
        opened=list(opened.values()),
        measure=aim.measure,
        options=Options(depth=options.protocol.depth, measures=(aim.measure,)),
        results=options.results,
        space=replace(space, vectors=None if options.keep_vectors else "watched"),
        keep_vectors=options.keep_vectors,
        held=out / ".held",
        open_model=lambda folder: load_model(space, str(folder), options.use),
    )


def _write(curve: Curve | None, out: Path) -> None:
    """Table and picture of what is known, where they are not those of this curve already."""
    if curve is None:
        return
    content = msgspec.json.format(msgspec.json.encode(curve), indent=1)
    path = out / "curve.json"
    if path.exists() and path.read_bytes() == content:
        return
    draw_quality(curve, out / "curve")
    for name, text in (("curve.md", markdown(curve)), ("curve.csv", figures(curve).csv())):
        with replacing(out / name) as file:
            file.write(text.encode())
    with replacing(path) as file:
        file.write(content)


def _nothing(folder: Path, said: Mapping[str, str]) -> BenchError:
    reasons = "".join(f"\n  {name}: {why}" for name, why in said.items())
    return BenchError(
        f"{folder} has no checkpoint that can be evaluated{reasons}",
        "a checkpoint is a folder whose name ends in its step, such as checkpoint-500",
    )
