"""Load weights and tokenizers from a checkpoint, with an error for every doubt.

A weight that is missing from the checkpoint would be random and scores silently wrong. Pickles are
read with ``weights_only``: nothing in a checkpoint is executed.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from foundation.errors import BenchError, first_line
from foundation.files import resolve_inside
from retrievers.models.read_checkpoint import (
    HEAD_WEIGHTS,
    LOAD_ERRORS,
    Checkpoint,
    find_weights,
    loading_error,
    read_tensors,
    weight_files,
)
from retrievers.models.read_settings import read_stage_file
from retrievers.models.recipe import Recipe, Stage, TruncationSide
from retrievers.probe import probe_texts

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": functional.relu,
    "gelu": functional.gelu,
}

TOKENIZER_FILE = "tokenizer.json"
# Options of normalizers and pre-tokenizers that tokenizer_config.json may state.
TOKENIZER_OPTIONS = (
    *("lowercase", "strip_accents", "handle_chinese_chars", "add_prefix_space", "prepend_scheme"),
)

logger = logging.getLogger(__name__)

# Attribute of the Hugging Face model with its head; other types are not supported.
HEAD_ATTRIBUTES = {
    "bert": "cls",
    "roberta": "lm_head",
    "xlm-roberta": "lm_head",
    "camembert": "lm_head",
}
# Weights that matter only if the pooler pools.
POOLER = re.compile(r"(^|\.)pooler\.|position_ids")


def load_tokenizer(
    checkpoint: Checkpoint, truncation_side: TruncationSide = "right", lower_case: bool = False
) -> Any:
    """Load the fast tokenizer of a checkpoint.

    Args:
        checkpoint: files of the model.
        truncation_side: side on which long texts are truncated.
        lower_case: lower-case text before all other steps, except special tokens, as
            sentence-transformers does if its folder states so.

    Raises:
        BenchError: it cannot be loaded, has only a slow form, or is not the one in
            ``tokenizer.json``, which depends on the version of transformers.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(checkpoint.folder), use_fast=True, trust_remote_code=False, local_files_only=True
        )
        tokenizer("a", "b")  # a missing special token is only missed when it is needed
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):  # a panic of Rust is no Exception
            raise
        raise BenchError(
            f"the tokenizer in {checkpoint.folder} cannot be loaded: {first_line(error)}",
            "Save it again next to the weights.",
        ) from error
    if not tokenizer.is_fast:
        raise BenchError(f"the tokenizer in {checkpoint.folder} has no fast form")
    _check_tokenizer(tokenizer, checkpoint.folder)
    tokenizer.padding_side, tokenizer.truncation_side = "right", truncation_side
    if lower_case:
        _add_lower_casing(tokenizer.backend_tokenizer)
    return tokenizer


