"""One loaded encoder: texts to token ids, token ids to vectors.

It imports torch and transformers, so it is imported when vectors are first needed.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foundation.arrays import BoolArray, Float32Array, Int32Array, Int64Array
from foundation.errors import BenchError, first_line, is_out_of_memory
from retrievers.adapters.adapter import attach
from retrievers.encoders.device import map_in_threads, use_full_precision, use_one_thread
from retrievers.encoders.packed import (
    CompiledNetwork,
    Int8Encoder,
    OneDNNLinear,
    PackedEncoder,
    attend_padded,
    can_compile,
    has_bfloat16,
    has_onednn,
    is_plain_bert,
    pool,
)
from retrievers.encoders.protocol import PhaseTimer, Segments
from retrievers.encoders.token_workers import TokenWorkers
from retrievers.encoders.tokens import TextTokenizer, Tokens, load_tokenizer, probe_texts
from retrievers.models.adapter_files import check_adapter_unchanged
from retrievers.models.card import Recipe, StoredPooling
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.loading import load_network, load_stage

FEW_TOKENS = 128  # which one thread computes in some tens of milliseconds
EQUAL_LENGTHS = (
    "%s: beyond %s tokens, its rotary frequencies depend on the longest text of a batch, so texts "
    "of different lengths share none"
)
MANY_TEXTS = 8_192  # so many keep a GPU busy for longer than workers take to start


VectorBatches = Iterator[tuple[Int64Array, Float32Array]]

logger = logging.getLogger(__name__)


class Tower:
    """One encoder with its tokenizer, weights and stages.

    BERT and RoBERTa run without padding.

    Args:
        checkpoint: files of the encoder.
        recipe: everything that determines the vectors.
        adapter: folder of an adapter to attach, or None.
        device: device of the network.
        timer: collects seconds by phase and the number of tokens.
        load: returns the network; None reads it from the checkpoint.
        change: called with the loaded network before its layers are fused.

    Attributes:
        mixable_length: longest text in tokens that others may share a batch with; None if all may.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        recipe: Recipe,
        adapter: Path | None,
        device: torch.device,
        timer: PhaseTimer,
        load: Callable[[Checkpoint, Recipe], Any] | None = None,
        change: Callable[[torch.nn.Module], None] = lambda network: None,
    ) -> None:
        self._recipe, self._device, self._clock = recipe, device, timer
        self.tokenizer = load_tokenizer(checkpoint, recipe.truncation_side, recipe.lower_case)
        network = (load or load_network)(checkpoint, recipe)
        # Before an adapter wraps the network and hides its signature.
        self.text_tokenizer = TextTokenizer.of(self.tokenizer, network, recipe)
        if adapter is not None and recipe.adapter is not None:
            network = attach(network, adapter, recipe.adapter.kind)
            check_adapter_unchanged(adapter, recipe.adapter, checkpoint)
        change(network)
        network = network.to(device)
        self.mixable_length = checkpoint.mixable_length
        if checkpoint.is_length_dependent(recipe.max_tokens):
            logger.warning(EQUAL_LENGTHS, recipe.model, self.mixable_length)
            keep_frequencies(network)
        packed = None if adapter is not None else self._pack(network)
        self._padding = int(self.tokenizer.pad_token_id or 0)
        self._encoder = packed or PaddedEncoder(network, device, self._padding)
        self._stages = [load_stage(stage, checkpoint, device) for stage in recipe.stages]
        checkpoint.check_unchanged()  # the fingerprint is of the files that were read
        self._largest_batch: float = np.inf  # tokens that the device's memory may hold

    def _pack(self, network: Any) -> PackedEncoder | None:
        """Return the network without padding, or None if it cannot be packed."""
        if self._recipe.precision == "int8":
            probe: list[Segments] = [(text, None) for text in probe_texts()]
            return Int8Encoder(network, self.tokenize(probe, self._recipe.max_tokens))
        if can_compile(network, getattr(torch, self._recipe.dtype), self._device):
            return CompiledNetwork(network)
        if self._device.type == "cuda":
            return PackedEncoder(network, attend_padded) if is_plain_bert(network) else None
        is_fast = self._recipe.dtype == "float32" or has_bfloat16()
        if is_fast and is_plain_bert(network) and has_onednn():
            return PackedEncoder(network, product=OneDNNLinear)
        return None

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return self._recipe.dim

    @property
    def is_asynchronous(self) -> bool:
        """True if the device computes a batch while this process does something else."""
        return self._device.type == "cuda"

    @property
    def is_packed(self) -> bool:
        """True if batches have no padding, so that a batch costs its tokens."""
        return self._encoder.is_packed

    @property
    def separator(self) -> str:
        """Text of the tokenizer's separator token."""
        if not (token := self.tokenizer.sep_token):
            problem = f"{self._recipe.model}: its tokenizer has no separator token"
            raise BenchError(problem, 'Use title_join = "space"')
        return str(token)

    def tokenize(self, segments: Sequence[Segments], max_tokens: int | None) -> Tokens:
        """Return the token ids of texts and pairs: see `TextTokenizer`.

        Raises:
            BenchError: the limit leaves no tokens for a text.
        """
        for paired in {second is not None for _, second in segments}:
            special = self.text_tokenizer.special_tokens(paired)
            if max_tokens is not None and max_tokens <= special:
                problem = f"{self._recipe.model}: {max_tokens} tokens leave none for a text"
                raise BenchError(problem, f"Set both lengths to {special + 1} or more.")
        with self._clock.phase("tokenise"):
            is_long = self.is_asynchronous and len(segments) >= MANY_TEXTS
            used = self._token_workers if is_long else self.text_tokenizer
            tokens = used(segments, max_tokens)
        if not tokens.lengths.all():
            _note_empty(self._recipe.model, self.tokenizer.convert_ids_to_tokens(self._padding))
        return tokens

    @cached_property
    def _token_workers(self) -> TokenWorkers:
        return TokenWorkers(self.text_tokenizer)

    def vectors(self, tokens: Tokens, batches: Sequence[Int64Array]) -> VectorBatches:
        """Yield the rows of each batch with their vectors, float32 ``(len(rows), dim)``, in order.

        On the CPU, batches are computed in parallel threads. Few tokens, such as one query, take a
        single thread, since threads on a busy machine wait longer than they compute.

        Args:
            tokens: token ids of all texts.
            batches: rows of each batch.

        Raises:
            BenchError: a vector is not finite or has an unexpected dimension, or the device's
                memory does not hold one text.
        """
        if self.is_asynchronous:
            yield from self.launch(tokens, batches)
            return
        with use_full_precision():
            done = map_in_threads(lambda rows: list(self._launch_parts(tokens, rows)), batches)
            if len(tokens.ids) <= FEW_TOKENS:
                with use_one_thread():
                    done = iter(list(done))
            yield from (self._receive(pending) for flights in done for pending in flights)

    def launch(self, tokens: Tokens, batches: Sequence[Int64Array]) -> VectorBatches:
        """Start all ``batches`` of ``tokens``, then yield their vectors as ``vectors`` does."""
        with use_full_precision():
            flights = [pending for rows in batches for pending in self._launch_parts(tokens, rows)]
        return map(self._receive, flights)

    def _launch_parts(self, tokens: Tokens, rows: Int64Array) -> Iterator["_PendingBatch"]:
        """Launch a batch, split into halves if the device's memory does not hold it.

        The plan of batches does not depend on what else is on the device.
        """
        # Tokenizers without special tokens leave an empty text no token to attend to or pool.
        batch = tokens.take(rows).filled(self._padding)
        cost = int(batch.lengths.sum()) if self.is_packed else len(rows) * int(batch.lengths.max())
        if cost <= self._largest_batch or len(rows) == 1:
            try:
                pending = self._launch(batch, rows)
            except RuntimeError as error:  # PyTorch's own, cuBLAS's and Triton's
                why = first_line(error)
                if not is_out_of_memory(error):
                    if self._recipe.adapter is None:
                        raise
                    raise BenchError(
                        f"{self._recipe.model} cannot be run with its adapter: {why}",
                        "Check that it belongs to this base model and version of its library.",
                    ) from error
                if len(rows) == 1:
                    raise BenchError(
                        f"{self._device} has no memory for a text of {cost} tokens: {why}",
                        "Stop other programs on the device, or use --device cpu.",
                    ) from error
            else:
                yield pending
                return
            self._shrink_batches(cost)
        half = (len(rows) + 1) // 2
        yield from self._launch_parts(tokens, rows[:half])
        yield from self._launch_parts(tokens, rows[half:])

    def _shrink_batches(self, tokens: int) -> None:
        """Remember that a batch was too large, and free PyTorch's cached memory."""
        if self._largest_batch == np.inf:
            logger.warning(
                "%s has no memory for a batch of %s tokens, so larger batches are split; vectors "
                "may differ in their last bits",
                self._device,
                f"{tokens:,}",
            )
        self._largest_batch = min(self._largest_batch, tokens - 1)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()

    def _launch(self, batch: Tokens, rows: Int64Array) -> "_PendingBatch":
        with self._clock.phase("copy"):
            inputs: Any = self._encoder.pack_batch(batch)
        with self._clock.phase("forward"), torch.inference_mode():
            try:
                vectors = self._encoder.encode_batch(self._recipe.pooling, inputs)
            except (IndexError, TypeError, ValueError, AttributeError) as error:
                problem = f"{self._recipe.model} cannot be run: {first_line(error)}"
                raise BenchError(problem, "Check config.json and the tokenizer.") from error
            for stage in self._stages:
                vectors = stage(vectors)
            if self._recipe.normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
            landed = None
            if self._device.type == "cuda":
                vectors = torch.empty_like(vectors, device="cpu", pin_memory=True).copy_(
                    vectors, non_blocking=True
                )
                landed = torch.cuda.Event()  # type: ignore[no-untyped-call]
                landed.record(torch.cuda.current_stream(self._device))
        self._clock.add({}, {"tokens": len(batch.ids)})
        return _PendingBatch(rows, vectors, landed)

    def _receive(self, pending: "_PendingBatch") -> tuple[Int64Array, Float32Array]:
        if pending.landed is not None:
            with self._clock.phase("forward"):
                pending.landed.synchronize()
        vectors = pending.vectors.numpy()
        if vectors.shape[1] != self._recipe.dim:
            raise BenchError(
                f"{self._recipe.model} gave {vectors.shape[1]} dimensions, not {self._recipe.dim}"
            )
        if not np.isfinite(vectors).all():
            problem = f"{self._recipe.model} gave a vector with NaN or infinity"
            raise BenchError(problem, "Try --dtype float32, or the checkpoint is damaged.")
        return pending.rows, vectors


