"""Fits of a configuration to vectors and runs that somebody else made, on a sample of texts.

The error of a vector is ``|given - predicted|^2 / |predicted|^2``. Rounding and arithmetic of lower
precision spread its logarithm around a level that is the same for all texts; a few texts may be
anything. So the likelihood is a normal density of the logarithm around the best of a grid of
levels, mixed with a uniform one, times the density of vectors at that distance, which falls with
the distance as in a space of few dimensions. A configuration *fits* if nearly all texts lie within
the spread of a level that int8 can explain.
"""

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, zip_longest
from typing import Any

import numpy as np

from bench.evaluation.runs import Run
from bench.explain.passes import ForwardPasses
from bench.explain.setup import EvaluationSetup, Observation
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array, Float64Array, Int64Array
from foundation.errors import BenchError
from retrievers.encoders.protocol import Encoder
from retrievers.models.card import Role

FLOOR, CEILING = 1e-13, 10.0
SPREAD = 0.6  # standard deviation of the decimal logarithm of errors of one precision
LEVELS = np.arange(-12.0, -1.9, 0.25)  # logarithms of errors, up to the errors of int8 arithmetic
WITHIN = 1.5  # decades above a level that still agree
WORST = -1.2  # logarithm of an error above which nothing agrees: a cosine of 0.97
OUTLIERS = 0.01
FREE_LENGTH = 5.0  # logarithm of what a likelihood loses for a length that a hypothesis chooses
DEGREES = 8  # of freedom; few, since neighbouring dimensions and scores are dependent
SHARE = 0.95  # smallest share of texts, queries or numbers that must agree
ROUGH = -5.2  # logarithm of a typical error that may have another small cause
# The error's logarithm up to which a precision explains it.
PRECISIONS = (("float32", -8.5), ("float16", -6.3), ("bfloat16", -3.4), ("int8", WORST))


@dataclass(frozen=True)
class Fit:
    """Agreement of one configuration with the evidence.

    Attributes:
        likelihood: natural logarithm.
        share: part of the items that agree, from 0 to 1.
        errors: float64 ``(n,)``, one for each text, query or number; smaller is better.
        level: decimal logarithm of the typical error of vectors and runs; None for scores.
    """

    likelihood: float
    share: float
    errors: Float64Array
    level: float | None = None

    @property
    def logarithms(self) -> Float64Array:
        """Decimal logarithms of the errors, float64 ``(n,)``."""
        return np.log10(np.maximum(self.errors, FLOOR))

    @property
    def fits(self) -> bool:
        """True if nearly all items agree."""
        return self.share >= SHARE

    @property
    def is_rough(self) -> bool:
        """True if the typical error is larger than the error of rounding to 16 bits."""
        return self.level is not None and self.level > ROUGH

    def is_within(self, precision: str) -> bool:
        """Return whether each vector, or each score of a run, agrees within such rounding.

        Int8 is too coarse to tell: deviations are as close.
        """
        is_close = self.level is not None and self.level <= dict(PRECISIONS)[precision]
        return is_close and self.share == 1.0 and precision != "int8"

    @property
    def precision(self) -> str:
        """The precision whose rounding or arithmetic gives such errors, or "" if none does."""
        if self.level is None:
            return ""
        return next((name for name, most in PRECISIONS if self.level <= most), "")

    def beats(self, other: "Fit") -> bool:
        """True if this is closer on significantly more of the items on which the two differ."""
        from scipy.stats import binomtest  # late: other commands do without it

        gains = other.logarithms - self.logarithms
        closer, farther = int((gains > 0.1).sum()), int((gains < -0.1).sum())
        if not closer or self.likelihood - other.likelihood < 3.0:
            return False
        least = 0.5 if self.level is None or not other.fits else 0.8
        enough = binomtest(closer, closer + farther, least, alternative="greater").pvalue < 0.05
        return enough or farther == 0

    def equals(self, other: "Fit") -> bool:
        """True if the evidence cannot tell two configurations apart."""
        ours, others = self.logarithms, other.logarithms
        both_tiny = np.maximum(ours, others) < -9
        return bool(np.all((np.abs(ours - others) < 0.01) | both_tiny))


