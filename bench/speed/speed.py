"""Speed of a model on this machine, alone and against other tools."""

import os
from collections.abc import Callable

from bench.requests.evaluating import SpeedRequest
from bench.requests.fields import CARD_SETTINGS, ModelFields
from bench.runner.workspace import Workspace, load_models, open_workspace
from bench.speed.measurement import BenchmarkedModel, measure
from bench.speed.peers import OPENVINO_HINTS, SCORES
from bench.speed.race import ENCODERS, OPENVINO, check_installed, check_raceable
from bench.speed.speed_report import SpeedReport
from foundation.errors import BenchError
from retrievers.models.resolve import Model

SOURCE = "stdlib-code"  # embedded: its texts are on every machine
PARTS = ("encode", "latency", "indexes")


def speed(request: SpeedRequest, log: Callable[[str], None] = lambda text: None) -> SpeedReport:
    """Measure one model, and with names of collections, compare it end to end with other tools.

    Args:
        request: model, parts and tools.
        log: called with lines about the progress.

    Raises:
        BenchError: wrong input, or a tool is not installed or has nothing to do.
    """
    parts = request.parts or (() if request.names else PARTS)
    _check_tools(request, parts)
    workspace = open_workspace(request)
    raced = [workspace.dataset(name) for name in workspace.expand_names(request.names)]
    return measure(_benchmarked_model(request, workspace), parts, raced, request.rounds, log)


def _check_tools(request: SpeedRequest, parts: tuple[str, ...]) -> None:
    """Raise if a tool of ``--against`` is not installed or has nothing to do."""
    for tool in request.against:
        if tool in SCORES and not request.names:
            raise BenchError(
                f"{tool} needs a collection to evaluate",
                "python -m bench speed beir/nfcorpus --model minilm --against mteb beir",
            )
        if tool in ENCODERS and "encode" not in parts:
            raise BenchError(f"{tool} needs the part encode", "add --parts encode")
    check_installed(request.against)


def _benchmarked_model(request: SpeedRequest, workspace: Workspace) -> BenchmarkedModel:
    """Load the model to benchmark and check that it encodes."""
    (loaded,) = load_models(workspace, (request.model,), request)
    if loaded.encoder is None:
        raise BenchError(f"{loaded.name} does not encode", "choose another --model")
    device, threads = _device_and_threads(loaded.model, request.device)
    scratch = workspace.cache_dir / "speed"
    scratch.mkdir(parents=True, exist_ok=True)
    if OPENVINO in request.against and device != "cpu":
        raise BenchError(f"{OPENVINO} runs on the CPU, not on {device}", "add --device cpu")
    if OPENVINO in request.against and loaded.model.recipe.dtype not in OPENVINO_HINTS:
        raise BenchError(
            f"{OPENVINO} does not compute in {loaded.model.recipe.dtype}",
            "choose --dtype float32, bfloat16 or int8",
        )
    if request.against:
        check_raceable(loaded.model)
    return BenchmarkedModel(
        model=loaded.model,
        encoder=loaded.encoder.for_dataset(SOURCE),
        device=device,
        threads=threads,
        source=workspace.dataset(SOURCE),
        scratch=scratch,
        arguments=_run_arguments(request),
        against=tuple(dict.fromkeys(request.against)),
        repeats=request.repeats,
    )


def _device_and_threads(model: Model, device: str) -> tuple[str, int]:
    """Return the device of the encoder and the number of threads of its operators."""
    if model.recipe.kind != "transformer":
        return "cpu", len(os.sched_getaffinity(0))
    import torch

    from retrievers.encoders.device import pick_device

    return str(pick_device(device)), torch.get_num_threads()


def _run_arguments(request: SpeedRequest) -> tuple[str, ...]:
    """Return the arguments of ``run`` for the same model."""
    words, default = ["--model", request.model], ModelFields().model_settings()
    for name, value in request.model_settings().items():
        option = f"--{name.replace('_', '-')}"
        if value == default[name]:
            continue
        if name in CARD_SETTINGS:
            words += ["--set", f"{name}={'true' if value is True else value}"]
        else:
            words += [option] if value is True else [option, str(value)]
    return tuple(words)
