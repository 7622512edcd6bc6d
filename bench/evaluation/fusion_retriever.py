"""A fusion as a retriever: the rankings of its members become one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.evaluation.index_search import check_memory
from bench.evaluation.judging import apply_protocol
from bench.evaluation.result_record import Timings
from bench.evaluation.retriever import EvaluationOptions, Resources, Retriever, SearchFacts
from bench.evaluation.runs import Run, round_scores
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array, Int64Array
from retrievers.encoders.protocol import Encoder, PhaseTimer
from retrievers.encoders.transformer import SharedNetworks
from retrievers.models.card import STATE, Fusion
from retrievers.models.read_checkpoint import Parameters
from retrievers.models.resolve import Model

ROW_BYTES = 100  # of a document of a member's ranking while it is fused


@dataclass(frozen=True, kw_only=True)
class FusionRetriever(Retriever):
    """Several retrievers, whose rankings are fused. Its members identify it with its settings."""

    @classmethod
    def open(
        cls, model: Model, resources: Resources, networks: SharedNetworks | None = None
    ) -> Self:
        """Return the retriever of a resolved model, still without its members."""
        return cls(model=model, resources=resources)

    @property
    def fusion(self) -> Fusion:
        """How rankings are fused."""
        return self.card.fusion

    def _map(self, change: Callable[[Retriever], Retriever]) -> Self:
        return replace(self, members=tuple(map(change, self.members)))

    def identify_members(self) -> Self:
        """Return this fusion with the fingerprints of its members in its recipe.

        A fingerprint covers the prompts for all datasets. States of systems are put together.
        """
        options = dict(self.recipe.options)
        for number, member in enumerate(self.members, start=1):
            options[f"model_{number}_sha256"] = member.recipe.stateless.fingerprint
        states = [str(member.recipe.options.get(STATE, "")) for member in self.members]
        if any(states):
            options[STATE] = " ".join(states)
        recipe = msgspec.structs.replace(self.recipe, options=options)
        return replace(self, model=replace(self.model, recipe=recipe))

    def configured(self, options: EvaluationOptions, resources: Resources) -> Self:
        """Return this fusion with other resources. No option of a search applies to its members."""
        depth = self.fusion.depth
        own = EvaluationOptions(depth=depth, measures=(f"RR@{depth}",))  # any that fits the depth
        fusion = super().configured(options, resources)
        return fusion._map(lambda member: member.configured(own, resources)).identify_members()

    def for_dataset(self, collection: str) -> Self:
        """Return this fusion with the prompts of ``collection`` in its members."""
        return super().for_dataset(collection)._map(lambda each: each.for_dataset(collection))

    def with_encoder(self, wrap: Callable[[Encoder], Encoder]) -> Self:
        """Return this fusion with wrapped encoders."""
        return self._map(lambda member: member.with_encoder(wrap))

    def parameters(self) -> Parameters | None:
        """Return the sum of the members' parameters, or None if those of one are unknown."""
        counts = [member.parameters() for member in self.members]
        known = [each for each in counts if each is not None]
        if len(known) < len(counts):
            return None
        return Parameters(sum(each.total for each in known), sum(each.adapter for each in known))

    def identified(self, dataset: Dataset, depth: int) -> Self:
        """Return this fusion with the states of the systems among its members."""
        wanted = self.fusion.depth
        return self._map(lambda member: member.identified(dataset, wanted)).identify_members()

    def missing(self, dataset: Dataset) -> int:
        """Return the number of documents of ``dataset`` that the members encode first."""
        return sum(member.missing(dataset) for member in self.members)

    def check(self, dataset: Dataset, depth: int) -> int:
        """Estimate the peak memory of a search in bytes, and raise if it exceeds the limit."""
        most = max(member.check(dataset, self.fusion.depth) for member in self.members)
        ranked = len(dataset.queries) * min(self.fusion.depth, len(dataset.corpus))
        needed = most + ranked * len(self.members) * ROW_BYTES
        return check_memory(self.name, needed, self.resources.max_memory, len(dataset.corpus))

    def search(self, dataset: Dataset, depth: int) -> tuple[Run, SearchFacts]:
        """Return the fused rankings of all queries, with all documents of the members."""
        found = [member.search(dataset, self.fusion.depth) for member in self.members]
        timer = PhaseTimer()
        with timer.phase("search_s"):
            runs = [apply_protocol(run, dataset, self.fusion.depth) for run, _ in found]
            fused = fuse(runs, dataset.queries.ids, self.fusion)
        facts = [own for _, own in found]
        timings = [*(own.timings for own in facts), Timings(search_s=timer.seconds["search_s"])]
        warnings = [
            f"{member.name}: {warning}"
            for member, own in zip(self.members, facts, strict=True)
            for warning in own.preflight.get("warnings", ())
        ]
        preflight = {"warnings": warnings} if warnings else {}
        return fused, SearchFacts(_add(timings), facts[0].device, preflight=preflight)


