"""The collection behind a result, where it lies on this machine: texts for people to read."""

from pathlib import Path

from bench.results.record import Protocol
from datasets_cfg.dataset import Dataset, open_dataset
from datasets_cfg.remembered import open_remembered
from foundation.errors import BenchError


def at_hand(protocol: Protocol, cache_dir: Path, data_dir: Path | None) -> Dataset | str:
    """The collection that was evaluated, with the same queries and judgements; else why not.

    Looked for by its name, then where a collection of this content was. Nothing is downloaded.
    """
    try:
        named = open_dataset(
            protocol.collection,
            cache_dir=cache_dir,
            data_dir=data_dir,
            split=protocol.split or None,
            download=False,
        )
    except BenchError:
        of_name: Dataset | str = (
            f"{protocol.collection} is not on this machine (--data-dir says where to look)"
        )
    else:
        of_name = if_evaluated(named, protocol)
    if isinstance(of_name, Dataset):
        return of_name
    hashes = (protocol.queries_sha256, protocol.qrels_sha256)
    return open_remembered(*hashes, protocol.split, cache_dir) or of_name


def if_evaluated(found: Dataset, protocol: Protocol) -> Dataset | str:
    """A collection if it is the one that was evaluated; else that it is not."""
    here = (found.queries_sha256, found.qrels_sha256)
    if here != (protocol.queries_sha256, protocol.qrels_sha256):
        return f"the {protocol.collection} on this machine is not the one that was evaluated"
    return found
