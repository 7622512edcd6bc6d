"""One loaded encoder: tokenizer, network, and what follows pooling.

Imports torch and transformers, so it is imported when vectors are first needed. A weight that
the checkpoint does not hold would be random and the scores silently wrong: that is an error.
"""

import inspect
import logging
import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open

from retrievers.adapters import attach
from retrievers.checkpoint import Checkpoint, find_weights, inside, read_json, weight_files
from retrievers.errors import RetrieverError
from retrievers.pooling import LoadedStage, finish, pool
from retrievers.recipe import Dtype, Recipe, Stage

logger = logging.getLogger(__name__)

# Heads and buffers that checkpoints of encoders carry and that no vector depends on.
UNUSED = re.compile(
    r"position_ids|(^|\.)pooler\.|(^|\.)(cls|lm_head|classifier|c_head|decoder|mlm|predictions"
    r"|vocab_\w+|generator_\w+|discriminator_\w+)\."
)
LOAD_ERRORS = (
    OSError,
    ValueError,
    RuntimeError,
    KeyError,
    ImportError,
    TypeError,
    pickle.UnpicklingError,
    SafetensorError,
)
# What a vector does not depend on unless it is pooled by the pooler.
POOLER = re.compile(r"(^|\.)pooler\.|position_ids")
Segments = tuple[str, str | None]


@dataclass(frozen=True)
class Tokens:
    """Token ids of each text, and token types where the model reads them."""

    ids: Sequence[Sequence[int]]
    types: Sequence[Sequence[int]] | None


