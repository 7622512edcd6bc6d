"""The retriever of each kind of model."""

from collections.abc import Mapping
from dataclasses import replace

from bench.evaluation.bm25_retriever import BM25Retriever
from bench.evaluation.fusion_retriever import FusionRetriever
from bench.evaluation.rerank_retriever import RerankRetriever
from bench.evaluation.retriever import Resources, Retriever
from bench.evaluation.system_retriever import SystemRetriever
from bench.evaluation.vector_retriever import ReadyVectorsRetriever, VectorRetriever
from retrievers.encoders.objects import make_object, open_object
from retrievers.encoders.search_system import is_search
from retrievers.encoders.transformer import SharedNetworks
from retrievers.models.kinds import KindName
from retrievers.models.resolve import Model

RETRIEVERS: Mapping[KindName, type[Retriever]] = {
    "transformer": VectorRetriever,
    "hashing": VectorRetriever,
    "python": VectorRetriever,
    "endpoint": VectorRetriever,
    "vectors": ReadyVectorsRetriever,
    "bm25": BM25Retriever,
    "system": SystemRetriever,
    "fusion": FusionRetriever,
    "rerank": RerankRetriever,
}


def open_retriever(
    model: Model, resources: Resources, networks: SharedNetworks | None = None
) -> Retriever:
    """Open what ranks with a resolved model, by its kind. Weights are read at the first text.

    Args:
        model: resolved model.
        resources: store, device and memory of its searches.
        networks: networks shared by adapters of the same base.

    Raises:
        BenchError: the model cannot be used.
    """
    if model.recipe.encoder:  # code of the user, of which only the object tells what it does
        made = make_object(model.card.encoder, resources.device)
        if is_search(made):
            return SystemRetriever.of_file(model, made, resources)
        encoder = open_object(model, resources.device, made)
        return VectorRetriever.of(model, encoder, resources)
    members = tuple(open_retriever(each, resources, networks) for each in model.members)
    retriever = RETRIEVERS[model.recipe.kind].open(model, resources, networks)
    return replace(retriever, members=members).identify_members() if members else retriever