def combine_fits(fits: list[Fit]) -> Fit:
    """Return the fit to several kinds of evidence at once, with the worst of their shares."""
    levels = [fit.level for fit in fits if fit.level is not None]
    likelihood, share = sum(fit.likelihood for fit in fits), min(fit.share for fit in fits)
    errors = np.concatenate([fit.errors for fit in fits])
    return Fit(likelihood, share, errors, max(levels, default=None))


def noise_fit(errors: Float64Array) -> Fit:
    """Return the fit of relative squared errors, float64 ``(n,)``, under the noise model."""
    logs = np.log10(np.clip(errors, FLOOR, CEILING))
    width = np.log10(CEILING) - np.log10(FLOOR)
    deviations = (logs[:, None] - LEVELS) / SPREAD
    normal = np.exp(-0.5 * deviations**2) / (SPREAD * np.sqrt(2 * np.pi))
    sums = np.log((1 - OUTLIERS) * normal + OUTLIERS / width).sum(axis=0)
    best = int(sums.argmax())
    share = float((logs <= min(LEVELS[best] + WITHIN, WORST)).mean())
    density = -0.5 * DEGREES * np.log(10.0) * logs.sum()
    return Fit(float(sums[best] + density), share, errors, float(np.median(logs)))


def vector_errors(given: Float32Array, predicted: Float32Array) -> Float64Array:
    """Return the relative squared error of each vector, float64 ``(n,)``.

    The error of vectors of another dimension is 10. Whole numbers, as quantised vectors are, are
    first brought to the predicted scale, dimension by dimension.

    Args:
        given: ``(n, dim)`` of any number type.
        predicted: float32 ``(n, dim)``.
    """
    if given.shape != predicted.shape:
        return np.full(len(predicted), CEILING)
    compared, target = given.astype(np.float64), predicted.astype(np.float64)
    if np.issubdtype(given.dtype, np.integer):
        if len(np.unique(given)) <= 2:
            compared = np.where(compared > 0, 1.0, -1.0)
        else:
            return _code_errors(compared, target)
    squares = np.maximum((target**2).sum(axis=1), FLOOR)
    errors: Float64Array = ((compared - target) ** 2).sum(axis=1) / squares
    return errors


def _code_errors(codes: Float64Array, target: Float64Array) -> Float64Array:
    """Return how far codes are from a linear function of the target in each dimension."""
    codes, centred = codes - codes.mean(axis=0), target - target.mean(axis=0)
    slopes = (centred * codes).sum(axis=0) / np.maximum((centred**2).sum(axis=0), FLOOR)
    squares = max(float((codes**2).sum(axis=1).mean()), FLOOR)
    errors: Float64Array = ((codes - centred * slopes) ** 2).sum(axis=1) / squares
    return errors


def score_errors(
    given: Float64Array, predicted: Float64Array, queries: Any, ranks_only: bool
) -> Float64Array:
    """Return the error of each query's scores relative to their spread, float64 ``(q,)``.

    Given scores may be a linear function of predicted ones, the same for all queries.

    Args:
        given, predicted: float64 ``(n,)``, scores of pairs of a query and a document.
        queries: int64 ``(n,)``, number of each pair's query, from 0 on without gaps.
        ranks_only: compare ranks within a query, for runs whose scores are only ranks.
    """
    if ranks_only:
        import pandas as pd  # late: `list` must answer without it

        ranks = pd.DataFrame([given, predicted]).T.groupby(queries).rank(method="first")
        given, predicted = ranks.to_numpy().T
    spread = given.std()
    slope = float(((given - given.mean()) * (predicted - predicted.mean())).mean())
    slope /= max(float(predicted.var()), np.finfo(np.float64).tiny)
    if spread == 0 or slope <= 0:
        return np.full(int(queries.max()) + 1, CEILING)
    fitted = given.mean() + slope * (predicted - predicted.mean())
    counts = np.bincount(queries)
    squares = np.bincount(queries, weights=(given - fitted) ** 2).astype(np.float64)
    relative: Float64Array = squares / counts / spread**2
    return relative


