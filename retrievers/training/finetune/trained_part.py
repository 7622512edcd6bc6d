"""Parts of an encoder that are fine-tuned alone: biases, or the last layers.

``biases``: BitFit, Ben Zaken, Ravfogel and Goldberg, "BitFit: Simple Parameter-efficient
Fine-tuning for Transformer-based Masked Language-models", ACL 2022,
https://arxiv.org/abs/2106.10199. Of every layer z = W x + b and every LayerNorm g ⊙ x + b, the b
are trained and all else is frozen.

``last-layers``: Lee, Tang and Lin, "What Would Elsa Do? Freezing Layers During Transformer
Fine-Tuning", 2019, https://arxiv.org/abs/1911.03090. Of L layers, those after L − n are trained;
the embeddings and the layers below are frozen.
"""

from typing import TYPE_CHECKING

from foundation.errors import BenchError
from foundation.records import Record
from retrievers.training.engine.optimizer import Above0, Count

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Biases(Record, kw_only=True, tag_field="name", tag="biases"):
    """All biases, and nothing else.

    Attributes:
        lr: learning rate instead of the optimizer's: so few weights want a higher one.
    """

    lr: Above0 | None = None


class LastLayers(Record, kw_only=True, tag_field="name", tag="last-layers"):
    """The last layers of the encoder.

    Attributes:
        layers: how many.
        lr: see `Biases`.
    """

    layers: Count
    lr: Above0 | None = None


Part = Biases | LastLayers


def train_only(network: "PreTrainedModel", part: Part) -> None:
    """Freeze what is not of the part.

    Raises:
        BenchError: the part has more layers than the encoder.
    """
    if isinstance(part, Biases):
        trained = {name for name, _ in network.named_parameters() if name.endswith(".bias")}
    else:
        trained = _of_last_layers(network, part.layers)
    for name, weight in network.named_parameters():
        weight.requires_grad_(name in trained)


def _of_last_layers(network: "PreTrainedModel", count: int) -> set[str]:
    """Names of the parameters of the last layers."""
    from torch.nn import ModuleList

    depth = network.config.num_hidden_layers
    if count > depth:
        raise BenchError(
            f"part trains the last {count} layers, and the encoder has {depth}",
            f"part.layers = {depth} or less",
        )
    above = next(
        f"{name}."
        for name, module in network.named_modules()
        if isinstance(module, ModuleList) and len(module) == depth
    )
    kept = tuple(f"{above}{layer}." for layer in range(depth - count, depth))
    return {name for name, _ in network.named_parameters() if name.startswith(kept)}
