"""Encoding as one of several workers that share a cache."""

from collections.abc import Iterator

import msgspec

from bench.evaluation.collection_search import encode_documents, run_preflight
from bench.requests.evaluating import WorkRequest
from bench.runner.workspace import load_models, open_workspace


class EncodedCount(msgspec.Struct, frozen=True):
    """Number of texts of a collection that this worker encoded.

    Attributes:
        collection: name of the collection.
        model: name of the model.
        encoded: number of texts.
        documents: number of documents of the collection, whose vectors are all stored now.
    """

    collection: str
    model: str
    encoded: int
    documents: int


def work(request: WorkRequest) -> Iterator[EncodedCount]:
    """Encode until the vectors of all collections are cached, and yield the count of each.

    Raises:
        BenchError: wrong input.
    """
    workspace = open_workspace(request)
    models = load_models(workspace, request.model, request)
    for name in workspace.expand_names(request.names):
        dataset = workspace.dataset(name)
        for model in models:
            encoder = model.for_dataset(dataset.name).require_encoder()
            run_preflight(dataset, encoder, workspace.store)
            stored = encode_documents(dataset, encoder, workspace.store)
            dataset.corpus.check()
            yield EncodedCount(dataset.name, model.name, stored.encoded, len(dataset.corpus))