def value_fit(given: Float64Array, predicted: Float64Array, tolerances: Float64Array) -> Fit:
    """Return the fit of scores, each of which agrees within its tolerance. All are ``(n,)``."""
    errors = np.abs(given - predicted) / tolerances
    agree = errors <= 1 + 1e-9
    # Mostly anywhere within the tolerance; else Laplace with a scale of 0.05.
    elsewhere = 0.02 * 10 * np.exp(-np.abs(given - predicted) / 0.05)
    density = np.where(agree, 0.98 / (2 * tolerances), 0.0) + elsewhere
    return Fit(float(np.log(density).sum()), float(agree.mean()), np.maximum(errors, 1.0))


DOCUMENTS, QUERIES = 192, 48  # in the sample of vectors
PROBED: dict[Role, int] = {"document": 12, "query": 6}  # on which every hypothesis is tried
RUN_QUERIES, RUN_DOCUMENTS, PROBE_RUN = 24, 10, 4
LOOKED_AT = 2_000  # documents among which long ones and ones with accents are looked for
RELATED = 0.5  # correlation of similarities, above which two models encode the same texts
OTHER = "--checkpoint OTHER, if you have it"


class SetupEvidence(ABC):
    """Something that was made with an unknown configuration.

    Attributes:
        name: label for reports.
        needs_collection: whether the whole collection is encoded, not only a sample.
        notes: differences that it shows without a search.
    """

    name: str
    needs_collection: bool = False
    notes: Sequence[Observation] = ()

    @abstractmethod
    def fit(self, setup: EvaluationSetup, probe: bool) -> Fit:
        """Return how well a configuration explains it, for a ``probe`` on a few items only."""

    def detail(self, setup: EvaluationSetup) -> str:
        """Return a remark about a configuration that fits, or "" if there is none."""
        return ""

    def observe(self, setup: EvaluationSetup) -> list[Observation]:
        """Return remarks about the evidence if nothing explains how it differs from ``setup``."""
        return []


@dataclass(frozen=True)
class Texts:
    """Texts of one role in parallel lists, the most telling first. Titles of queries are ""."""

    ids: Sequence[str]
    titles: Sequence[str]
    texts: Sequence[str]


def choose_documents(corpus: Corpus, ids: Sequence[str], count: int = DOCUMENTS) -> Texts:
    """Choose documents on which configurations differ: alternately any, long ones and ones with
    accents.

    ``ids`` that the corpus lacks are ignored.
    """
    rng = np.random.default_rng(0)
    rows = np.unique(corpus.rows_of(ids))
    rows = rng.permutation(rows[rows >= 0])[:LOOKED_AT]
    titles, texts = corpus.documents_at(rows)
    lengths = np.array([len(title) + len(text) for title, text in zip(titles, texts, strict=True)])
    plain = [unicodedata.is_normalized("NFD", text) for text in texts]
    accented = np.flatnonzero(np.logical_not(plain)).tolist()
    chosen = _alternate([list(range(len(rows))), np.argsort(-lengths).tolist(), accented], count)
    return Texts(corpus.ids.take(rows[chosen]).to_pylist(), *corpus.documents_at(rows[chosen]))


def choose_queries(dataset: Dataset, ids: Sequence[str], count: int = QUERIES) -> Texts:
    """Choose queries, alternately any and long ones. ``ids`` that the dataset lacks are ignored."""
    wanted = set(ids)
    known = [(id_, text) for id_, text in dataset.queries.by_id.items() if id_ in wanted]
    order = np.random.default_rng(0).permutation(len(known))
    lengths = np.array([len(text) for _, text in known])
    chosen = _alternate([order.tolist(), np.argsort(-lengths).tolist()], count)
    texts = [known[place][1] for place in chosen]
    return Texts([known[place][0] for place in chosen], [""] * len(texts), texts)


