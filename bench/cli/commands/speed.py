"""``speed`` measures a model on this machine, alone and against other tools."""

import os
import sys
from dataclasses import asdict

import msgspec

from bench.cli.commands.common import load_model, make_workspace
from bench.cli.options.commands import SpeedOptions
from bench.cli.options.shared import HardwareOptions
from bench.outcomes import ExitCode
from bench.speed.measurement import BenchmarkedModel, measure
from bench.speed.peers import OPENVINO_HINTS, SCORES
from bench.speed.race import ENCODERS, OPENVINO, check_installed, check_raceable
from bench.workspace import Workspace
from foundation.errors import BenchError
from reports.speed import speed_tables
from retrievers.models.resolve import Model

SOURCE = "stdlib-code"  # embedded: its texts are on every machine
PARTS = ("encode", "latency", "indexes")


def speed(options: SpeedOptions) -> int:
    """Measure one model. With names of collections, compare it end to end with other tools.

    Args:
        options: parsed options of the command.

    Returns:
        The exit code of bad input if the tools disagree on scores: their times are not comparable.
    """
    parts = options.parts or (() if options.names else PARTS)
    _check_tools(options, parts)
    workspace = make_workspace(options.common, HardwareOptions(device=options.device))
    raced = [workspace.dataset(name) for name in workspace.expand_names(options.names)]
    report = measure(_benchmarked_model(options, workspace), parts, raced, options.rounds, _log)
    if not options.common.json:
        print(speed_tables(report), end="\n\n")
    print(msgspec.json.encode(report).decode())
    return ExitCode.OK if all(race.agree for race in report.races) else ExitCode.BAD_INPUT


def _check_tools(options: SpeedOptions, parts: tuple[str, ...]) -> None:
    """Raise if a tool of ``--against`` is not installed or has nothing to do."""
    for tool in options.against:
        if tool in SCORES and not options.names:
            raise BenchError(
                f"{tool} needs a collection to evaluate",
                "python -m bench speed beir/nfcorpus --model minilm --against mteb beir",
            )
        if tool in ENCODERS and "encode" not in parts:
            raise BenchError(f"{tool} needs the part encode", "add --parts encode")
    check_installed(options.against)


def _benchmarked_model(options: SpeedOptions, workspace: Workspace) -> BenchmarkedModel:
    """Load the model to benchmark and check that it encodes."""
    loaded = load_model(workspace, options.model, options.model_options)
    if loaded.encoder is None:
        raise BenchError(f"{loaded.name} does not encode", "choose another --model")
    device, threads = _device_and_threads(loaded.model, options.device)
    scratch = workspace.cache_dir / "speed"
    scratch.mkdir(parents=True, exist_ok=True)
    if OPENVINO in options.against and device != "cpu":
        raise BenchError(f"{OPENVINO} runs on the CPU, not on {device}", "add --device cpu")
    if OPENVINO in options.against and loaded.model.recipe.dtype not in OPENVINO_HINTS:
        raise BenchError(
            f"{OPENVINO} does not compute in {loaded.model.recipe.dtype}",
            "choose --dtype float32, bfloat16 or int8",
        )
    if options.against:
        check_raceable(loaded.model)
    return BenchmarkedModel(
        model=loaded.model,
        encoder=loaded.encoder.for_dataset(SOURCE),
        device=device,
        threads=threads,
        source=workspace.dataset(SOURCE),
        scratch=scratch,
        arguments=_run_arguments(options),
        against=tuple(dict.fromkeys(options.against)),
        repeats=options.repeats,
    )


def _device_and_threads(model: Model, device: str) -> tuple[str, int]:
    """Return the device of the encoder and the number of threads of its operators."""
    if model.recipe.kind != "transformer":
        return "cpu", len(os.sched_getaffinity(0))
    import torch

    from retrievers.encoders.device import pick_device

    return str(pick_device(device)), torch.get_num_threads()


def _run_arguments(options: SpeedOptions) -> tuple[str, ...]:
    """Return the arguments of ``run`` for the same model."""
    words = ["--model", options.model]
    for name, value in asdict(options.model_options).items():
        option = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, tuple) else (value,):
            words += [option] if each is True else [option, str(each)] if each else []
    return tuple(words)


def _log(text: str) -> None:
    """Print progress on stderr."""
    print(f"speed: {text}", file=sys.stderr)
