"""Route adapters by training queries of collections: names in, a model that ``run`` takes out."""

from collections.abc import Sequence
from pathlib import Path

from bench.training.leaks import seen
from bench.training.training_sets import Split
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.adapters.routing import route_adapters
from retrievers.encoders.routed import learn_router
from retrievers.models.model import Model


def route_on(
    base: Model, folders: Sequence[Path], out: Path, training: Sequence[Dataset], by_query: bool
) -> None:
    """Write adapters that queries, or collections, choose among.

    Args:
        training: for each adapter the collection of its domain, opened with the split whose
            queries are its texts.
        by_query: whether each query chooses; else its collection does.

    Raises:
        BenchError: not one collection for each adapter, one without such queries, or see
            `retrievers.adapters.routing.route_adapters`.
    """
    if len(training) != len(folders):
        raise BenchError(
            f"{len(training)} collections for {len(folders)} adapters",
            "name one for each, in their order: --on A B",
        )
    domains = [seen([dataset.name]) for dataset in training]
    router = None
    if by_query:
        texts = [Split.of(dataset).queries.texts for dataset in training]
        router = learn_router(base, texts)
    route_adapters(base, folders, out, domains, router)
