"""The use case ``cutoff``: find the score below which to return nothing.

Each collection is searched deep enough to take the relevant documents out of every ranking. What is
left is the ranking of a query without an answer.

A cut-off c keeps the documents that score c or more. The loss of a query is the share of its
relevant documents, among those that a search returns, which score less. All cut-offs are tested
from low to high, each at the full level, until the first whose mean loss may exceed ``1 - keep``
(learn then test: Angelopoulos et al., 2021, https://arxiv.org/abs/2110.01052). The sequence is
fixed: it contains every number. Between two scores of relevant documents no loss changes, so these
scores are all that must be computed. As losses rise with the cut-off, and bounds with losses, the
last one that passes is found by bisection. ``docs/explanation/cutoff.md`` has the argument.
"""

import math
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import msgspec
import numpy as np

from bench.comparing.comparison import find_run_file, score_run_file
from bench.comparing.slices import find_slices, slice_rows
from bench.comparing.statistics import SAME_MEAN
from bench.cutoffs.cutoff_record import (
    CollectionCutoff,
    CutoffPoint,
    ModelCutoff,
    ScoreCutoff,
    Share,
    SliceCutoff,
)
from bench.evaluation.judging import judge, lowest_relevant_grade
from bench.evaluation.pipeline import OpenDataset, evaluate
from bench.evaluation.retriever import EvaluationOptions, Retriever
from bench.evaluation.runs import Run
from bench.evaluation.scoring import relevance_matrix
from bench.gate.decision import DRAWS, LEVEL, draw_means, queries_needed, upper_bound
from bench.requests.deciding import CutoffRequest
from bench.runner.run import run_file_name
from bench.runner.workspace import Workspace, load_models, open_workspace, refuse_duplicates
from datasets_cfg.readers.files import TextReader
from datasets_cfg.readers.reader import Qrels, Queries
from foundation.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from foundation.errors import BenchError, format_count

CURVE_POINTS = 41

MeanBound = Callable[[Float64Array], float]


def cutoff(request: CutoffRequest) -> ScoreCutoff:
    """Find the highest cut-off that keeps enough relevant documents on each collection.

    Raises:
        BenchError: wrong input, no relevant document is found, or a run file has no scores or too
            few documents.
    """
    if request.keep in (0, 1):
        problem = {0: "every cut-off keeps a share of 0", 1: "no number of queries proves 1"}
        raise BenchError(problem[int(request.keep)], "Use --keep .95.")
    if request.by and request.like_cutoff:
        raise BenchError("--like-cutoff has one cut-off for all slices", "Leave out --by.")
    old_name, old_cutoff = _read_like(request.like_cutoff)
    workspace = open_workspace(request)
    names = workspace.expand_names(request.on)
    source, *others = _open_sources(workspace, request, old_name, names)
    texts = _read_texts(request.without_answer)
    with_corpus = not all(isinstance(one, Path) for one in (source, *others))
    opened = [workspace.open(name, request.split, with_corpus=with_corpus) for name in names]
    refuse_duplicates(each.name for each in opened)
    searches = [Search(workspace, each, request.at, texts) for each in opened]
    report = ScoreCutoff(
        model=_name(source),
        at=request.at,
        keep=None if others else request.keep,
        queries={one.name: one.queries for one in searches},
        needed=None if others else least_queries(request.keep),
    )
    if not report.enough_queries:
        return report
    found = [one.run(source) for one in searches]
    if request.by:
        return _choose_by_slice(report, request, searches, found)
    parts = [one.ranked.answered for one in found]
    queries = {one.name: len(part) for one, part in zip(found, parts, strict=True)}
    report = msgspec.structs.replace(report, queries=queries, searched=True)
    keep: list[float] = [request.keep] * len(found)
    estimate: MeanBound = lower_bound
    for other in others:
        before = tuple(one.run(other).describe(old_cutoff) for one in searches)
        like = ModelCutoff(_name(other), old_cutoff, before)
        report = msgspec.structs.replace(report, like=like)
        keep, estimate = [one.kept for one in before], _mean
    best = choose_cutoff(parts, keep, estimate)
    if best is None:
        return report
    done = [one.describe(best, share) for one, share in zip(found, keep, strict=True)]
    return msgspec.structs.replace(report, cutoff=best, collections=tuple(done))