def _alternate(lists: Sequence[Sequence[int]], count: int) -> list[int]:
    """Return the first of each list, then the second of each, without repeats."""
    mixed = dict.fromkeys(chain.from_iterable(zip_longest(*lists)))
    return [place for place in mixed if place is not None][:count]


@dataclass(frozen=True)
class GivenVectors:
    """Vectors of texts of one role, from a file or a server.

    Attributes:
        texts: a sample.
        all_vectors: ``(m, dim)``, float32, or whole numbers as they are. The sample's are looked
            for among them if the order is in doubt.
        rows: int64 ``(n,)``, of the sample in ``all_vectors``.
    """

    texts: Texts
    all_vectors: Float32Array
    rows: Int64Array

    @property
    def vectors(self) -> Float32Array:
        """Vectors of the sample, ``(n, dim)``."""
        return self.all_vectors[self.rows]


def encode_texts(encoder: Encoder, role: Role, texts: Texts, part: slice) -> Float32Array:
    """Return the vectors of ``part`` of the texts, float32 ``(n, dim)``."""
    if role == "query":
        return encoder.encode_queries(texts.texts[part])
    return encoder.encode_documents(texts.titles[part], texts.texts[part])


@dataclass(frozen=True)
class VectorEvidence(SetupEvidence):
    """Vectors of documents, queries or both."""

    passes: ForwardPasses
    given: dict[Role, GivenVectors]
    name: str = "vectors"

    def fit(self, setup: EvaluationSetup, probe: bool) -> Fit:
        fit = noise_fit(np.concatenate([self._errors(setup, role, probe) for role in self.given]))
        if setup.any_length:
            fit = replace(fit, likelihood=fit.likelihood - FREE_LENGTH * len(fit.errors))
        return fit

    def observe(self, setup: EvaluationSetup) -> list[Observation]:
        """Return whether texts that are similar here have similar vectors in the evidence."""
        role, given = next(iter(self.given.items()))
        ours = self._predict(setup, role, slice(None))
        above = np.triu_indices(len(ours), 1)
        similar = [np.corrcoef(each - each.mean(axis=0))[above] for each in (ours, given.vectors)]
        related = float(np.corrcoef(*similar)[0, 1])
        name = f"similar texts have similar vectors (correlation {related:.2f}), as with"
        return [Observation(f"{name} another checkpoint", OTHER)] if related > RELATED else []

    def _errors(self, setup: EvaluationSetup, role: Role, probe: bool) -> Float64Array:
        given, part = self.given[role], slice(PROBED[role] if probe else None)
        predicted = self._predict(setup, role, part)
        vectors = given.vectors[part]
        if setup.shuffled and given.all_vectors.shape[1] == predicted.shape[1]:
            nearest = _find_nearest(given.all_vectors, predicted)
            if len(np.unique(nearest)) < 0.9 * len(nearest):  # no order of these vectors
                return np.full(len(predicted), np.inf)
            vectors = given.all_vectors[nearest]
        if setup.any_length and vectors.shape == predicted.shape:
            vectors, wanted = vectors.astype(np.float64), np.linalg.norm(predicted, axis=1)
            lengths = np.maximum(np.linalg.norm(vectors, axis=1), FLOOR)
            vectors *= (wanted / lengths)[:, None]
        return vector_errors(vectors, predicted)

    def _predict(self, setup: EvaluationSetup, role: Role, part: slice) -> Float32Array:
        texts = self.given[role].texts
        if role == "query":
            return self.passes.queries(setup, texts.texts[part])
        return self.passes.documents(setup, texts.titles[part], texts.texts[part])


def _find_nearest(given: Float32Array, predicted: Float32Array) -> Int64Array:
    """Return the row of the given vector that is closest to each prediction."""
    every = given.astype(np.float32)
    if np.issubdtype(given.dtype, np.integer):
        every, predicted = _standardise(every), _standardise(predicted)
    squares = np.einsum("ij,ij->i", every, every)
    return np.asarray((predicted @ every.T - 0.5 * squares).argmax(axis=1), np.int64)


