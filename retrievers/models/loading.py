"""Load weights from a checkpoint, with an error for every doubt.

A weight that is missing from the checkpoint would be random and scores silently wrong. Pickles are
read with ``weights_only``: nothing in a checkpoint is executed.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from foundation.errors import BenchError, wrap_errors
from foundation.files import resolve_inside
from retrievers.models.card import Recipe, Stage
from retrievers.models.checkpoint import (
    DAMAGED,
    HEAD_WEIGHTS,
    Checkpoint,
    find_weights,
    read_tensors,
    weight_files,
)
from retrievers.models.folder import ModelFolder

LoadedStage = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, LoadedStage] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": functional.relu,
    "gelu": functional.gelu,
}

logger = logging.getLogger(__name__)

# Attribute of the Hugging Face model with its head; other types are not supported.
HEAD_ATTRIBUTES = {
    "bert": "cls",
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), "lm_head"),
}
# Module and class of the encoder of networks that have a decoder, too. Other kinds, such as BART,
# are used whole, as in sentence-transformers.
ENCODERS = {
    "t5": ("transformers", "T5EncoderModel"),
    "mt5": ("transformers", "MT5EncoderModel"),
    "umt5": ("transformers", "UMT5EncoderModel"),
    "longt5": ("transformers", "LongT5EncoderModel"),
    "switch_transformers": ("transformers", "SwitchTransformersEncoderModel"),
    "prophetnet": ("transformers", "ProphetNetEncoder"),
    "blenderbot": ("transformers.models.blenderbot.modeling_blenderbot", "BlenderbotEncoder"),
    "blenderbot-small": (
        "transformers.models.blenderbot_small.modeling_blenderbot_small",
        "BlenderbotSmallEncoder",
    ),
    "m2m_100": ("transformers.models.m2m_100.modeling_m2m_100", "M2M100Encoder"),
    "pegasus": ("transformers.models.pegasus.modeling_pegasus", "PegasusEncoder"),
    "pegasus_x": ("transformers.models.pegasus_x.modeling_pegasus_x", "PegasusXEncoder"),
    "marian": ("transformers.models.marian.modeling_marian", "MarianEncoder"),
}
# Weights that matter only if the pooler pools.
POOLER = re.compile(r"(^|\.)pooler\.|position_ids")


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Hide notices and progress bars of transformers within the block."""
    from transformers.utils import logging as notices

    verbosity, bars = notices.get_verbosity(), notices.is_progress_bar_enabled()
    notices.set_verbosity_error()
    notices.disable_progress_bar()
    try:
        yield
    finally:
        notices.set_verbosity(verbosity)
        if bars:
            notices.enable_progress_bar()


def load_network(checkpoint: Checkpoint, recipe: Recipe) -> Any:
    """Load a transformer with all of its weights, in evaluation mode, on the CPU."""
    kind, dtype = _network_class(checkpoint), getattr(torch, recipe.dtype)
    with wrap_errors(f"the weights in {checkpoint.folder} cannot be loaded", DAMAGED):
        network, report = read_weights(kind, checkpoint, dtype)
    _check_report(checkpoint.folder, report, recipe)
    return network.eval()


def read_weights(kind: Any, checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[Any, Any]:
    """Load a model of the class ``kind`` with its report of missing and unexpected weights."""
    with silence_transformers():
        network, report = kind.from_pretrained(
            str(checkpoint.folder),
            dtype=dtype,
            output_loading_info=True,
            use_safetensors=".safetensors" in checkpoint.weights,
            weights_only=True,
            trust_remote_code=False,
            local_files_only=True,
        )
    return network, report


def load_stage(stage: Stage, checkpoint: Checkpoint, device: torch.device) -> LoadedStage:
    """Load a stage in float32, from the checkpoint or from the stage's folder.

    Returns:
        Function from vectors ``(n, in)`` to ``(n, out)``.
    """
    where, _, name = stage.source.partition(":")
    if where == "key":
        folder, weights, prefix = checkpoint.folder, checkpoint.weights, name
    else:
        folder = resolve_inside(checkpoint.root, name)
        weights = find_weights(folder)
        prefix = "linear" if stage.kind == "dense" else "norm"
    names = (f"{prefix}.weight", f"{prefix}.bias")
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder, weights):
        if path.suffix != ".json":
            tensors |= read_tensors(path, names)
    weight, bias = map(tensors.get, names)
    needs_bias = where == "key" or ModelFolder(checkpoint.root).read_stage(name).bias
    if weight is None or (bias is None and needs_bias):
        raise BenchError(f"{folder} has no weights for the stage {stage.source}")
    if weight.shape[0] != stage.width:
        raise BenchError(
            f"{folder}: the stage {stage.source} is {weight.shape[0]} wide, not {stage.width}"
        )
    factors = weight.to(device, torch.float32), None if bias is None else bias.to(device).float()
    if stage.kind == "layer-norm":
        return lambda vectors: functional.layer_norm(vectors, (stage.width,), *factors, stage.eps)
    activation = ACTIVATIONS[stage.activation]
    return lambda vectors: activation(functional.linear(vectors, *factors))


def _network_class(checkpoint: Checkpoint) -> Any:
    import transformers

    kind = checkpoint.config.get("model_type")
    if kind in ENCODERS:
        return getattr(import_module(ENCODERS[kind][0]), ENCODERS[kind][1])
    if kind == "dpr":
        named = checkpoint.config.get("architectures") or [""]
        question = "Question" in named[0]
        return transformers.DPRQuestionEncoder if question else transformers.DPRContextEncoder
    sizes = ("num_landmarks", "segment_means_seq_len")
    landmarks, length = (checkpoint.config.get(name, 64) for name in sizes)
    if kind == "nystromformer" and landmarks != length:
        problem = f"{checkpoint.folder} reads only texts of exactly {length} tokens"
        raise BenchError(problem, f"Set {sizes[1]} to {landmarks} in config.json (full attention).")
    return transformers.AutoModel


def _check_report(folder: Path, report: Any, recipe: Recipe) -> None:
    pools = recipe.pooling == "pooler"
    missing = sorted(key for key in report["missing_keys"] if pools or not POOLER.search(key))
    if missing:
        problem = f"{folder} lacks {len(missing)} weights of its model: {', '.join(missing[:5])}"
        raise BenchError(problem, "Check that config.json belongs to these weights.")
    stages = tuple(stage.source.removeprefix("key:") + "." for stage in recipe.stages)
    extra = [
        key
        for key in sorted(report["unexpected_keys"])
        if not (HEAD_WEIGHTS.search(key) or POOLER.search(key) or key.startswith(stages))
    ]
    if extra:
        logger.warning("%s: %d weights are not used: %s", folder, len(extra), ", ".join(extra[:5]))


def find_head(model: Any) -> torch.nn.Module:
    """Return the head of ``model``, from hidden states to logits ``(..., vocabulary)``."""
    head: torch.nn.Module = getattr(model, HEAD_ATTRIBUTES[model.config.model_type])
    return head
