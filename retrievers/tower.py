"""One loaded encoder: texts to token ids, token ids to vectors.

Imports torch and transformers, so it is imported when vectors are first needed.
"""

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from retrievers.adapters import attach
from retrievers.checkpoint import Checkpoint
from retrievers.errors import RetrieverError
from retrievers.loading import load_network, load_stage, load_tokenizer
from retrievers.pooling import finish, pool
from retrievers.recipe import Dtype, Recipe

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