def _standardise(vectors: Float32Array) -> Float32Array:
    scaled: Float32Array = (vectors - vectors.mean(axis=0)) / (vectors.std(axis=0) + 1e-9)
    return scaled


@dataclass(frozen=True)
class RunEvidence(SetupEvidence):
    """A run: its scores of some documents of some queries, or only their ranks."""

    passes: ForwardPasses
    dataset: Dataset
    run: Run
    notes: Sequence[Observation] = ()
    name: str = "run"

    @cached_property
    def _sample(self) -> "_Sample":
        return _sample_run(self.run, self.dataset)

    def fit(self, setup: EvaluationSetup, probe: bool) -> Fit:
        texts, queries, rows, scores = self._sample
        if probe:
            texts, size = texts[:PROBE_RUN], int(np.searchsorted(queries, PROBE_RUN))
            queries, rows, scores = queries[:size], rows[:size], scores[:size]
        if setup.shuffled:
            return noise_fit(np.full(len(texts), np.inf))
        rows, places = np.unique(rows, return_inverse=True)
        read = self.dataset.corpus.documents_at(rows)
        documents = self.passes.documents(setup, *read)[places]
        encoded = self.passes.queries(setup, texts)
        predicted = np.einsum("ij,ij->i", encoded[queries], documents, dtype=np.float64)
        if setup.euclidean:
            predicted = predicted - 0.5 * (documents.astype(np.float64) ** 2).sum(axis=1)
        return noise_fit(score_errors(scores, predicted, queries, self.ranks_only))

    def detail(self, setup: EvaluationSetup) -> str:
        return "its scores are ranks, so only the order was compared" if self.ranks_only else ""

    @cached_property
    def ranks_only(self) -> bool:
        """True if scores fall by the same step from rank to rank, or rise as reciprocal ranks."""
        regular = []
        for _, _, ranked in islice(self.run.rankings(), 50):
            scores = ranked.astype(np.float64)
            inverse = 1 / np.where(scores == 0, 1, scores)
            regular.append(_is_even(np.diff(scores)) or _is_even(np.diff(inverse)))
        return sum(regular) > len(regular) / 2


def _is_even(steps: Float64Array) -> bool:
    return len(steps) > 2 and bool(np.ptp(steps) < 1e-3 * abs(steps.mean()))


# Texts of queries; for each pair of a query and a document, place of the query, row and score.
_Sample = tuple[list[str], Int64Array, Int64Array, Float64Array]


def _sample_run(run: Run, dataset: Dataset) -> _Sample:
    """Return the first documents of some queries, and others from all ranks."""
    place_of = {query: place for place, query in enumerate(run.query_ids)}
    chosen = choose_queries(dataset, list(place_of), RUN_QUERIES)
    corpus_rows = dataset.corpus.rows_of(run.ids.to_pylist())
    queries: list[int] = []
    texts: list[str] = []
    rows, scores = [], []
    for query, text in zip(chosen.ids, chosen.texts, strict=True):
        start, end = run.offsets[place_of[query] : place_of[query] + 2].tolist()
        far = np.linspace(start, end - 1, RUN_DOCUMENTS).astype(np.int64)
        near = np.arange(start, min(end, start + RUN_DOCUMENTS // 2))
        places = np.unique(np.concatenate([near, far[RUN_DOCUMENTS // 2 :]]))
        places = places[corpus_rows[run.documents[places]] >= 0]
        if len(places) < 3:
            continue
        queries += [len(texts)] * len(places)
        rows.append(corpus_rows[run.documents[places]])
        scores.append(run.scores[places].astype(np.float64))
        texts.append(text)
    if not texts:
        raise BenchError(
            f"the run and {dataset.name} share no query with three documents",
            "Check that its ids are those of this collection and split.",
        )
    return texts, np.array(queries), np.concatenate(rows), np.concatenate(scores)
