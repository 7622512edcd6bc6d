"""Open the encoder of a resolved model."""

from foundation.errors import BenchError
from retrievers.encoders.endpoint import EndpointEncoder
from retrievers.encoders.protocol import Encoder
from retrievers.encoders.python_object import HashingEncoder, open_third_party
from retrievers.encoders.routed import open_routed_encoder
from retrievers.encoders.transformer import SharedNetworks, TransformerEncoder
from retrievers.models.resolve import Model


def open_encoder(
    model: Model,
    device: str = "auto",
    tokens_per_batch: int | None = None,
    networks: SharedNetworks | None = None,
) -> Encoder:
    """Open the encoder of a resolved model. Weights are loaded at its first call.

    Args:
        model: result of `resolve_model`.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        tokens_per_batch: most tokens of one batch, padding included; None picks by device.
        networks: loaded bases, so that encoders of several adapters share one.

    Raises:
        BenchError: the model has no vectors (BM25), or a third party's class is missing or unfit.
    """
    if model.recipe.kind == "bm25":
        raise BenchError(f"{model.card.name} makes no vectors")
    if model.recipe.encoder:
        return open_third_party(model.recipe, device)
    if model.recipe.kind == "hashing":
        return HashingEncoder(model.recipe)
    if model.recipe.kind == "endpoint":
        return EndpointEncoder(model.recipe, model.card).with_dimension()
    if model.routing is not None:
        return open_routed_encoder(model, device, tokens_per_batch, networks)
    return TransformerEncoder(model, device, tokens_per_batch, networks)
