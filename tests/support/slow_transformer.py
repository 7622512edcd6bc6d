"""Transformer layers, heads and losses as loops over tokens, heads and numbers.

Written from the equations, to check what is vectorised. A vector is a list of floats, which are
float64.
"""

import math
from typing import Any

from torch import Tensor, nn

Vector = list[float]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def add(a: Vector, b: Vector) -> Vector:
    return [x + y for x, y in zip(a, b, strict=True)]


def linear(layer: nn.Linear, vector: Vector) -> Vector:
    return add([dot(row, vector) for row in layer.weight.tolist()], layer.bias.tolist())


def norm(layer: nn.LayerNorm, vector: Vector) -> Vector:
    mean = sum(vector) / len(vector)
    variance = sum((x - mean) ** 2 for x in vector) / len(vector)
    units = [(x - mean) / math.sqrt(variance + layer.eps) for x in vector]
    scaled = [x * scale for x, scale in zip(units, layer.weight.tolist(), strict=True)]
    return add(scaled, layer.bias.tolist())


def gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def softmax(scores: Vector) -> Vector:
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def attend(query: Vector, keys: list[Vector], values: list[Vector]) -> Vector:
    """One head of one token."""
    weights = softmax([dot(query, key) / math.sqrt(len(query)) for key in keys])
    return [dot(weights, [value[i] for value in values]) for i in range(len(values[0]))]


def attention(block: Any, token: Vector, seen: list[Vector]) -> Vector:
    """What a token takes from those it sees, all heads side by side."""
    query, size = linear(block.query, token), len(token) // block.heads
    keys = [linear(block.key, vector) for vector in seen]
    values = [linear(block.value, vector) for vector in seen]
    parts = [slice(head * size, (head + 1) * size) for head in range(block.heads)]
    return [
        x
        for part in parts
        for x in attend(query[part], [key[part] for key in keys], [v[part] for v in values])
    ]


def transformer_layer(block: Any, states: list[Vector], seen: list[list[int]]) -> list[Vector]:
    """A `TransformerLayer` over one text, in which token i sees the tokens ``seen[i]``."""
    out = []
    for state, visible in zip(states, seen, strict=True):
        taken = linear(block.output, attention(block, state, [states[j] for j in visible]))
        middle = norm(block.attention_norm, add(state, taken))
        wide = [gelu(x) for x in linear(block.up, middle)]
        out.append(norm(block.norm, add(middle, linear(block.down, wide))))
    return out


def logits(model: Any, state: Vector) -> Vector:
    """The masked-language-model head of BERT or RoBERTa."""
    if model.config.model_type == "bert":
        head = model.cls.predictions
        dense, normed = head.transform.dense, head.transform.LayerNorm
    else:
        head = model.lm_head
        dense, normed = head.dense, head.layer_norm
    hidden = norm(normed, [gelu(x) for x in linear(dense, state)])
    table = model.get_input_embeddings().weight.tolist()
    return add([dot(row, hidden) for row in table], head.bias.tolist())


def cross_entropy(scores: Vector, target: int) -> float:
    top = max(scores)
    return top + math.log(sum(math.exp(x - top) for x in scores)) - scores[target]


def masked_lm_loss(model: Any, states: list[list[Vector]], labels: Tensor) -> float:
    """Mean cross-entropy over the tokens with a label other than -100."""
    found = [
        cross_entropy(logits(model, states[i][j]), int(label))
        for i, row in enumerate(labels)
        for j, label in enumerate(row)
        if label != -100
    ]
    return sum(found) / len(found)


def two_streams(
    block: Any, queries: list[Vector], context: list[Vector], seen: list[list[bool]]
) -> list[Vector]:
    """Row i attends to the context that it sees; the residual connection is the query."""
    out = []
    for query, row in zip(queries, seen, strict=True):
        visible = [state for state, shown in zip(context, row, strict=True) if shown]
        taken = linear(block.output, attention(block, query, visible))
        middle = norm(block.attention_norm, add(query, taken))
        wide = [gelu(x) for x in linear(block.up, middle)]
        out.append(norm(block.norm, add(middle, linear(block.down, wide))))
    return out
