"""``watch``: the checkpoints of a running training, evaluated as they are completed."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bench.cli.commands.common import open_contender, print_json
from bench.cli.commands.opening import open_collections, pipeline_options
from bench.cli.early_checks import check_out
from bench.compare.panels import Entry
from bench.compare.statistics import Resampling
from bench.exit_codes import ExitCode
from bench.monitor.collections import Opened, one_measure, weights_by_name
from bench.monitor.following import Ending, follow
from bench.monitor.ledger import Ledger
from bench.monitor.quality_curve import Aim, Curve, curve_of
from bench.monitor.scanner import Lookout, training_of
from bench.monitor.watcher import Watcher, Work
from bench.results.find import results_of
from foundation.atomic import replacing
from foundation.errors import BenchError
from reports.watch_plots import draw
from reports.watch_tables import comma_separated, markdown
from retrievers.encoders.protocol import Encoder
from retrievers.models.card import load_card
from retrievers.models.model import Model


def watch(options: argparse.Namespace, cache_dir: Path) -> int:
    """``watch``: evaluates until it is told to end; then the table, or one JSON document."""
    out = options.out or training_of(options.folder) / "watch"
    _check(options, out)
    opened = open_collections(options.on, options, cache_dir)
    aim = _aim(options, opened)
    work = _work(options, cache_dir, out, aim, opened)
    with Ledger(out / "ledger.jsonl") as ledger:
        watcher = Watcher(work, ledger)
        ending = Ending(options.every, options.once, options.until, options.stop_after)
        follow(
            Lookout(options.folder),
            watcher,
            ending,
            lambda: _write(curve_of(ledger.lines, aim), out),
        )
        curve = curve_of(ledger.lines, aim)
        _write(curve, out)
    if curve is None and options.once:
        raise _nothing(options.folder, watcher.said)
    if options.json:
        print_json({"out": str(out), "curve": curve})
    elif curve is not None:
        print(markdown(curve), end="")
    if watcher.cut:
        print(f"{watcher.cut} was not evaluated to the end", file=sys.stderr)
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _check(options: argparse.Namespace, out: Path) -> None:
    """Bad input stops before the first look."""
    if not options.folder.is_dir():
        raise BenchError(
            f"{options.folder} is no folder",
            "name the folder that the training writes its checkpoints to (its output_dir)",
        )
    check_out(out)
    if options.like is not None:
        load_card(options.like)


def _aim(options: argparse.Namespace, opened: Mapping[str, Opened]) -> Aim:
    resampling = Resampling(options.resamples, options.seed)
    resampling.check_enough(1)  # a max-statistic test is one, over all pairs
    weights = weights_by_name(options.on, opened)
    baseline = None
    if options.baseline:
        stored = results_of(options.baseline, options.results, weights)
        baseline = (options.baseline, {name: Entry.of(one) for name, one in stored.items()})
    return Aim(
        training="_".join(training_of(options.folder).name.split()) or "training",
        weights=weights,
        measure=one_measure(list(opened.values()), options.measure, options.depth),
        method=options.select,
        baseline=baseline,
        resampling=resampling,
    )


def _work(
    options: argparse.Namespace,
    cache_dir: Path,
    out: Path,
    aim: Aim,
    opened: Mapping[str, Opened],
) -> Work:
    def open_model(folder: Path) -> tuple[Model, Encoder | None]:
        contender = open_contender(str(folder), options)
        return contender.model, contender.encoder

    return Work(
        training=aim.training,
        opened=list(opened.values()),
        measure=aim.measure,
        choices=pipeline_options(options, (aim.measure,)),
        results=options.results,
        vectors=cache_dir / ("vectors" if options.keep_vectors else "watched"),
        keep_vectors=options.keep_vectors,
        held=out / ".held",
        open_model=open_model,
    )


def _write(curve: Curve | None, out: Path) -> None:
    """Table and picture of what is known, where they are not those of this curve already."""
    if curve is None:
        return
    content = msgspec.json.format(msgspec.json.encode(curve), indent=1)
    path = out / "curve.json"
    if path.exists() and path.read_bytes() == content:
        return
    draw(curve, out / "curve")
    for name, text in (("curve.md", markdown(curve)), ("curve.csv", comma_separated(curve))):
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
