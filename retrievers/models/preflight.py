"""Is this model sound? Checks on a sample, before hours are spent on a collection.

Vectors that are not finite, or zero, stop. The rest warns, with figures, since a poor model is
still a model: vectors that hardly differ, lengths that decide the ranking, texts that are cut, a
vector that depends on the texts beside it.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from foundation.arrays import Float32Array, Float64Array
from foundation.records import Record
from retrievers.encoders.protocol import Encoder
from retrievers.models.recipe import Dtype

# Relative distance between a text's vectors, alone and in a padded batch. float32 differs by
# rounding; a wrong attention mask differs by 0.01 and more.
BATCH_TOLERANCE: dict[Dtype, float] = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
COLLAPSED = 0.5  # mean cosine after centring: sound models are near 0
MIN_SPREAD = 0.05  # root mean square distance from the mean vector, as a share of the norm
NORM_VARIATION = 0.25  # standard deviation of the norms over their mean
UNIT_TOLERANCE = 1e-2
TRUNCATED = 0.1
ALONE = 8


@runtime_checkable
class CountsTokens(Protocol):
    """Optional interface of an encoder: token counts before texts are cut."""

    def count_query_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        """Tokens of each query, special tokens and prompt included."""
        ...

    def count_document_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> Sequence[int]:
        """Tokens of each document, special tokens and prompt included."""
        ...


class VectorFacts(Record, kw_only=True):
    """Figures of one sample of vectors; those after ``zero`` are over the usable vectors.

    Attributes:
        count: vectors in the sample.
        not_finite: vectors with NaN or infinity.
        zero: vectors of length 0.
        mean_cosine: over all pairs; high for many sound models, whose vectors share a direction.
        mean_cosine_centred: the same after the mean vector is taken away.
        spread: root mean square distance from the mean vector, over that of the norms; 0 to 1.
        norm_mean, norm_min, norm_max: Euclidean lengths.
        norm_variation: standard deviation of the norms over their mean.
        truncated: share of texts that are cut; None where the encoder does not say.
    """

    count: int
    not_finite: int
    zero: int
    mean_cosine: float
    mean_cosine_centred: float
    spread: float
    norm_mean: float
    norm_min: float
    norm_max: float
    norm_variation: float
    truncated: float | None


class Preflight(Record, kw_only=True):
    """Figures measured on a sample; stored with the result.

    Attributes:
        documents: figures of the documents' vectors.
        queries: figures of the queries' vectors.
        batch_difference: largest relative distance between a document's vectors, alone and in a
            batch.
        batch_tolerance: what is usual for the recipe's dtype.
        stop: reasons not to go on; empty if the model is usable.
        warnings: what a person should know, with figures.
    """

    documents: VectorFacts
    queries: VectorFacts
    batch_difference: float
    batch_tolerance: float
    stop: tuple[str, ...]
    warnings: tuple[str, ...]


def preflight(
    encoder: Encoder, titles: Sequence[str], texts: Sequence[str], queries: Sequence[str]
) -> Preflight:
    """Encode a sample of documents and queries and say what is wrong with the vectors.

    Raises:
        BenchError: the encoder itself refuses.
    """
    vectors = encoder.encode_documents(titles, texts)
    documents = vector_facts(vectors, _document_truncation(encoder, titles, texts))
    questions = vector_facts(encoder.encode_queries(queries), _query_truncation(encoder, queries))
    difference = _batch_difference(encoder, titles, texts, vectors)
    tolerance = BATCH_TOLERANCE[encoder.recipe.dtype]
    facts = {"documents": documents, "queries": questions}
    warnings = [
        line for role, measured in facts.items() for line in _warnings(role, measured, encoder)
    ]
    if difference > tolerance:
        warnings.append(
            f"a document alone and in a batch differ by {difference:.1e} of its length "
            f"(usual for {encoder.recipe.dtype}: below {tolerance:.0e}): padding may leak in"
        )
    return Preflight(
        documents=documents,
        queries=questions,
        batch_difference=difference,
        batch_tolerance=tolerance,
        stop=tuple(line for role, measured in facts.items() for line in _stops(role, measured)),
        warnings=tuple(warnings),
    )


def vector_facts(vectors: Float32Array, truncated: float | None = None) -> VectorFacts:
    """Figures of vectors ``(n, dim)``, in closed form: n x dim work, no pairs.

    The mean cosine of all pairs of n unit vectors u is (||sum u||^2 - n) / (n (n - 1)).
    """
    finite = np.isfinite(vectors).all(axis=1)
    usable = vectors[finite].astype(np.float64)
    norms = np.linalg.norm(usable, axis=1)
    zero = int((norms == 0).sum())
    usable, norms = usable[norms > 0], norms[norms > 0]
    centred = usable - usable.mean(axis=0) if len(usable) else usable
    length = _mean(norms)
    return VectorFacts(
        count=len(vectors),
        not_finite=int((~finite).sum()),
        zero=zero,
        mean_cosine=_mean_cosine(usable),
        mean_cosine_centred=_mean_cosine(centred),
        spread=float(np.sqrt(_mean((centred**2).sum(axis=1)) / (_mean(norms**2) or 1.0))),
        norm_mean=length,
        norm_min=float(norms.min(initial=np.inf)) if len(norms) else 0.0,
        norm_max=float(norms.max(initial=0.0)),
        norm_variation=float(norms.std() / length) if len(norms) else 0.0,
        truncated=truncated,
    )


def _mean_cosine(vectors: Float64Array) -> float:
    """Mean cosine over all pairs of vectors that are not zero; 0 where there is no pair."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    # What rounding leaves of a centred vector has no direction.
    kept = norms[:, 0] > 1e-9 * norms.max(initial=0.0)
    count = int(kept.sum())
    if count < 2:
        return 0.0
    total = (vectors[kept] / norms[kept]).sum(axis=0)
    return float((total @ total - count) / (count * (count - 1)))