class Tower:
    """Texts to token ids, token ids to vectors."""

    def __init__(
        self, checkpoint: Checkpoint, recipe: Recipe, adapter: Path | None, device: torch.device
    ) -> None:
        self.tokenizer = load_tokenizer(checkpoint)
        network = load_network(checkpoint, recipe)
        # Read before an adapter wraps the network and hides its signature.
        self._reads = frozenset(inspect.signature(network.forward).parameters)
        if adapter is not None and recipe.adapter is not None:
            network = attach(network, adapter, recipe.adapter.kind)
        self._network = network.to(device)
        self._stages = [load_stage(stage, checkpoint, device) for stage in recipe.stages]
        self._recipe = recipe
        self._device = device

    @property
    def separator(self) -> str:
        """The tokenizer's separator token as text."""
        token = self.tokenizer.sep_token
        if not token:
            raise RetrieverError(
                f"{self._recipe.model}: its tokenizer has no separator token",
                'use title_join = "space"',
            )
        return str(token)

    def tokenize(self, segments: Sequence[Segments], max_tokens: int | None) -> Tokens:
        """Token ids, cut to ``max_tokens`` with special tokens included (longest segment first).

        None does not cut.
        """
        ids: list[Sequence[int]] = [()] * len(segments)
        types: list[Sequence[int]] = [()] * len(segments)
        reads_types = self._recipe.segment_ids and "token_type_ids" in self._reads
        for paired in (False, True):
            rows = [i for i, pair in enumerate(segments) if (pair[1] is not None) == paired]
            if not rows:
                continue
            second = [segments[i][1] for i in rows] if paired else None
            encoded = self.tokenizer(
                [segments[i][0] for i in rows],
                second,
                truncation=max_tokens is not None,
                max_length=max_tokens,
                padding=False,
                return_attention_mask=False,
                return_token_type_ids=reads_types,
                verbose=False,
            )
            for place, i in enumerate(rows):
                ids[i] = encoded["input_ids"][place]
                types[i] = encoded["token_type_ids"][place] if reads_types else ()
        return Tokens(ids, types if reads_types else None)

    def vectors(self, tokens: Tokens, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        """Vectors of the texts at ``rows`` as one padded batch, float32 ``(len(rows), dim)``.

        Raises:
            RetrieverError: a vector is not finite, or not as long as the recipe says.
        """
        lengths = np.array([len(tokens.ids[i]) for i in rows])
        mask = np.arange(lengths.max()) < lengths[:, None]
        inputs = {"input_ids": self._padded(tokens.ids, rows, mask, self.tokenizer.pad_token_id)}
        if tokens.types is not None:
            inputs["token_type_ids"] = self._padded(tokens.types, rows, mask, 0)
        attention = torch.from_numpy(mask.astype(np.int64)).to(self._device)
        with torch.inference_mode():
            output = self._network(**inputs, attention_mask=attention)
            pooled = pool(
                self._recipe.pooling,
                getattr(output, "last_hidden_state", None),
                attention,
                getattr(output, "pooler_output", None),
            )
            found = finish(pooled, self._stages, self._recipe.normalize).cpu().numpy()
        if found.shape[1] != self._recipe.dim:
            raise RetrieverError(
                f"{self._recipe.model} gave vectors {found.shape[1]} long, not {self._recipe.dim}"
            )
        if not np.isfinite(found).all():
            raise RetrieverError(
                f"{self._recipe.model} gave a vector with NaN or infinity",
                "try --dtype float32; if it stays, the checkpoint is damaged",
            )
        return found

    def _padded(
        self,
        values: Sequence[Sequence[int]],
        rows: Sequence[int],
        mask: npt.NDArray[np.bool_],
        fill: int | None,
    ) -> torch.Tensor:
        padded = np.full(mask.shape, fill or 0, dtype=np.int64)
        padded[mask] = np.concatenate([values[i] for i in rows])
        return torch.from_numpy(padded).to(self._device)


def pick_device(name: str) -> torch.device:
    """The device to run on; ``auto`` is CUDA where there is one.

    Raises:
        RetrieverError: the name is not a device, or the device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise RetrieverError(f"unknown device {name!r}", "use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RetrieverError(
            f"{name} was asked for, and PyTorch sees {torch.cuda.device_count()} CUDA devices",
            "use --device cpu, or install a CUDA build of torch",
        )
    return device


def check_dtype(dtype: Dtype, device: torch.device) -> None:
    """Refuse float16 on the CPU, where it is slow and overflows."""
    if dtype == "float16" and device.type == "cpu":
        raise RetrieverError("float16 needs a GPU", "use --dtype bfloat16 or --dtype float32")


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's own fast tokenizer.

    Raises:
        RetrieverError: it cannot be loaded, or exists only in a slow form.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(checkpoint.folder), use_fast=True, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        # The Rust tokenizers raise bare Exception on a damaged file: nothing narrower exists.
        raise RetrieverError(
            f"the tokenizer in {checkpoint.folder} cannot be loaded: {_first_line(error)}",
            "save it again beside the weights",
        ) from error
    if not tokenizer.is_fast:
        raise RetrieverError(f"the tokenizer in {checkpoint.folder} has no fast form")
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    return tokenizer


def load_network(checkpoint: Checkpoint, recipe: Recipe) -> Any:
    """The transformer with all of its weights, in evaluation mode, on the CPU.

    Raises:
        RetrieverError: the file is damaged or holds more than tensors, or weights are missing.
    """
    folder = checkpoint.folder
    try:
        with _quiet_transformers():
            network, report = _network_class(checkpoint).from_pretrained(
                str(folder),
                dtype=getattr(torch, recipe.dtype),
                output_loading_info=True,
                use_safetensors=".safetensors" in checkpoint.weights,
                weights_only=True,
                trust_remote_code=False,
                local_files_only=True,
            )
    except LOAD_ERRORS as error:
        raise RetrieverError(
            f"the weights in {folder} cannot be loaded: {_first_line(error)}",
            "the file is damaged, or holds more than tensors; nothing of it was executed",
        ) from error
    _check_report(folder, report, recipe)
    return network.eval()


def load_stage(stage: Stage, checkpoint: Checkpoint, device: torch.device) -> LoadedStage:
    """A stage's weights from the checkpoint's state dict or from its own folder.

    Raises:
        RetrieverError: the weights are missing, or are not as wide as the recipe says.
    """
    where, _, name = stage.source.partition(":")
    if where == "key":
        folder, weights, prefix = checkpoint.folder, checkpoint.weights, name
    else:
        folder = inside(checkpoint.root, name)
        weights = find_weights(folder)
        prefix = "linear" if stage.kind == "dense" else "norm"
    found = read_tensors(folder, weights, (f"{prefix}.weight", f"{prefix}.bias"))
    weight, bias = found.get(f"{prefix}.weight"), found.get(f"{prefix}.bias")
    needs_bias = where == "key" or read_json(folder / "config.json").get("bias", True)
    if weight is None or (bias is None and needs_bias):
        raise RetrieverError(f"{folder} has no weights for the stage {stage.source}")
    if weight.shape[0] != stage.width:
        raise RetrieverError(
            f"{folder}: the stage {stage.source} is {weight.shape[0]} wide, not {stage.width}"
        )
    return LoadedStage(
        kind=stage.kind,
        weight=weight.to(device, torch.float32),
        bias=None if bias is None else bias.to(device, torch.float32),
        activation=stage.activation,
        eps=stage.eps,
    )


def read_tensors(folder: Path, weights: str, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Those of the named tensors that a folder's weights hold.

    Raises:
        RetrieverError: a file is damaged or holds more than tensors.
    """
    found: dict[str, torch.Tensor] = {}
    files = (path for path in weight_files(folder, weights) if path.suffix != ".json")
    for path in files:
        try:
            found |= _read_file(path, names)
        except LOAD_ERRORS as error:
            raise RetrieverError(
                f"{path} cannot be loaded: {_first_line(error)}",
                "the file is damaged, or holds more than tensors; nothing of it was executed",
            ) from error
    return found


def _read_file(path: Path, names: Sequence[str]) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            held = set(file.keys())
            return {name: file.get_tensor(name) for name in names if name in held}
    state = torch.load(path, map_location="cpu", weights_only=True)
    return {name: state[name] for name in names if name in state}


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
        raise RetrieverError(
            f"{folder} lacks {len(missing)} weights of its model: {', '.join(missing[:5])}",
            "is config.json the one of these weights?",
        )
    stages = tuple(stage.source.removeprefix("key:") + "." for stage in recipe.stages)
    extra = [
        key
        for key in sorted(report["unexpected_keys"])
        if not UNUSED.search(key) and not key.startswith(stages)
    ]
    if extra:
        logger.warning("%s: %d weights are not used: %s", folder, len(extra), ", ".join(extra[:5]))


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keep its notices and bars away from stderr: what matters of them is checked here."""
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


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