def _choose_by_slice(
    report: ScoreCutoff,
    request: CutoffRequest,
    searches: Sequence["Search"],
    found: Sequence["Found"],
) -> ScoreCutoff:
    """Choose a cut-off for each slice, at a level that is corrected for their number."""
    slicing = find_slices(request.by, {one.name: one.opened.dataset for one in searches})
    for warning in slicing.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    parts = {
        (one.name, label): one.take(rows, label)
        for one in found
        if one.name in slicing.labels
        for label, rows in slice_rows(one.query_ids, slicing.labels[one.name])
    }
    level = 1 - (1 - LEVEL) / len(parts)
    slices = []
    for (name, value), part in parts.items():
        answered = part.ranked.answered
        estimate = partial(lower_bound, level=level)
        best = choose_cutoff([answered], [request.keep], estimate) if len(answered) else None
        done = None if best is None else part.describe(best, request.keep, level)
        slices.append(
            SliceCutoff(name=name, value=value, queries=len(answered), cutoff=best, done=done)
        )
    return msgspec.structs.replace(
        report,
        queries={one.name: len(one.ranked.answered) for one in found},
        searched=True,
        needed=least_queries(request.keep, level),
        by=request.by,
        slices=tuple(slices),
    )


Source = Retriever | Path  # a run file


def _read_like(typed: str | None) -> tuple[str, float]:
    """Return the model and its cut-off in ``MODEL=SCORE``, or ("", 0) for None."""
    if typed is None:
        return "", 0.0
    model, _, score = typed.rpartition("=")
    try:
        value = float(score)
    except ValueError:
        value = math.nan
    if not model or not math.isfinite(value):
        problem = f"--like-cutoff {typed} is not MODEL=SCORE"
        raise BenchError(problem, "Write it like --like-cutoff minilm=.38.")
    return model, value


def _open_sources(
    workspace: Workspace, request: CutoffRequest, old: str, names: Sequence[str]
) -> list[Source]:
    """Load the model of a request, and ``old`` unless it is "". Run files are only found."""
    files = {request.model: find_run_file(request.model, request.typed_settings())}
    if old:
        files.setdefault(old, find_run_file(old, []))
    for path in filter(None, files.values()):
        if len(names) > 1:
            problem = f"{path} is a run of one collection, not of {', '.join(names)}"
            raise BenchError(problem, "Name one with --on.")
        if request.without_answer:
            problem = f"--without-answer needs a model that searches, and {path} is a run file"
            raise BenchError(problem, "Leave it out.")
    loaded = load_models(workspace, [name for name in files if not files[name]], request)
    models = iter(loaded)
    sources: dict[str, Source] = {name: path or next(models) for name, path in files.items()}
    return [sources[request.model], *([sources[old]] if old else [])]


def _name(source: Source) -> str:
    """Return the name of a model or run file."""
    return run_file_name(source) if isinstance(source, Path) else source.name


def _read_texts(path: Path | None) -> tuple[str, ...]:
    """Return the distinct queries in a file."""
    if path is None:
        return ()
    texts = dict.fromkeys(one.text.strip() for one in TextReader(path, "").documents())
    if not texts:
        raise BenchError(f"{path} has no queries", "Write one query a line.")
    return tuple(texts)


@dataclass(frozen=True)
class ScoredRankings:
    """Rankings of queries, as scores and relevance.

    Attributes:
        scores: float32 ``(queries, depth)``, falling; -inf beyond the end of a ranking.
        relevant: bool ``(queries, depth)``.
        at: number of documents that a search returns.
    """

    scores: Float32Array
    relevant: BoolArray
    at: int

    @cached_property
    def answered(self) -> "ScoredRankings":
        """Queries for which a relevant document is returned."""
        return self.take(np.flatnonzero(self.relevant[:, : self.at].any(axis=1)))

    def take(self, rows: Int64Array) -> "ScoredRankings":
        """Return the rankings of the queries in these rows."""
        return ScoredRankings(self.scores[rows], self.relevant[rows], self.at)

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def has_only_ranks(self) -> bool:
        """True if scores fall from rank to rank in the same way for all queries."""
        longest = self.scores.max(axis=0, initial=-np.inf)
        follows = (self.scores == longest) | np.isneginf(self.scores)
        return len(longest) > 1 and bool(follows.all() and (np.diff(longest) < 0).all())

    @cached_property
    def relevant_scores(self) -> Float32Array:
        """Distinct scores of returned relevant documents, rising."""
        return np.unique(self.scores[:, : self.at][self.relevant[:, : self.at]])

    def kept(self, cutoff: float) -> Float64Array:
        """Return the share of each query's returned relevant documents that score ``cutoff``.

        The result is float64 ``(queries,)``, for queries that all have such a document.
        """
        returned, wanted = self.scores[:, : self.at], self.relevant[:, : self.at]
        shares: Float64Array = (wanted & (returned >= cutoff)).sum(axis=1) / wanted.sum(axis=1)
        return shares

    @cached_property
    def best_relevant(self) -> Float32Array:
        """Highest score of a relevant document of each query, or -inf, float32 ``(queries,)``."""
        return _row_maximum(np.where(self.relevant, self.scores, -np.inf))

    @cached_property
    def best_other(self) -> Float32Array:
        """Highest score of each query after its relevant documents were taken out.

        It is -inf if nothing is left, and NaN if more than that was cut off: if nothing is left of
        one of the longest rankings. float32 ``(queries,)``.
        """
        best = _row_maximum(np.where(self.relevant, -np.inf, self.scores))
        cut = self.relevant.all(axis=1) & (self.scores.shape[1] > 0)
        return np.where(cut, np.nan, best).astype(np.float32)