def _mean(values: Float64Array) -> float:
    return float(values.mean()) if len(values) else 0.0


def _stops(role: str, facts: VectorFacts) -> list[str]:
    lines = []
    if facts.not_finite:
        lines.append(
            f"{role}: {facts.not_finite} of {facts.count} vectors have NaN or infinite values"
        )
    if facts.zero:
        lines.append(f"{role}: {facts.zero} of {facts.count} vectors are zero")
    return lines


def _warnings(role: str, facts: VectorFacts, encoder: Encoder) -> list[str]:
    lines = []
    if facts.count > 1 and facts.spread < MIN_SPREAD:
        lines.append(
            f"{role}: vectors are nearly the same: they lie {facts.spread:.3f} of their length "
            f"from their mean (mean cosine {facts.mean_cosine:.4f})"
        )
    if facts.mean_cosine_centred > COLLAPSED:
        lines.append(
            f"{role}: most vectors are nearly the same: mean cosine "
            f"{facts.mean_cosine_centred:.2f} after centring, {facts.mean_cosine:.2f} before"
        )
    lines += _norm_warnings(role, facts, encoder)
    if facts.truncated is not None and facts.truncated > TRUNCATED:
        lines.append(f"{role}: {facts.truncated:.0%} of the texts are cut to the model's length")
    return lines


def _norm_warnings(role: str, facts: VectorFacts, encoder: Encoder) -> list[str]:
    extremes = f"from {facts.norm_min:.4g} to {facts.norm_max:.4g}"
    unit = max(abs(facts.norm_max - 1), abs(facts.norm_min - 1)) <= UNIT_TOLERANCE
    if encoder.recipe.similarity == "cos" and facts.norm_mean > 0 and not unit:
        return [f"{role}: similarity is cosine, and vectors are {extremes} long instead of 1"]
    if facts.norm_variation > NORM_VARIATION:
        return [
            f"{role}: lengths of vectors vary, {extremes} (standard deviation "
            f"{facts.norm_variation:.0%} of the mean): length may decide the ranking"
        ]
    return []


def _batch_difference(
    encoder: Encoder, titles: Sequence[str], texts: Sequence[str], batched: Float32Array
) -> float:
    """Largest relative distance between vectors of short to long texts, alone and batched."""
    if not len(texts):
        return 0.0
    by_length = np.argsort([len(text) for text in texts], kind="stable")
    rows = by_length[np.linspace(0, len(texts) - 1, min(ALONE, len(texts))).astype(int)]
    alone = np.concatenate([encoder.encode_documents([titles[i]], [texts[i]]) for i in rows])
    usable = np.isfinite(alone).all(axis=1) & np.isfinite(batched[rows]).all(axis=1)
    distance = np.linalg.norm(alone[usable] - batched[rows][usable], axis=1)
    lengths = np.linalg.norm(alone[usable], axis=1)
    return float((distance[lengths > 0] / lengths[lengths > 0]).max(initial=0.0))


def _document_truncation(
    encoder: Encoder, titles: Sequence[str], texts: Sequence[str]
) -> float | None:
    if not isinstance(encoder, CountsTokens):
        return None
    counts = encoder.count_document_tokens(titles, texts)
    return _share_above(counts, encoder.recipe.max_document_tokens)


def _query_truncation(encoder: Encoder, texts: Sequence[str]) -> float | None:
    if not isinstance(encoder, CountsTokens):
        return None
    return _share_above(encoder.count_query_tokens(texts), encoder.recipe.max_query_tokens)


def _share_above(counts: Sequence[int], limit: int) -> float:
    return sum(count > limit for count in counts) / max(len(counts), 1)
