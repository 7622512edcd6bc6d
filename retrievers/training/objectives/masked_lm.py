"""What objectives share: BERT or RoBERTa with its head, layers, and contrasts of vectors.

A contrast of a batch is one across all processes. Its scores are computed in float32 at least:
bfloat16 would round large inner products by whole units.

Gradient caching: Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under
Memory Limited Setup", 2021, https://arxiv.org/abs/2101.06983. The batch is cut into sub-batches.
Each is encoded and only its outputs are kept; the loss of all outputs is differentiated with
respect to them (the cache); then each sub-batch is encoded again, with the same dropout, and its
part of the cache flows back through it. Memory is that of one sub-batch, the price is a second
forward pass, and the gradient is that of the whole batch. Here autograd itself does this, by a
checkpoint around each sub-batch, which keeps the state of the random numbers. So it needs nothing
from the trainer, and scaled losses, gradient accumulation and several processes work as ever.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from foundation.errors import BenchError
from retrievers.models.loading import HEAD_ATTRIBUTES, find_head
from retrievers.training.objectives.masking import IGNORED


class MaskedLM(nn.Module):
    """An encoder and its head, whose decoder is tied to the word embeddings.

    Args:
        model: ``BertForMaskedLM`` or ``RobertaForMaskedLM``.

    Raises:
        BenchError: the architecture is another one.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        if model.config.model_type not in HEAD_ATTRIBUTES:
            raise BenchError(
                f"a model of type {model.config.model_type} cannot be pre-trained here",
                f"start from one of these types: {', '.join(HEAD_ATTRIBUTES)}",
            )
        self.model = model

    @property
    def config(self) -> Any:
        """Configuration of the Hugging Face model."""
        return self.model.config

    @property
    def encoder(self) -> Any:
        """The encoder without a head: what is kept in the end."""
        return self.model.base_model

    @property
    def head(self) -> nn.Module:
        """Hidden states ``(..., width)`` to logits ``(..., vocabulary)``."""
        return find_head(self.model)

    @property
    def layers(self) -> nn.ModuleList:
        """The encoder's transformer layers, first to last."""
        layers: nn.ModuleList = self.encoder.encoder.layer
        return layers

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Hidden states after the embeddings and after each layer.

        Args:
            input_ids: int64 ``(texts, length)``.
            attention_mask: bool or int64 ``(texts, length)``, 0 at padding.

        Returns:
            ``layers + 1`` tensors ``(texts, length, width)``; the last holds the embeddings of
            texts at position 0.
        """
        states: tuple[Tensor, ...] = self.encoder(
            input_ids=input_ids,
            attention_mask=attention_mask.long(),
            output_hidden_states=True,
            return_dict=True,
        ).hidden_states
        return states

    def embed(self, input_ids: Tensor) -> Tensor:
        """The embedding layer: words and positions, normalised; ``(texts, length, width)``."""
        embedded: Tensor = self.encoder.embeddings(input_ids=input_ids)
        return embedded

    def embed_vectors(self, vectors: Tensor) -> Tensor:
        """The embedding layer with vectors ``(texts, length, width)`` in the place of words."""
        embedded: Tensor = self.encoder.embeddings(inputs_embeds=vectors)
        return embedded

    def positions(self, length: int) -> Tensor:
        """Position embeddings of the first places, ``(length, width)``."""
        table = self.encoder.embeddings.position_embeddings
        first = 0 if self.config.model_type == "bert" else table.padding_idx + 1
        positions: Tensor = table.weight[first : first + length]
        return positions

    def predict(self, states: Tensor, labels: Tensor) -> Tensor:
        """Logits of the tokens with a label, ``(tokens, vocabulary)``; none of the others.

        Args:
            states: ``(texts, length, width)``.
            labels: int64 ``(texts, length)``, -100 if there is nothing to say.
        """
        logits: Tensor = self.head(states[labels != IGNORED])
        return logits

    def loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy over the tokens with a label; see `predict`."""
        return masked_cross_entropy(self.predict(states, labels), labels)


def masked_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of what `MaskedLM.predict` gives for labels; 0 if there are none."""
    chosen = labels != IGNORED
    total = functional.cross_entropy(logits, labels[chosen], reduction="sum")
    return total / chosen.sum().clamp(min=1)


def initialise(module: nn.Module, deviation: float) -> None:
    """Random weights as BERT draws them: normal, biases 0, norms 1."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=deviation)
            nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)


