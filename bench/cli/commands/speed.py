"""``speed``: what a model costs on this machine, alone and against other tools."""

import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import msgspec

from bench.cli.commands.common import check_can_plot, load_model, workspace
from bench.cli.options.evaluate import SpeedOptions
from bench.exit_codes import ExitCode
from bench.speed.measurement import SpeedPlan, Subject, measure
from bench.speed.peers.job import Job
from bench.speed.race import PROGRAMS
from bench.speed.records import SpeedReport
from bench.speed.tools import check_installed, job_for
from bench.speed.weights import as_sentence_transformers
from bench.workspace import Workspace
from foundation.errors import BenchError
from reports.speed import speed_tables
from retrievers.models.model import Model

SOURCE = "stdlib-code"  # embedded: its texts are on every machine


def speed(options: SpeedOptions) -> int:
    """Measure one model; with names and ``--against``, race it from end to end.

    The exit code is that of bad input where scores differ: such a race has no winner.
    """
    plan = _plan(options)
    earlier = [read_report(path) for path in options.history]
    if options.plots:
        check_can_plot("--plots")
    space = workspace(options.places, options.hardware)
    races = [space.dataset(name, options.split) for name in space.expand(options.names)]
    with ExitStack() as stack:
        subject = _subject(options, space, plan, stack)
        report = measure(subject, plan, races, _say)
    if not options.output.json:
        print(speed_tables(report), end="\n\n")
    if options.plots:
        from reports.plots.speed import draw

        for path in draw(report, earlier, options.plots):
            _say(f"drawn: {path}")
    print(msgspec.json.encode(report).decode())
    return ExitCode.OK if all(race.agree for race in report.races) else ExitCode.BAD_INPUT


def _plan(options: SpeedOptions) -> SpeedPlan:
    against = tuple(dict.fromkeys(options.against))
    end_to_end = [tool for tool in against if tool in PROGRAMS]
    if end_to_end and not options.names:
        raise BenchError(
            f"no collection was named for {' and '.join(end_to_end)} to evaluate",
            "python -m bench speed beir/nfcorpus --model minilm --against mteb beir",
        )
    check_installed(against)
    return SpeedPlan(
        tuple(dict.fromkeys(options.parts)),
        options.repeats,
        options.seconds,
        options.rows,
        options.rounds,
        options.limit,
        against,
    )


def _subject(options: SpeedOptions, space: Workspace, plan: SpeedPlan, stack: ExitStack) -> Subject:
    loaded = load_model(space, options.model, options.use)
    if loaded.encoder is None:
        raise BenchError(f"{loaded.name} makes no vectors: there is nothing to time")
    source = space.dataset(SOURCE)
    device, threads = _device_and_threads(loaded.model, options.hardware.device)
    place = space.cache_dir / "speed"
    place.mkdir(parents=True, exist_ok=True)
    job = Job(weights="", device=device, threads=threads)
    if plan.against:
        weights = stack.enter_context(as_sentence_transformers(loaded.model, place))
        recipe = loaded.model.recipe.for_dataset(SOURCE)
        job = job_for(recipe, weights, device, threads)
    encoder = loaded.encoder.for_dataset(SOURCE)
    return Subject(loaded.model, encoder, device, source, place, _arguments(options), job)


def _device_and_threads(model: Model, device: str) -> tuple[str, int]:
    """The device of the encoder, and the threads of its operators."""
    if model.recipe.kind != "transformer":
        return "cpu", len(os.sched_getaffinity(0))
    import torch

    from retrievers.encoders.device import pick_device

    return str(pick_device(device)), torch.get_num_threads()


def _arguments(options: SpeedOptions) -> tuple[str, ...]:
    """The options of ``run`` for the same model."""
    words = ["--model", options.model]
    for name, value in asdict(options.use).items():
        option = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, tuple) else (value,):
            words += [option] if each is True else [option, str(each)] if each else []
    return tuple(words)


def read_report(path: Path) -> SpeedReport:
    """A saved report: a file whose last line is the JSON document.

    Raises:
        BenchError: it cannot be read, or is not one.
    """
    try:
        lines = path.read_text(encoding="utf-8").strip().splitlines()
        return msgspec.json.decode(lines[-1], type=SpeedReport)
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}") from error
    except (IndexError, ValueError) as error:
        raise BenchError(f"{path} is not a report of speed: {error}") from error


def _say(text: str) -> None:
    print(f"speed: {text}", file=sys.stderr)