def _row_maximum(scores: Float32Array) -> Float32Array:
    """Return the maximum of each row, or -inf for rows of no columns."""
    best: Float32Array = scores.max(axis=1, initial=-np.inf)
    return best


def lower_bound(kept: Float64Array, draws: int = DRAWS, level: float = LEVEL) -> float:
    """Return the lower bound of the mean of shares ``kept``, float64 ``(queries,)``."""
    return 1 - upper_bound([draw_means(1 - kept, draws)], level=level)


def lower_bounds(kept: Float64Array) -> list[float]:
    """Return the lower bound for each column of ``kept``, float64 ``(queries, cut-offs)``."""
    drawn = draw_means(1 - kept)
    return [1 - upper_bound([replace(drawn, means=means)]) for means in drawn.means.T]


def least_queries(keep: float, level: float = LEVEL) -> int | None:
    """Return how many queries that lose nothing prove ``keep``; None if ten million do not."""
    return queries_needed([draw_means(np.zeros(1))], [1.0], 1 - keep, level)


def choose_cutoff(
    parts: Sequence[ScoredRankings], keep: Sequence[float], estimate: MeanBound = lower_bound
) -> float | None:
    """Return the highest cut-off that keeps enough on each part, or None if none does.

    Args:
        parts: rankings with a relevant document among those that are returned.
        keep: share to keep of each part.
        estimate: of the mean of kept shares. It never falls when one of them rises.
    """
    cutoffs = np.unique(np.concatenate([part.relevant_scores for part in parts]))

    def fails(cutoff: np.float32) -> bool:
        pairs = zip(parts, keep, strict=True)
        return any(estimate(part.kept(float(cutoff))) < share for part, share in pairs)

    passed = bisect_left(cutoffs, True, key=fails)
    return float(cutoffs[passed - 1]) if passed else None