class TransformerLayer(nn.Module):
    """A layer of BERT whose queries and context may be two streams; new, with random weights.

    Devlin et al., BERT, NAACL 2019; Vaswani et al., Attention Is All You Need, NIPS 2017. With one
    stream for both it is BERT's own layer.

    Args:
        config: of the encoder, for widths, heads, dropout and activation.
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
        """One layer; the residual connections are those of ``stream``.

        Args:
            stream: queries, ``(texts, rows, width)``.
            context: keys and values, ``(texts, length, width)``.
            allowed: bool, ``(texts, rows, length)`` or, for all rows alike, ``(texts, length)``:
                True if a row may attend.
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
        """``(texts, length, width)`` to ``(texts, heads, length, width of a head)``."""
        return torch.unflatten(states, -1, (self.heads, -1)).transpose(1, 2)


def replace_after_cls(states: Tensor, embedded: Tensor) -> Tensor:
    """The state at position 0, then the embeddings of the other positions."""
    return torch.cat([states[:, :1], embedded[:, 1:].to(states.dtype)], dim=1)


def sum_losses(**losses: Tensor) -> dict[str, Tensor]:
    """The losses by name, and their sum as ``loss``."""
    return {"loss": torch.stack(list(losses.values())).sum(), **losses}


def contrastive_loss(anchors: Tensor, candidates: Tensor, temperature: float = 1.0) -> Tensor:
    """Cross-entropy of finding, for anchor i, candidate i among those of all processes.

        L = -1/n sum_i log( exp(<a_i, c_i> / t) / sum_j exp(<a_i, c_j> / t) )

    Args:
        anchors: ``(n, width)``.
        candidates: ``(n, width)``.
        temperature: t.
    """
    everyone, first = gather_vectors(candidates)
    targets = first + torch.arange(len(anchors), device=anchors.device)
    return functional.cross_entropy(_scores(anchors, everyone) / temperature, targets)


def cosine_contrastive_loss(anchors: Tensor, candidates: Tensor, temperature: float) -> Tensor:
    """`contrastive_loss` of the cosines: the vectors are scaled to unit length first."""
    anchors, candidates = (
        functional.normalize(_at_least_float32(side), dim=1) for side in (anchors, candidates)
    )
    return contrastive_loss(anchors, candidates, temperature)


def span_contrastive_loss(vectors: Tensor) -> Tensor:
    """Cross-entropy of finding, for each span, the other span of its document among all others.

        L = -1/2n sum_ij log( exp(<h_i1, h_i2>) / sum_{kl != ij} exp(<h_ij, h_kl>) )

    Args:
        vectors: ``(2n, width)``; rows 2i and 2i + 1 are the two spans of document i.
    """
    everyone, first = gather_vectors(vectors)
    own = first + torch.arange(len(vectors), device=vectors.device)
    others = _scores(vectors, everyone).scatter(1, own[:, None], float("-inf"))
    return functional.cross_entropy(others, own ^ 1)


def gather_vectors(vectors: Tensor) -> tuple[Tensor, int]:
    """Vectors of all processes ``(processes * n, width)``, and the row where one's own begin.

    Every process must have equally many. Gradients flow back to where a vector came from.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        return vectors, 0
    everyone: Tensor = _Gather.apply(vectors)  # type: ignore[no-untyped-call]
    return everyone, distributed.get_rank() * len(vectors)


class _Gather(torch.autograd.Function):
    """Rows of all processes; backward, the sum of the gradients that all have for one's own."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        parts = [torch.empty_like(vectors) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, vectors.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        distributed.all_reduce(total)
        return total.chunk(distributed.get_world_size())[distributed.get_rank()]


def _scores(anchors: Tensor, candidates: Tensor) -> Tensor:
    with torch.autocast(anchors.device.type, enabled=False):
        return _at_least_float32(anchors) @ _at_least_float32(candidates).T


def _at_least_float32(vectors: Tensor) -> Tensor:
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


def encode_in_sub_batches(
    encode: Callable[..., tuple[Tensor, ...]], batch: tuple[Tensor, ...], size: int | None
) -> tuple[Tensor, ...]:
    """Outputs of ``encode(*batch)``, computed ``size`` rows at a time.

    Args:
        encode: gives ``(rows, ...)`` outputs, each row from the same row of its inputs alone.
        batch: inputs with equally many rows.
        size: rows of a sub-batch; None encodes all at once.
    """
    if size is None:
        return encode(*batch)
    parts = zip(*(torch.split(rows, size) for rows in batch), strict=True)
    outputs = [checkpoint(encode, *part, use_reentrant=False) for part in parts]
    return tuple(torch.cat(pieces) for pieces in zip(*outputs, strict=True))
