"""Modules that objectives share: BERT or RoBERTa with its head, layers, and contrastive losses.

Contrastive losses cover the vectors of all processes.

Gradient caching: Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under
Memory Limited Setup", 2021, https://arxiv.org/abs/2101.06983. The outputs of each sub-batch are
kept, and it is encoded again with the same dropout when the gradient of the whole loss is
propagated back. Here autograd does this with a checkpoint around each sub-batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from foundation.errors import BenchError
from retrievers.models.loading import HEAD_ATTRIBUTES, find_head
from retrievers.training.objectives.masking import IGNORED


class MaskedLM(nn.Module):
    """Encoder with its language-model head, whose decoder is tied to the word embeddings."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        if model.config.model_type not in HEAD_ATTRIBUTES:
            raise BenchError(
                f"models of type {model.config.model_type} cannot be pre-trained",
                f"Start from one of these types: {', '.join(HEAD_ATTRIBUTES)}.",
            )
        self.model = model

    @property
    def config(self) -> Any:
        """Configuration of the Hugging Face model."""
        return self.model.config

    @property
    def encoder(self) -> Any:
        """Encoder without a head, which becomes the finished checkpoint."""
        return self.model.base_model

    @property
    def head(self) -> nn.Module:
        """Head that maps hidden states ``(..., width)`` to logits ``(..., vocabulary)``."""
        return find_head(self.model)

    @property
    def layers(self) -> nn.ModuleList:
        """Transformer layers of the encoder, first to last."""
        layers: nn.ModuleList = self.encoder.encoder.layer
        return layers

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Return the hidden states after the embeddings and each layer, ``(texts, length, width)``.

        Ids are int64 ``(texts, length)``, and the mask is 0 at padding.
        """
        states: tuple[Tensor, ...] = self.encoder(
            input_ids=input_ids,
            attention_mask=attention_mask.long(),
            output_hidden_states=True,
            return_dict=True,
        ).hidden_states
        return states

    def embed(self, input_ids: Tensor) -> Tensor:
        """Return the embedding layer's output for ``input_ids``, ``(texts, length, width)``."""
        embedded: Tensor = self.encoder.embeddings(input_ids=input_ids)
        return embedded

    def embed_vectors(self, vectors: Tensor) -> Tensor:
        """Return the embedding layer's output with ``vectors``, of the same shape, for words."""
        embedded: Tensor = self.encoder.embeddings(inputs_embeds=vectors)
        return embedded

    def positions(self, length: int) -> Tensor:
        """Return the embeddings of the first ``length`` positions, ``(length, width)``."""
        table = self.encoder.embeddings.position_embeddings
        first = 0 if self.config.model_type == "bert" else table.padding_idx + 1
        positions: Tensor = table.weight[first : first + length]
        return positions

    def loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy over tokens with a label other than -100, 0 without one.

        States are ``(texts, length, width)`` and labels int64 ``(texts, length)``.
        """
        chosen = labels != IGNORED
        logits = self.head(states[chosen])
        total = functional.cross_entropy(logits, labels[chosen], reduction="sum")
        return total / chosen.sum().clamp(min=1)


def initialise(module: nn.Module, deviation: float) -> None:
    """Initialise ``module`` as BERT does: normal weights with ``deviation``, biases 0, norms 1."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=deviation)
            nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)