@dataclass(frozen=True)
class Search:
    """Searches of the queries of one collection, and of ``texts`` without an answer in it."""

    workspace: Workspace
    opened: OpenDataset
    at: int
    texts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the collection."""
        return self.opened.name

    @cached_property
    def grade(self) -> int:
        """Lowest relevant grade."""
        return lowest_relevant_grade(self.opened.dataset)

    @cached_property
    def relevant(self) -> Counter[str]:
        """Number of relevant documents of each query that has any."""
        judged = self.opened.dataset.qrels
        return Counter(query for query, _, grade in judged if grade >= self.grade)

    @property
    def queries(self) -> int:
        """Number of queries that may have an answer."""
        dataset = self.opened.dataset
        return len(self.relevant if dataset.answers is None else dataset.queries)

    def run(self, source: Source) -> "Found":
        """Search deep enough to take all relevant documents out of each ranking."""
        dataset = self.opened.dataset
        # Where answer strings decide, nobody knows how many documents have one.
        most = max(self.relevant.values()) if self.relevant else dataset.metadata.depth
        given = None
        if isinstance(source, Path):
            measure = f"Success@{self.at}"
            run = score_run_file(source, self.opened, measure, self.at + most).run
        else:
            run = self._search(source, self.opened, self.at + most)
            given = self._search_texts(source) if self.texts else None
        ids = None if dataset.answers is None else dataset.queries.ids
        judged = judge(dataset, run)
        matrices = relevance_matrix(run, judged, self.grade, ids)
        ranked = ScoredRankings(*matrices, self.at)
        self._check(ranked, source)
        return Found(self.name, ranked, given, ids or judged.queries())

    def _search(self, model: Retriever, opened: OpenDataset, depth: int) -> Run:
        """Return the ranking of a model."""
        measures = (f"Success@{min(self.at, depth)}",)
        options = EvaluationOptions(depth=depth, measures=measures, recall_queries=0)
        return evaluate(self.workspace.prepare(opened, model, options)).run

    def _search_texts(self, model: Retriever) -> Float32Array:
        """Return the best score of each text, or -inf, float32 ``(texts,)``."""
        dataset = self.opened.dataset
        ids = tuple(f"without answer {number}" for number in range(len(self.texts)))
        document = dataset.corpus.ids[0].as_py()
        judged = Qrels(ids, (document,) * len(ids), np.zeros(len(ids), dtype=np.int32))
        queries = Queries(ids, self.texts)
        asked = replace(dataset, queries=queries, qrels=judged, answers=None, excluded={})
        run = self._search(model, replace(self.opened, dataset=asked), 1)
        scores, _ = relevance_matrix(run, judged, self.grade)
        return _row_maximum(scores)

    def _check(self, ranked: ScoredRankings, source: Source) -> None:
        """Raise if a ranking has no scores to cut, or too few documents, or none that counts."""
        name, depth = _name(source), ranked.scores.shape[1]
        if isinstance(source, Path) and depth < self.at:
            documents = format_count(depth, "document", "documents")
            problem = f"{source} has at most {documents} for a query, and {self.at} count"
            raise BenchError(problem, f"Use --at {depth}, or a deeper run.")
        if not len(ranked.answered):
            problem = f"{name} has no relevant document of {self.name} among the first {self.at}"
            raise BenchError(problem, "Use a higher --at, or check --on and --split.")
        if ranked.has_only_ranks:
            problem = f"{name} has ranks instead of scores: they are the same for all queries"
            raise BenchError(problem, "Use a run file with the scores of the search.")


@dataclass(frozen=True)
class Found:
    """Rankings of the queries of one collection.

    ``given`` are the best scores of queries that are known to have no answer, or None.
    ``query_ids`` are the queries of the rankings.
    """

    name: str
    ranked: ScoredRankings
    given: Float32Array | None
    query_ids: tuple[str, ...]

    def take(self, rows: Sequence[int], label: str) -> "Found":
        """Return the rankings of a slice."""
        ids = tuple(self.query_ids[row] for row in rows)
        taken = self.ranked.take(np.array(rows))
        return replace(self, name=f"{label} ({self.name})", ranked=taken, query_ids=ids)

    def describe(
        self, cutoff: float, keep: float | None = None, level: float = LEVEL
    ) -> CollectionCutoff:
        """Return what a cut-off does. It should keep the share ``keep``, or what it keeps."""
        answered, others = self.ranked.answered, self.ranked.best_other
        known = others[~np.isnan(others)]
        kept = answered.kept(cutoff)
        return CollectionCutoff(
            name=self.name,
            queries=len(answered),
            keep=float(kept.mean()) if keep is None else keep,
            kept=float(kept.mean()),
            proved=lower_bound(kept, level=level),
            overlap=float((answered.best_other > answered.best_relevant).mean()),
            silent=_share(known < cutoff) if len(known) else None,
            too_short=len(others) - len(known),
            silent_given=None if self.given is None else _share(self.given < cutoff),
            curve=self._curve(known) if len(known) else (),
        )

    def _curve(self, others: Float32Array) -> tuple[CutoffPoint, ...]:
        """Return points at quantiles of the scores, from low to high."""
        answered = self.ranked.answered
        scores = np.concatenate([answered.relevant_scores, others[np.isfinite(others)]])
        levels = np.linspace(0, 1, CURVE_POINTS)
        cutoffs = np.unique(np.quantile(scores, levels, method="inverted_cdf"))
        kept = np.column_stack([answered.kept(one) for one in cutoffs])
        rows = zip(cutoffs, kept.mean(axis=0), lower_bounds(kept), strict=True)
        return tuple(
            CutoffPoint(float(one), float(mean), bound, float((others >= one).mean()))
            for one, mean, bound in rows
        )


def _mean(kept: Float64Array) -> float:
    """Return the mean of shares, above any rounding."""
    return float(kept.mean()) + SAME_MEAN


def _share(matches: BoolArray) -> Share:
    """Return the share of queries that match, with its interval."""
    from scipy.stats import binomtest  # late: other commands do without it

    limits = binomtest(int(matches.sum()), len(matches)).proportion_ci()
    return Share(
        float(matches.mean()),
        low=float(limits.low),
        high=float(limits.high),
        queries=len(matches),
    )
