"""BERT and RoBERTa encoders without padding: the tokens of all texts of a batch in one row.

``T`` is the number of tokens of a batch, ``n`` of its texts; text ``i`` is the tokens
``cu_seqlens[i]`` to ``cu_seqlens[i + 1]``. Devlin et al., BERT, 2019; Liu et al., RoBERTa, 2019.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from retrievers.errors import RetrieverError
from retrievers.recipe import Pooling

# (query, key, value, cu_seqlens, max_length) to (T, heads, head width), as each of the three.
Attention = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]

BERT = frozenset({"BertModel"})
ROBERTA = frozenset({"RobertaModel", "XLMRobertaModel", "CamembertModel"})
ACTIVATIONS = frozenset({"gelu", "relu", "gelu_new", "gelu_pytorch_tanh"})


@dataclass(frozen=True)
class PackedBatch:
    """The inputs of ``PackedNetwork``: ids, positions and types int64 ``(T,)``.

    ``cu_seqlens`` is int32 ``(n + 1,)``, ``max_length`` the tokens of the longest text.
    """

    input_ids: Tensor
    positions: Tensor
    types: Tensor | None
    cu_seqlens: Tensor
    max_length: int


def varlen(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int) -> Tensor:
    """Attention within each text by PyTorch's variable-length kernel; CUDA, half precision."""
    from torch.nn.attention.varlen import varlen_attn

    found = varlen_attn(query, key, value, ends, ends, longest, longest)
    assert isinstance(found, Tensor)
    return found


def one_by_one(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int) -> Tensor:
    """Attention within each text, text after text; any device and dtype."""
    found = []
    for start, end in pairwise(ends.tolist()):
        q, k, v = (x[start:end].transpose(0, 1)[None] for x in (query, key, value))
        found.append(functional.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1))
    return torch.cat(found)


def can_pack(network: nn.Module, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether ``PackedNetwork`` with ``varlen`` computes what this network computes."""
    half = dtype in (torch.float16, torch.bfloat16)
    return device.type == "cuda" and half and known(network)


def known(network: nn.Module) -> bool:
    """A plain BERT or RoBERTa encoder: no adapter, absolute positions, a known activation."""
    if type(network).__name__ not in BERT | ROBERTA:
        return False
    if not type(network).__module__.startswith("transformers."):
        return False
    config: Any = network.config
    plain = all(
        type(part) is nn.Linear for name, part in network.named_modules() if _is_linear(name)
    )
    return (
        plain
        and getattr(config, "position_embedding_type", None) in (None, "absolute")
        and not config.is_decoder
        and config.hidden_act in ACTIVATIONS
    )


def _is_linear(name: str) -> bool:
    return name.endswith((".query", ".key", ".value", ".dense"))


class PackedNetwork(nn.Module):
    """One forward pass over packed tokens, with the weights of a Hugging Face encoder.

    Args:
        network: an encoder that is ``known``, in eval mode.
        attention: ``varlen`` on CUDA, ``one_by_one`` anywhere.
    """

    def __init__(self, network: nn.Module, attention: Attention) -> None:
        super().__init__()
        parts: Any = network
        self.embeddings, self.pooler = parts.embeddings, parts.pooler
        self.layers = nn.ModuleList(
            _Layer(layer, parts.config.num_attention_heads, attention)
            for layer in parts.encoder.layer
        )
        roberta = type(network).__name__ in ROBERTA
        self.first_position = parts.config.pad_token_id + 1 if roberta else 0

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        types: Tensor | None,
        cu_seqlens: Tensor,
        max_length: int,
    ) -> Tensor:
        """Last hidden states ``(T, width)`` of a ``PackedBatch``."""
        table = self.embeddings
        types = torch.zeros_like(input_ids) if types is None else types
        hidden: Tensor = table.word_embeddings(input_ids) + table.token_type_embeddings(types)
        hidden = table.LayerNorm(hidden + table.position_embeddings(positions))
        for layer in self.layers:
            hidden = layer(hidden, cu_seqlens, max_length)
        return hidden


class _Layer(nn.Module):
    def __init__(self, layer: Any, heads: int, attention: Attention) -> None:
        super().__init__()
        own = layer.attention.self
        self.query, self.key, self.value = own.query, own.key, own.value
        self.mix, self.widen, self.narrow = layer.attention.output, layer.intermediate, layer.output
        self.heads, self.attention = heads, attention

    def forward(self, hidden: Tensor, ends: Tensor, longest: int) -> Tensor:
        shape = (len(hidden), self.heads, -1)
        q, k, v = (part(hidden).view(shape) for part in (self.query, self.key, self.value))
        mixed = self.attention(q, k, v, ends, longest).flatten(1)
        hidden = self.mix.LayerNorm(self.mix.dense(mixed) + hidden)
        wide = self.widen.intermediate_act_fn(self.widen.dense(hidden))
        narrow: Tensor = self.narrow.LayerNorm(self.narrow.dense(wide) + hidden)
        return narrow


def pack(
    ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, first_position: int
) -> PackedBatch:
    """A batch of texts on the CPU; each text has at least one token."""
    lengths = np.array([len(text) for text in ids])
    ends = np.concatenate([[0], lengths.cumsum()])
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    return PackedBatch(
        _joined(ids),
        torch.from_numpy(within + first_position),
        None if types is None else _joined(types),
        torch.from_numpy(ends.astype(np.int32)),
        int(lengths.max()),
    )


def _joined(values: Sequence[Sequence[int]]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.asarray(v, dtype=np.int64) for v in values]))


def moved(batch: PackedBatch, device: torch.device) -> PackedBatch:
    """The batch on a device, copied from pinned memory without waiting; itself on the CPU."""
    if device.type == "cpu":
        return batch

    def move(tensor: Tensor) -> Tensor:
        return tensor.pin_memory().to(device, non_blocking=True)

    types = None if batch.types is None else move(batch.types)
    ids, positions, ends = map(move, (batch.input_ids, batch.positions, batch.cu_seqlens))
    return PackedBatch(ids, positions, types, ends, batch.max_length)


def pool_packed(mode: Pooling, hidden: Tensor, cu_seqlens: Tensor, pooler: Any = None) -> Tensor:
    """One float32 vector for each text, ``(n, width)``; the modes of ``pooling.pool``.

    Raises:
        RetrieverError: the mode needs a pooler that the model has not, or pools nothing.
    """
    ends = cu_seqlens.long()
    if mode == "pooler" and pooler is not None:
        pooled: Tensor = pooler(hidden[ends[:-1]].unsqueeze(1))
        return pooled.float()
    if mode in ("pooler", "none"):
        raise RetrieverError(f"this model's output cannot be pooled by {mode!r}")
    if mode == "cls":
        return hidden[ends[:-1]].float()
    if mode == "last":
        return hidden[ends[1:] - 1].float()
    return torch.segment_reduce(hidden.float(), "mean", offsets=ends, axis=0)