class TransformerLayer(nn.Module):
    """New layer of BERT with random weights, whose queries and context may be different streams.

    Devlin et al., BERT, NAACL 2019; Vaswani et al., Attention Is All You Need, NIPS 2017. With one
    stream for both it equals BERT's own layer.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        from transformers.activations import ACT2FN

        width, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_attention_heads
        self.attention_dropout = config.attention_probs_dropout_prob
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        initialise(self, config.initializer_range)

    def forward(self, stream: Tensor, context: Tensor, allowed: Tensor) -> Tensor:
        """Apply the layer. Residual connections add ``stream``.

        ``stream`` has the queries, ``(texts, rows, width)``, and ``context`` keys and values,
        ``(texts, length, width)``. ``allowed`` is bool ``(texts, rows, length)``, or ``(texts,
        length)`` for all rows.
        """
        attended = self.output(self._attend(stream, context, allowed))
        stream = self.attention_norm(stream + self.dropout(attended))
        changed: Tensor = self.down(self.activation(self.up(stream)))
        normed: Tensor = self.norm(stream + self.dropout(changed))
        return normed

    def _attend(self, stream: Tensor, context: Tensor, allowed: Tensor) -> Tensor:
        mask = allowed[:, None] if allowed.dim() == 3 else allowed[:, None, None]
        attended = functional.scaled_dot_product_attention(
            self._split(self.query(stream)),
            self._split(self.key(context)),
            self._split(self.value(context)),
            attn_mask=mask.bool(),
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        return attended.transpose(1, 2).flatten(2)

    def _split(self, states: Tensor) -> Tensor:
        return torch.unflatten(states, -1, (self.heads, -1)).transpose(1, 2)


def put_cls(states: Tensor, embedded: Tensor) -> Tensor:
    """Return ``states`` with the vectors of ``embedded`` after position 0."""
    return torch.cat([states[:, :1], embedded[:, 1:].to(states.dtype)], dim=1)


def sum_losses(**losses: Tensor) -> dict[str, Tensor]:
    """Return ``losses`` by name, with their sum as ``loss``."""
    return {"loss": torch.stack(list(losses.values())).sum(), **losses}


def contrastive_loss(anchors: Tensor, candidates: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the cross-entropy of finding candidate i for anchor i among all processes' candidates.

        L = -1/n sum_i log( exp(<a_i, c_i> / t) / sum_j exp(<a_i, c_j> / t) )

    Args:
        anchors: ``(n, width)``.
        candidates: ``(n, width)``, or more rows, of which the first n belong to the anchors.
        temperature: t.
    """
    everyone, first = gather_vectors(candidates)
    targets = first + torch.arange(len(anchors), device=anchors.device)
    return functional.cross_entropy(dot_products(anchors, everyone) / temperature, targets)


def cosine_contrast(anchors: Tensor, candidates: Tensor, temperature: float) -> Tensor:
    """Return `contrastive_loss` of the vectors scaled to unit length."""
    anchors, candidates = (
        functional.normalize(in_float32(side), dim=1) for side in (anchors, candidates)
    )
    return contrastive_loss(anchors, candidates, temperature)


def span_contrast(vectors: Tensor) -> Tensor:
    """Return the cross-entropy of finding, for each span, the other span of its document.

        L = -1/2n sum_ij log( exp(<h_i1, h_i2>) / sum_{kl != ij} exp(<h_ij, h_kl>) )

    Args:
        vectors: ``(2n, width)``. Rows 2i and 2i + 1 are the two spans of document i.
    """
    everyone, first = gather_vectors(vectors)
    rows = first + torch.arange(len(vectors), device=vectors.device)
    others = dot_products(vectors, everyone).scatter(1, rows[:, None], float("-inf"))
    return functional.cross_entropy(others, rows ^ 1)


def gather_vectors(vectors: Tensor) -> tuple[Tensor, int]:
    """Return the vectors of all processes, and the first row of this process.

    Each process has equally many vectors, ``(n, width)``. Gradients flow back to the process of
    each vector, summed over all processes.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        return vectors, 0
    everyone = torch.cat(all_gather(vectors.contiguous()))  # type: ignore[no-untyped-call]
    return everyone, distributed.get_rank() * len(vectors)


def dot_products(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Return the dot products of all pairs, ``(anchors, candidates)``, see `in_float32`."""
    with torch.autocast(anchors.device.type, enabled=False):
        return in_float32(anchors) @ in_float32(candidates).T


def in_float32(vectors: Tensor) -> Tensor:
    """Return ``vectors``, or logits, in float32 or float64.

    The 8 bits of bfloat16 are enough for vectors, but not for scores that are divided by a
    temperature: at 0.02 the last bit of a cosine is 0.2 of a logit.
    """
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


def encode_in_parts(
    encode: Callable[..., tuple[Tensor, ...]], batch: tuple[Tensor, ...], size: int | None
) -> tuple[Tensor, ...]:
    """Return the outputs of ``encode(*batch)``, computed ``size`` rows at a time, or all at once.

    Each row of an output depends only on the same row of the inputs.
    """
    if size is None:
        return encode(*batch)
    parts = zip(*(torch.split(rows, size) for rows in batch), strict=True)
    outputs = [checkpoint(encode, *part, use_reentrant=False) for part in parts]
    return tuple(torch.cat(pieces) for pieces in zip(*outputs, strict=True))
