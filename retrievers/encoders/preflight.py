"""Checks of a model on a sample, before hours are spent on a collection.

Vectors that are not finite, or zero though their text is not empty, stop the evaluation. Warnings,
with figures, name causes of wrong or low scores: vectors that hardly differ, or lack unit length
under cosine similarity; truncated texts; tokens that the tokenizer does not know; a vector that
depends on the rest of its batch. If most tokens are unknown, a batch's vectors are in another order
than its texts, or those of a server depend on more than the text, the evaluation stops, too.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from foundation.arrays import BoolArray, Float32Array, Float64Array
from foundation.records import Record
from retrievers.encoders.protocol import Encoder

# Relative distance between vectors of a text, encoded alone and in a padded batch. float32 differs
# by rounding; a wrong attention mask differs by 0.01 and more.
BATCH_TOLERANCE = {"float32": 1e-4, "unknown": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
MOST_DIFFERENT = 0.1  # such a distance of vectors of a server, which no arithmetic explains
MIN_SPREAD = 0.05  # root mean square distance from the mean vector, as a share of the norm
UNIT_TOLERANCE = 1e-2
MAX_TRUNCATED = 0.1
MANY_UNKNOWN, MOST_UNKNOWN = 0.1, 0.5
ENCODED_ALONE = 8
CLOSER = 4.0  # a squared distance to another text that is smaller by this factor is a mix-up,
APART = 0.05  # if the relative squared distance to the text itself is larger than this


class VectorStatistics(Record, kw_only=True):
    """Statistics of a sample of vectors; those after ``zero`` are over the usable ones.

    Attributes:
        count: vectors in the sample.
        not_finite: vectors with NaN or infinity.
        zero: vectors of length 0.
        spread: root mean square distance from the mean vector, over that of the norms; 0 to 1.
        norm_min, norm_max: smallest and largest Euclidean norm.
        truncated: share of truncated texts; None if unknown.
    """

    count: int
    not_finite: int
    zero: int
    spread: float
    norm_min: float
    norm_max: float
    truncated: float | None


class Preflight(Record, kw_only=True):
    """Results of the checks on a sample, which are stored with the evaluation.

    Attributes:
        documents: statistics of the documents' vectors.
        queries: statistics of the queries' vectors.
        batch_difference: largest relative distance between a document's vectors, encoded alone and
            in a batch.
        stop: reasons not to continue; empty if the model is usable.
        warnings: findings for a person, with figures.
        unknown: share of the documents' tokens that are unknown; None without a tokenizer.
    """

    documents: VectorStatistics
    queries: VectorStatistics
    batch_difference: float
    stop: tuple[str, ...]
    warnings: tuple[str, ...]
    unknown: float | None = None


def preflight(
    encoder: Encoder, titles: Sequence[str], texts: Sequence[str], queries: Sequence[str]
) -> Preflight:
    """Encode a sample of documents and queries and report problems of the vectors."""
    recipe = encoder.recipe
    vectors = encoder.encode_documents(titles, texts)
    counts = encoder.count_document_tokens(titles, texts)
    documents = measure_vectors(vectors, _cut_share(counts, recipe.max_document_tokens))
    asked, counts = encoder.encode_queries(queries), encoder.count_query_tokens(queries)
    questions = measure_vectors(asked, _cut_share(counts, recipe.max_query_tokens))
    joined = [title + text for title, text in zip(titles, texts, strict=True)]
    empty = {"documents": _count_empty(vectors, joined), "queries": _count_empty(asked, queries)}
    difference, mixed_up = _compare_alone(encoder, titles, texts, vectors)
    statistics = {"documents": documents, "queries": questions}
    warnings = [
        line
        for role, measured in statistics.items()
        for line in _find_warnings(role, measured, encoder)
    ]
    warnings += [
        f"{role}: {number} empty texts have the vector 0, and rank as a product of 0 does"
        for role, number in empty.items()
        if number
    ]
    differ = f"a document alone and in a batch differ by {difference:.1e} of its length"
    has_state = recipe.traits.is_remote and difference > MOST_DIFFERENT and not mixed_up
    if not has_state and difference > (tolerance := BATCH_TOLERANCE[recipe.dtype]):
        warnings.append(
            f"{differ} (usual for {recipe.dtype}: below {tolerance:.0e}): the other texts of a "
            "batch change it, by padding that is not masked or by rotary frequencies of the "
            "longest text"
        )
    stop = [f"{differ}: its vector depends on more than its text"] if has_state else []
    stop += [
        line
        for role, measured in statistics.items()
        for line in _find_unusable(role, measured, empty)
    ]
    if mixed_up:
        stop.append(
            f"documents: in a batch, {mixed_up} of {min(ENCODED_ALONE, len(texts))} have the "
            "vector of another one: vectors are returned in another order than the texts"
        )
    unknown = encoder.unknown_share(titles, texts)
    if unknown is not None and unknown > MANY_UNKNOWN:
        line = f"documents: {unknown:.0%} of the tokens are unknown to the tokenizer"
        if unknown <= MOST_UNKNOWN or encoder.allow_unknown_tokens:
            warnings.append(line)
        else:
            stop.append(f"{line} (--set allow_unknown_tokens=true evaluates it nevertheless)")
    return Preflight(
        documents=documents,
        queries=questions,
        batch_difference=difference,
        stop=tuple(stop),
        warnings=tuple(warnings),
        unknown=unknown,
    )


def _find_unusable(
    role: str, measured: VectorStatistics, empty: Mapping[str, int]
) -> Iterator[str]:
    """Yield the kinds of vectors that no search can use, with their number."""
    for what, number in (
        ("have NaN or infinite values", measured.not_finite),
        ("are zero", measured.zero - empty[role]),
    ):
        if number:
            yield f"{role}: {number} of {measured.count} vectors {what}"


def _count_empty(vectors: Float32Array, texts: Sequence[str]) -> int:
    """Count the ``vectors`` of length 0 of texts without a character."""
    pairs = zip(vectors, texts, strict=True)
    return sum(not (vector.any() or text.strip()) for vector, text in pairs)


def measure_vectors(vectors: Float32Array, truncated: float | None = None) -> VectorStatistics:
    """Return statistics of ``vectors`` ``(n, dim)``, with the share of ``truncated`` texts."""
    finite = np.isfinite(vectors).all(axis=1)
    usable = vectors[finite].astype(np.float64)
    norms = np.linalg.norm(usable, axis=1)
    zero = int((norms == 0).sum())
    usable, norms = usable[norms > 0], norms[norms > 0]
    centred = usable - usable.mean(axis=0) if len(usable) else usable
    return VectorStatistics(
        count=len(vectors),
        not_finite=int((~finite).sum()),
        zero=zero,
        spread=float(np.sqrt(_mean((centred**2).sum(axis=1)) / (_mean(norms**2) or 1.0))),
        norm_min=float(norms.min()) if len(norms) else 0.0,
        norm_max=float(norms.max(initial=0.0)),
        truncated=truncated,
    )


def _mean(values: Float64Array) -> float:
    return float(values.mean()) if len(values) else 0.0


def _find_warnings(role: str, measured: VectorStatistics, encoder: Encoder) -> list[str]:
    lines = []
    if measured.count > 1 and measured.spread < MIN_SPREAD:
        lines.append(
            f"{role}: vectors are nearly the same: they lie {measured.spread:.3f} of their length "
            "from their mean"
        )
    unit = max(abs(measured.norm_max - 1), abs(measured.norm_min - 1)) <= UNIT_TOLERANCE
    if encoder.recipe.similarity == "cos" and measured.norm_max > 0 and not unit:
        lines.append(
            f"{role}: similarity is cosine, and vectors are from {measured.norm_min:.4g} to "
            f"{measured.norm_max:.4g} long instead of 1"
        )
    if measured.truncated is not None and measured.truncated > MAX_TRUNCATED:
        lines.append(f"{role}: {measured.truncated:.0%} of the texts are cut to the model's length")
    return lines


def find_mixed_up(distances: Float64Array, own: Float64Array) -> BoolArray:
    """Return which vectors belong to other texts, bool ``(n,)``.

    Args:
        distances: relative squared distances to the vectors of all texts, float64 ``(n, m)``.
        own: those to the vector of the same text, float64 ``(n,)``.
    """
    mixed_up: BoolArray = (distances.min(axis=1) * CLOSER < own) & (own > APART)
    return mixed_up


def relative_distances(vectors: Float32Array, others: Float32Array) -> Float64Array:
    """Return the distance of each pair of rows, over the length of the first, float64 ``(n,)``."""
    exact = vectors.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(exact, axis=1), 1e-30)
    return np.asarray(np.linalg.norm(exact - others, axis=1) / lengths)


def _compare_alone(
    encoder: Encoder, titles: Sequence[str], texts: Sequence[str], batched: Float32Array
) -> tuple[float, int]:
    """Compare vectors of texts encoded alone and batched.

    Returns:
        The largest relative distance, and the number of texts with another text's vector.
    """
    by_length = np.argsort([len(text) for text in texts], kind="stable")
    rows = by_length[np.linspace(0, len(texts) - 1, min(ENCODED_ALONE, len(texts))).astype(int)]
    unbatched = np.concatenate([encoder.encode_documents([titles[i]], [texts[i]]) for i in rows])
    usable = np.isfinite(unbatched).all(axis=1) & np.isfinite(batched[rows]).all(axis=1)
    usable &= unbatched.any(axis=1)
    rows, unbatched = rows[usable], unbatched[usable]
    lengths = np.linalg.norm(unbatched, axis=1)
    distances = np.linalg.norm(unbatched[:, None] - batched, axis=2) / lengths[:, None]
    own = distances[np.arange(len(rows)), rows]
    mixed_up = find_mixed_up(np.nan_to_num(distances, nan=np.inf) ** 2, own**2)
    return float(own.max(initial=0.0)), int(mixed_up.sum())


def _cut_share(counts: Sequence[int] | None, limit: int | None) -> float | None:
    """Return the share of token counts above the limit, or None if either is unknown."""
    if counts is None or limit is None:
        return None
    return sum(tokens > limit for tokens in counts) / max(len(counts), 1)