@dataclass(frozen=True)
class _PendingBatch:
    """A batch whose vectors are on the host once the event has occurred."""

    rows: Int64Array
    vectors: torch.Tensor
    landed: torch.cuda.Event | None


@cache  # note only once
def _note_empty(model: str, token: str) -> None:
    logger.warning("%s: a text without tokens gets the vector of the token %s", model, token)


def keep_frequencies(network: torch.nn.Module) -> None:
    """Let each forward pass of ``network`` begin with the rotary frequencies of its configuration.

    Those of the kinds ``dynamic`` and ``longrope`` are a state, which the longest text so far
    changes: for later texts, and for other threads.
    """
    for module in network.modules():
        if "Rotary" in type(module).__name__:
            module.forward = partial(_forward_copy, module, type(module).forward)


def _forward_copy(module: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``forward`` on a copy of ``module`` with buffers of its own."""
    own = copy(module)
    own._buffers = {
        name: None if value is None else value.clone() for name, value in module._buffers.items()
    }
    return forward(own, *args, **kwargs)


class PaddedEncoder:
    """Any network, over texts that are padded to the longest of a batch by the id ``padding``."""

    is_packed = False

    def __init__(self, network: Any, device: torch.device, padding: int) -> None:
        self._network, self._device, self._padding = network, device, padding

    def pack_batch(self, tokens: Tokens) -> "PaddedBatch":
        """Pad ``tokens`` to a batch on the network's device."""
        places = np.arange(max(1, tokens.lengths.max()))
        filled = places < tokens.lengths[:, None]
        read = places < np.maximum(1, tokens.lengths[:, None])
        inputs = {
            "input_ids": self._pad(tokens.ids, filled, self._padding),
            "attention_mask": self._move(read.astype(np.int64)),
        }
        if tokens.types is not None:
            inputs["token_type_ids"] = self._pad(tokens.types, filled, 0)
        ends = np.append(0, read.sum(axis=1).cumsum())
        return PaddedBatch(inputs, self._move(np.flatnonzero(read)), self._move(ends))

    def encode_batch(self, mode: StoredPooling, batch: "PaddedBatch") -> torch.Tensor:
        """Return the float32 vectors of ``batch``, pooled by ``mode``, ``(n, width)``."""
        output = self._network(**batch.inputs)
        hidden, read = getattr(output, "last_hidden_state", None), batch.inputs["input_ids"]
        if hidden is not None:
            if hidden.shape[:2] != read.shape:
                raise ValueError(f"{hidden.shape[1]} hidden states for {read.shape[1]} tokens")
            hidden = hidden.flatten(0, 1)[batch.places]
        return pool(mode, hidden, batch.ends, getattr(output, "pooler_output", None))

    def _pad(self, values: Int32Array, mask: BoolArray, fill: int) -> torch.Tensor:
        padded = np.full(mask.shape, fill, dtype=np.int64)
        padded[mask] = values
        return self._move(padded)

    def _move(self, array: Int64Array) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)


@dataclass(frozen=True)
class PaddedBatch:
    """A padded batch.

    Attributes:
        inputs: arguments of the network.
        places: positions of tokens in its flattened output, int64 ``(T,)``.
        ends: ends of the texts among them, int64 ``(n + 1,)``, from 0.
    """

    inputs: dict[str, torch.Tensor]
    places: torch.Tensor
    ends: torch.Tensor