def _add(timings: Sequence[Timings]) -> Timings:
    """Return the sum of each time and count."""
    total: dict[str, Any] = {"busy_s": {}}
    for one in timings:
        for name, value in msgspec.structs.asdict(one).items():
            if isinstance(value, dict):
                for kind, seconds in value.items():
                    total[name][kind] = total[name].get(kind, 0.0) + seconds
            else:
                total[name] = total.get(name, 0) + value
    return Timings(**total)


def fuse(runs: Sequence[Run], query_ids: Sequence[str], fusion: Fusion) -> Run:
    """Fuse rankings, see `Fusion`. Scores are added in float64.

    Args:
        runs: rankings, of which the best ``fusion.depth`` documents of each query are used.
        query_ids: queries of the result, in its order. Others are left out.
        fusion: method and its settings.

    Raises:
        BenchError: a fused score is not finite as float32.
    """
    number = {query: row for row, query in enumerate(query_ids)}
    names = pa.chunked_array([run.ids for run in runs], pa.large_string()).unique()
    width = max(len(names), 1)
    rows, scores = list[Int64Array](), list[Float64Array]()
    for run in runs:
        queries = np.array([number.get(query, -1) for query in run.query_ids], np.int64)
        lengths = np.diff(run.offsets)
        ranks = np.arange(len(run)) - np.repeat(run.offsets[:-1], lengths) + 1
        queries = np.repeat(queries, lengths)
        used = (queries >= 0) & (ranks <= fusion.depth)
        positions = pc.index_in(run.ids, names).to_numpy().astype(np.int64)
        rows.append(queries[used] * width + positions[run.documents[used]])
        plain = run.scores[used].astype(np.float64)
        scores.append(_normalize(plain, ranks[used], queries[used], len(query_ids), fusion))
    pairs = np.unique(np.concatenate(rows))
    queries, total = pairs // width, np.zeros(len(pairs))
    for weight, own, values in zip(fusion.weights or (1.0,) * len(runs), rows, scores, strict=True):
        lowest = np.zeros(len(query_ids))
        if fusion.method == "weighted":
            lowest = _reduce(np.minimum, values, own // width, len(query_ids))
        added = lowest[queries]
        added[np.searchsorted(pairs, own)] = values
        total += weight * added
    ids = pa.array(query_ids, pa.large_string())
    return Run.from_columns(
        pa.DictionaryArray.from_arrays(pa.array(queries.astype(np.int32)), ids),
        pa.DictionaryArray.from_arrays(pa.array((pairs % width).astype(np.int32)), names),
        round_scores(total),
    )


def _normalize(
    scores: Float64Array, ranks: Int64Array, queries: Int64Array, count: int, fusion: Fusion
) -> Float64Array:
    """Return the scores of one ranking's rows as they are added, float64 ``(n,)``.

    Scores of a query that are all equal become 0 by ``min-max`` and ``z-score``.
    """
    options = fusion.options
    if fusion.method == "rrf":
        return 1 / (float(options["k"]) + ranks)
    if options["normalization"] == "raw":
        return scores
    least = _reduce(np.minimum, scores, queries, count)
    spread = _reduce(np.maximum, scores, queries, count) - least
    base, scale = least, spread.copy()
    if options["normalization"] == "z-score":
        rows = np.maximum(np.bincount(queries, minlength=count), 1)
        base = np.bincount(queries, scores, minlength=count) / rows
        squares = np.bincount(queries, (scores - base[queries]) ** 2, minlength=count)
        scale = np.sqrt(squares / rows)
    scale[spread == 0] = np.inf
    centred: Float64Array = (scores - base[queries]) / scale[queries]
    return centred


def _reduce(
    function: np.ufunc, values: Float64Array, queries: Int64Array, count: int
) -> Float64Array:
    """Return the least or greatest value of each query, float64 ``(count,)``, 0 without any."""
    start = np.inf if function is np.minimum else -np.inf
    found = np.full(count, start)
    function.at(found, queries, values)
    found[~np.isfinite(found)] = 0
    return found
