"""One loaded encoder: texts to token ids, token ids to vectors.

Imports torch and transformers, so it is imported when vectors are first needed.
"""

import inspect
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foundation.arrays import BoolArray, Float32Array, Int64Array
from foundation.errors import BenchError, first_line
from retrievers.adapters.attach import attach
from retrievers.adapters.bases import Bases
from retrievers.encoders.clock import Clock
from retrievers.encoders.compiled import CompiledNetwork, can_pack
from retrievers.encoders.document_text import Segments
from retrievers.encoders.onednn import replace_linear, usable
from retrievers.encoders.pooling import finish, pool
from retrievers.encoders.workers import side_by_side
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.loading import load_network, load_stage, load_tokenizer
from retrievers.models.recipe import Dtype, Recipe

CUDA_IN_FLIGHT = 3  # batches: one is computed, one waits, one is copied back


@dataclass(frozen=True)
class Tokens:
    """Token ids of each text, and token types where the model reads them."""

    ids: Sequence[Sequence[int]]
    types: Sequence[Sequence[int]] | None


class Tower:
    """Texts to token ids, token ids to vectors.

    BERT and RoBERTa in half precision on CUDA run compiled and without padding.

    Args:
        clock: gets the time of each phase and the number of tokens.
        bases: networks that adapters share.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        recipe: Recipe,
        adapter: Path | None,
        device: torch.device,
        clock: Clock,
        bases: Bases | None = None,
    ) -> None:
        self.tokenizer = load_tokenizer(checkpoint, recipe.truncation_side, recipe.lower_case)
        load = bases.network if bases and adapter is not None else load_network
        network = load(checkpoint, recipe)
        # Read before an adapter wraps the network and hides its signature.
        self._reads = frozenset(inspect.signature(network.forward).parameters)
        if adapter is not None and recipe.adapter is not None:
            network = attach(network, adapter, recipe.adapter.kind)
        self._network = _on_backend(recipe, network.to(device), adapter is not None)
        dtype = getattr(torch, recipe.dtype)
        packed = adapter is None and can_pack(self._network, dtype, device)
        self._compiled = CompiledNetwork(self._network) if packed else None
        self._stages = [load_stage(stage, checkpoint, device) for stage in recipe.stages]
        self._recipe = recipe
        self._device = device
        self._clock = clock

    @property
    def packs(self) -> bool:
        """Whether batches have no padding: a batch costs its tokens, not its longest text."""
        return self._compiled is not None

    @property
    def separator(self) -> str:
        """The tokenizer's separator token as text."""
        token = self.tokenizer.sep_token
        if not token:
            raise BenchError(
                f"{self._recipe.model}: its tokenizer has no separator token",
                'use title_join = "space"',
            )
        return str(token)

    def tokenize(self, segments: Sequence[Segments], max_tokens: int | None) -> Tokens:
        """Token ids, cut to ``max_tokens`` with special tokens included (longest segment first).

        None does not cut.

        Raises:
            BenchError: so few tokens have no room for a text.
        """
        with self._clock.phase("tokenise"):
            return self._tokenize(segments, max_tokens)

    def _tokenize(self, segments: Sequence[Segments], max_tokens: int | None) -> Tokens:
        ids: list[Sequence[int]] = [()] * len(segments)
        types: list[Sequence[int]] = [()] * len(segments)
        reads_types = self._recipe.segment_ids and "token_type_ids" in self._reads
        for paired in (False, True):
            rows = [i for i, pair in enumerate(segments) if (pair[1] is not None) == paired]
            if not rows:
                continue
            special = self.tokenizer.num_special_tokens_to_add(paired)
            if max_tokens is not None and max_tokens <= special:
                raise BenchError(
                    f"{self._recipe.model}: {max_tokens} tokens have no room for a text, since "
                    f"{special} are the tokenizer's own",
                    f"allow {special + 1} or more: --max-query-tokens, --max-document-tokens",
                )
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

    def vectors(
        self, tokens: Tokens, batches: Sequence[Int64Array]
    ) -> Iterator[tuple[Int64Array, Float32Array]]:
        """Vectors of each batch of rows, float32 ``(len(rows), dim)``, in order.

        On the CPU batches are computed side by side; on CUDA the next ones are under way while
        the vectors of one are copied back.

        Raises:
            BenchError: a vector is not finite, or not as long as the recipe says.
        """
        if self._device.type == "cpu" and not self.packs:
            yield from side_by_side(lambda rows: self._land(self._launch(tokens, rows)), batches)
            return
        flying: deque[_Flight] = deque()
        for rows in batches:
            flying.append(self._launch(tokens, rows))
            if len(flying) == CUDA_IN_FLIGHT:
                yield self._land(flying.popleft())
        while flying:
            yield self._land(flying.popleft())

    def _launch(self, tokens: Tokens, rows: Int64Array) -> "_Flight":
        pooled = self._pooled(tokens, rows)
        with self._clock.phase("forward"), torch.inference_mode():
            vectors = finish(pooled, self._stages, self._recipe.normalize)
            landed = None
            if self._device.type == "cuda":
                vectors = torch.empty_like(vectors, device="cpu", pin_memory=True).copy_(
                    vectors, non_blocking=True
                )
                landed = torch.cuda.Event()  # type: ignore[no-untyped-call]
                landed.record(torch.cuda.current_stream(self._device))
        self._clock.count("tokens", sum(len(tokens.ids[i]) for i in rows))
        return _Flight(rows, vectors, landed)

    def _pooled(self, tokens: Tokens, rows: Int64Array) -> torch.Tensor:
        """One vector for each row, before the stages, float32."""
        if self._compiled is None:
            return self._pooled_padded(tokens, rows)
        with self._clock.phase("copy"):
            types = None if tokens.types is None else [tokens.types[i] for i in rows]
            batch = self._compiled.pack([tokens.ids[i] for i in rows], types)
        with self._clock.phase("forward"), torch.inference_mode():
            return self._compiled.pooled(self._recipe.pooling, batch)

    def _pooled_padded(self, tokens: Tokens, rows: Int64Array) -> torch.Tensor:
        with self._clock.phase("copy"):
            lengths = np.array([len(tokens.ids[i]) for i in rows])
            mask = np.arange(lengths.max()) < lengths[:, None]
            inputs = {"input_ids": self._padded(tokens.ids, rows, mask, self._pad)}
            if tokens.types is not None:
                inputs["token_type_ids"] = self._padded(tokens.types, rows, mask, 0)
            attention = self._moved(mask.astype(np.int64))
        with self._clock.phase("forward"), torch.inference_mode():
            try:
                output = self._network(**inputs, attention_mask=attention)
            except (IndexError, TypeError, ValueError, AttributeError) as error:
                raise BenchError(
                    f"{self._recipe.model} cannot be run: {first_line(error)}",
                    "are config.json and the tokenizer those of these weights?",
                ) from error
            return pool(
                self._recipe.pooling,
                getattr(output, "last_hidden_state", None),
                attention,
                getattr(output, "pooler_output", None),
            )

    def _land(self, flight: "_Flight") -> tuple[Int64Array, Float32Array]:
        if flight.landed is not None:
            with self._clock.phase("forward"):
                flight.landed.synchronize()
        found = flight.vectors.numpy()
        if found.shape[1] != self._recipe.dim:
            raise BenchError(
                f"{self._recipe.model} gave vectors {found.shape[1]} long, not {self._recipe.dim}"
            )
        if not np.isfinite(found).all():
            raise BenchError(
                f"{self._recipe.model} gave a vector with NaN or infinity",
                "try --dtype float32; if it stays, the checkpoint is damaged",
            )
        return flight.rows, found

    @property
    def _pad(self) -> int:
        return int(self.tokenizer.pad_token_id or 0)

    def _padded(
        self,
        values: Sequence[Sequence[int]],
        rows: Int64Array,
        mask: BoolArray,
        fill: int,
    ) -> torch.Tensor:
        padded = np.full(mask.shape, fill, dtype=np.int64)
        padded[mask] = np.concatenate([values[i] for i in rows])
        return self._moved(padded)

    def _moved(self, array: Int64Array) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)


@dataclass(frozen=True)
class _Flight:
    """A batch on its way: ``vectors`` on the host hold it once the event has happened."""

    rows: Int64Array
    vectors: torch.Tensor
    landed: torch.cuda.Event | None


def _on_backend(recipe: Recipe, network: Any, adapted: bool) -> Any:
    """The network as the recipe's back end runs it; same arguments, ``last_hidden_state``."""
    if recipe.backend == "onnx":
        from retrievers.encoders.onnx_network import OnnxNetwork

        return OnnxNetwork(network)
    if recipe.backend == "int8":
        from retrievers.encoders.int8_network import Int8Network

        return Int8Network(network)
    if not adapted and usable(network):
        replace_linear(network)
    return network


def check_dtype(dtype: Dtype, device: torch.device) -> None:
    """Refuse float16 on the CPU, where it is slow and overflows."""
    if dtype == "float16" and device.type == "cpu":
        raise BenchError("float16 needs a GPU", "use --dtype bfloat16 or --dtype float32")
