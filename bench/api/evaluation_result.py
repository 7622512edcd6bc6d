"""The result of an evaluation: means, a data frame of the values of each query, the ranking."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pandas as pd

from bench.comparing.panels import Entry
from bench.evaluate.pipeline import Evaluation
from bench.evaluate.runs import Run
from bench.results.facts import recipe_facts
from bench.results.location import Place
from bench.results.result import QUERY_ID, Result, Stored
from foundation.arrays import Float64Array

Values = tuple[tuple[str, ...], Mapping[str, Float64Array]]


@dataclass(frozen=True)
class EvaluationResult:
    """One model on one collection.

    Attributes:
        record: with protocol, recipe, timings and conditions.
        folder: where it is stored; None where it is in memory alone.
    """

    record: Result
    folder: Place | None = None
    _scores: Callable[[], Values] = field(kw_only=True, repr=False)
    _run: Callable[[], Run] = field(kw_only=True, repr=False)

    @classmethod
    def of(cls, done: Evaluation) -> "EvaluationResult":
        """The result of an evaluation that is in memory."""
        scores = done.scores.query_ids, done.scores.values
        return cls(done.result, _scores=lambda: scores, _run=lambda: done.run)

    @classmethod
    def stored(cls, stored: Stored) -> "EvaluationResult":
        """The result of a stored evaluation, whose values and ranking are read when asked for."""
        return cls(stored.result, stored.folder, _scores=stored.scores, _run=stored.run)

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.record.model

    @property
    def dataset(self) -> str:
        """Name of the collection."""
        return self.record.protocol.collection

    @property
    def measures(self) -> dict[str, float]:
        """Mean of each measure over all queries of the qrels, unrounded; the main one first."""
        main, means = self.record.main_measure, self.record.measures
        return {main: means[main], **means}

    @property
    def per_query(self) -> pd.DataFrame:
        """Value of each measure for each query: float64, a row for each id of a query.

        Raises:
            BenchError: a record of an older version came without them.
        """
        query_ids, values = self._scores()
        index = pd.Index(query_ids, name=QUERY_ID)
        return pd.DataFrame({name: values[name] for name in self.measures}, index=index)

    @property
    def run(self) -> Run:
        """The ranking of each query.

        Raises:
            BenchError: its file is missing or damaged.
        """
        return self._run()

    @property
    def entry(self) -> Entry:
        """This result as comparisons take it."""
        record = self.record
        recipe = recipe_facts(record)
        where = self._scores, self._run
        return Entry(record.protocol, record.main_measure, record.in_domain, recipe, *where)
