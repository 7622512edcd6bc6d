"""The collection behind a result, where it lies on this machine: texts for people to read."""

from dataclasses import replace

from bench.results.result import Protocol
from bench.workspace import Workspace
from datasets_cfg.dataset import Dataset
from datasets_cfg.remembered import open_remembered
from foundation.errors import BenchError


def at_hand(protocol: Protocol, space: Workspace) -> Dataset | str:
    """The collection that was evaluated, with the same queries and judgements; else why not.

    Looked for by its name, then where a collection of this content was. Nothing is downloaded.
    """
    try:
        named = replace(space, offline=True).dataset(protocol.collection, protocol.split or None)
    except BenchError:
        of_name: Dataset | str = (
            f"{protocol.collection} is not on this machine (--data-dir says where to look)"
        )
    else:
        of_name = if_evaluated(named, protocol)
    if isinstance(of_name, Dataset):
        return of_name
    hashes = (protocol.queries_sha256, protocol.qrels_sha256)
    return open_remembered(*hashes, protocol.split, space.cache_dir) or of_name


def if_evaluated(dataset: Dataset, protocol: Protocol) -> Dataset | str:
    """A collection if it is the one that was evaluated; else that it is not."""
    here = (dataset.queries_sha256, dataset.qrels_sha256)
    if here != (protocol.queries_sha256, protocol.qrels_sha256):
        return f"the {protocol.collection} on this machine is not the one that was evaluated"
    return dataset
