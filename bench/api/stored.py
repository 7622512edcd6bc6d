"""Stored results as pandas data frames."""

from pathlib import Path

import pandas as pd

from bench.results.find import find_results
from bench.results.load import load
from bench.results.location import Place, place_of
from bench.results.result import Evaluation
from foundation.errors import BenchError


def load_result(path: str | Path) -> Evaluation:
    """Read one result from its folder, or from its ``result.json``; a URL of a store will do.

    Raises:
        BenchError: there is none, or it is damaged or contradicts itself.
    """
    return load(_place(path))


def results(folder: str | Path = "results") -> pd.DataFrame:
    """Read all results below a folder, or below a URL of a store.

    Returns:
        One row for each result and measure, by collection, model and time: ``collection``,
        ``split``, ``model``, ``measure``, ``value`` (the mean, unrounded), ``is_main`` (the
        collection's main measure), ``queries``, ``unanswered``, ``judged_at_10``, ``in_domain``,
        ``official``, ``depth``, ``index`` (``flat`` is exact; "" for BM25 and run files),
        ``time``, ``key`` (equal for equal model, protocol and index) and ``folder``, which
        `load_result` reads.

    Raises:
        BenchError: there is none, or one is damaged or contradicts itself.
    """
    stored = find_results(_place(folder))
    if not stored:
        raise BenchError(f"{folder} holds no results", "name the folder that `run` wrote to")
    frame = pd.DataFrame([row for each in stored for row in _rows(each)])
    frame["time"] = pd.to_datetime(frame["time"], utc=True)
    frame["judged_at_10"] = frame["judged_at_10"].astype(float)  # None where nothing is judged
    order = ["collection", "model", "time", "key"]
    return frame.sort_values(order, kind="stable", ignore_index=True)


def _rows(done: Evaluation) -> list[dict[str, object]]:
    record = done.result
    protocol = record.protocol
    return [
        {
            "collection": protocol.collection,
            "split": protocol.split,
            "model": record.model,
            "measure": measure,
            "value": value,
            "is_main": measure == record.main_measure,
            "queries": record.queries,
            "unanswered": record.unanswered,
            "judged_at_10": record.judged_at_10,
            "in_domain": record.in_domain,
            "official": protocol.official,
            "depth": protocol.depth,
            "index": record.index,
            "time": record.conditions.time,
            "key": record.key,
            "folder": str(done.folder),
        }
        for measure, value in done.measures.items()
    ]


def _place(path: str | Path) -> Place:
    return place_of(path) if isinstance(path, str) else path