def _check_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Raise if a loaded tokenizer gives other ids for fixed texts than ``tokenizer.json``.

    Options that transformers reads from ``tokenizer_config.json`` are taken from the loaded one.
    """
    import transformers
    from tokenizers import Tokenizer

    if not (folder / TOKENIZER_FILE).is_file():
        return
    loaded, stored = tokenizer.backend_tokenizer, Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    stored.no_truncation()
    stored.no_padding()
    for part in ("normalizer", "pre_tokenizer"):
        _copy_options(getattr(loaded, part), stored, part)
    texts = probe_texts()
    found = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    stored.encode_special_tokens = loaded.encode_special_tokens
    encoded = stored.encode_batch_fast(texts, add_special_tokens=False)
    sizes = [each.get_vocab_size(with_added_tokens=False) for each in (loaded, stored)]
    differing = sum(a != b.ids for a, b in zip(found, encoded, strict=True))
    if differing or sizes[0] != sizes[1]:
        kinds = [type(each.model).__name__ for each in (loaded, stored)]
        raise BenchError(
            f"{folder}: transformers {transformers.__version__} loads a {type(tokenizer).__name__} "
            f"({kinds[0]}, {sizes[0]:,} tokens), and {TOKENIZER_FILE} is a {kinds[1]} with "
            f"{sizes[1]:,} tokens: {differing} of {len(texts)} fixed texts have other token ids",
            'Write "tokenizer_class": "PreTrainedTokenizerFast" into tokenizer_config.json, or '
            "install the version of transformers that the model was made with.",
        )


def _copy_options(loaded: Any, tokenizer: Any, part: str) -> None:
    """Copy the options of a loaded ``part`` to the same kind of part of ``tokenizer``."""
    stored = getattr(tokenizer, part)
    if stored is not None and type(stored) is type(loaded):
        for option in TOKENIZER_OPTIONS:
            if hasattr(stored, option):
                setattr(stored, option, getattr(loaded, option))
        setattr(tokenizer, part, stored)


def _add_lower_casing(tokenizer: Any) -> None:
    from tokenizers.normalizers import Lowercase, Sequence

    normalizer = tokenizer.normalizer
    tokenizer.normalizer = Sequence([Lowercase(), normalizer] if normalizer else [Lowercase()])


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
    """Load a transformer with all of its weights, in evaluation mode, on the CPU.

    Args:
        checkpoint: files of the model.
        recipe: determines dtype, pooling and stages.

    Raises:
        BenchError: the file is damaged or holds more than tensors, or weights are missing.
    """
    folder = checkpoint.folder
    try:
        network, report = read_weights(
            _network_class(checkpoint), checkpoint, getattr(torch, recipe.dtype)
        )
    except LOAD_ERRORS as error:
        raise loading_error(f"the weights in {folder}", error) from error
    _check_report(folder, report, recipe)
    return network.eval()


def read_weights(kind: Any, checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[Any, Any]:
    """Load a model of transformers with its report of missing and unexpected weights.

    Args:
        kind: class with ``from_pretrained``.
        checkpoint: files of the model; nothing in them is executed.
        dtype: type of the weights.

    Raises:
        Exception: one of `LOAD_ERRORS`, if the weights cannot be read.
    """
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


@dataclass(frozen=True)
class LoadedStage:
    """A dense or layer-norm stage with float32 weights.

    Attributes:
        kind: ``dense`` or ``layer-norm``.
        weight: ``(out, in)`` of a dense stage, ``(width,)`` of a layer norm.
        bias: ``(out,)`` or ``(width,)``; None for a dense stage without one.
        activation: name in `ACTIVATIONS`.
        eps: constant of a layer norm.
    """

    kind: str
    weight: Tensor
    bias: Tensor | None
    activation: str
    eps: float

    def __call__(self, vectors: Tensor) -> Tensor:
        """Apply the stage to ``vectors`` of shape ``(n, in)``, giving ``(n, out)``."""
        if self.kind == "layer-norm":
            return functional.layer_norm(
                vectors, self.weight.shape, self.weight, self.bias, self.eps
            )
        return ACTIVATIONS[self.activation](functional.linear(vectors, self.weight, self.bias))


def load_stage(stage: Stage, checkpoint: Checkpoint, device: torch.device) -> LoadedStage:
    """Load the weights of a stage, from the checkpoint or from the stage's folder.

    Args:
        stage: the stage in a recipe.
        checkpoint: files of the model.
        device: device of the weights.

    Raises:
        BenchError: the weights are missing, or have another width than the recipe.
    """
    where, _, name = stage.source.partition(":")
    if where == "key":
        folder, weights, prefix = checkpoint.folder, checkpoint.weights, name
    else:
        folder = resolve_inside(checkpoint.root, name)
        weights = find_weights(folder)
        prefix = "linear" if stage.kind == "dense" else "norm"
    names = (f"{prefix}.weight", f"{prefix}.bias")
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(folder, weights):
        if path.suffix != ".json":
            tensors |= read_tensors(path, names)
    weight, bias = tensors.get(f"{prefix}.weight"), tensors.get(f"{prefix}.bias")
    needs_bias = where == "key" or read_stage_file(folder).bias
    if weight is None or (bias is None and needs_bias):
        raise BenchError(f"{folder} has no weights for the stage {stage.source}")
    if weight.shape[0] != stage.width:
        raise BenchError(
            f"{folder}: the stage {stage.source} is {weight.shape[0]} wide, not {stage.width}"
        )
    return LoadedStage(
        kind=stage.kind,
        weight=weight.to(device, torch.float32),
        bias=None if bias is None else bias.to(device, torch.float32),
        activation=stage.activation,
        eps=stage.eps,
    )


def _network_class(checkpoint: Checkpoint) -> Any:
    import transformers

    kind = checkpoint.config.get("model_type")
    if kind in ("t5", "mt5"):
        return transformers.T5EncoderModel if kind == "t5" else transformers.MT5EncoderModel
    if kind == "dpr":
        named = checkpoint.config.get("architectures") or [""]
        question = "Question" in named[0]
        return transformers.DPRQuestionEncoder if question else transformers.DPRContextEncoder
    return transformers.AutoModel


def _check_report(folder: Path, report: Any, recipe: Recipe) -> None:
    missing = sorted(
        key
        for key in report["missing_keys"]
        if recipe.pooling == "pooler" or not POOLER.search(key)
    )
    if missing:
        raise BenchError(
            f"{folder} lacks {len(missing)} weights of its model: {', '.join(missing[:5])}",
            "Check that config.json belongs to these weights.",
        )
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
