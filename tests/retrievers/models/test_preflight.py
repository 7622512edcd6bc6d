"""What preflight says of sound and of broken vectors; figures against plain pair loops."""

import itertools

import msgspec
import numpy as np
import pytest

from retrievers.encoders.hashing import HashingEncoder
from retrievers.models.preflight import Preflight, preflight, vector_facts
from retrievers.models.recipe import Recipe

TEXTS = [f"text about {subject}" for subject in ("wings", "heat", "slabs", "flow", "noise", "drag")]


class Fake:
    """Vectors by text length and number; ``change`` breaks them."""

    def __init__(self, change=lambda vectors: vectors, **fields) -> None:
        self.recipe = Recipe(model="fake", kind="hashing", dim=16, **fields)
        self.dim = 16
        self._change = change

    def encode_queries(self, texts, advance=None):
        seeds = [sum(text.encode()) for text in texts]
        rows = [np.random.default_rng(seed).standard_normal(16) for seed in seeds]
        return self._change(np.array(rows).reshape(-1, 16).astype(np.float32))

    def encode_documents(self, titles, texts, advance=None):
        return self.encode_queries(texts, advance)


def check(encoder) -> Preflight:
    return preflight(encoder, [""] * len(TEXTS), TEXTS, TEXTS[:3])


def mean_over_pairs(vectors: np.ndarray) -> float:
    cosines = [a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in itertools.combinations(vectors, 2)]
    return float(np.mean(cosines))


def test_figures_equal_those_of_loops_over_pairs():
    vectors = np.random.default_rng(0).standard_normal((30, 8)) + 0.7
    facts = vector_facts(vectors.astype(np.float32))
    assert facts.mean_cosine == pytest.approx(mean_over_pairs(vectors), abs=1e-6)
    centred = vectors - vectors.mean(axis=0)
    assert facts.mean_cosine_centred == pytest.approx(mean_over_pairs(centred), abs=1e-6)
    norms = np.linalg.norm(vectors, axis=1)
    assert facts.norm_mean == pytest.approx(norms.mean())
    assert facts.norm_min == pytest.approx(norms.min())
    assert facts.norm_max == pytest.approx(norms.max())
    assert facts.norm_variation == pytest.approx(norms.std() / norms.mean())
    rms = np.sqrt((centred**2).sum(1).mean() / (norms**2).mean())
    assert facts.spread == pytest.approx(rms)


def test_a_sound_encoder_passes_without_a_word():
    found = check(Fake())
    assert found.stop == found.warnings == ()
    assert found.documents.count == 6
    assert found.queries.count == 3
    assert found.batch_difference == 0


def test_the_hashing_encoder_passes():
    recipe = Recipe(model="h", kind="hashing", dim=256, normalize=True, similarity="cos")
    found = check(HashingEncoder(recipe))
    assert found.stop == found.warnings == ()
    assert found.documents.truncated == 0


@pytest.mark.parametrize(
    ("value", "reason"), [(np.nan, "NaN or infinite"), (np.inf, "NaN or infinite"), (0, "are zero")]
)
def test_vectors_that_cannot_be_compared_stop(value, reason):
    def change(vectors):
        vectors[0] = value
        return vectors

    found = check(Fake(change))
    assert len(found.stop) == 2
    assert found.stop[0].startswith("documents: 1 of 6 vectors")
    assert found.stop[1].startswith("queries: 1 of 3 vectors")
    assert reason in found.stop[0]


def test_vectors_that_are_all_the_same_warn():
    found = check(Fake(lambda vectors: vectors * np.float32(1e-3) + 1))
    assert any("documents: vectors are nearly the same" in line for line in found.warnings)
    assert found.documents.mean_cosine > 0.999


def test_identical_vectors_warn_and_are_figures_not_nan():
    found = check(Fake(np.ones_like))
    assert any("nearly the same" in line for line in found.warnings)
    assert b"NaN" not in msgspec.json.encode(found)
    assert found.documents.mean_cosine == pytest.approx(1)


def test_most_vectors_the_same_with_few_that_differ_warn():
    rng = np.random.default_rng(0)
    same = np.ones((95, 8)) + 1e-3 * rng.standard_normal((95, 8))
    facts = vector_facts(np.concatenate([same, -3 * np.ones((5, 8))]).astype(np.float32))
    assert facts.mean_cosine_centred > 0.5
    assert facts.spread > 0.05


def test_lengths_that_vary_warn_for_dot_products():
    def change(vectors):
        return vectors * np.linspace(1, 9, len(vectors), dtype=np.float32)[:, None]

    found = check(Fake(change))
    assert any("length may decide the ranking" in line for line in found.warnings)


def test_cosine_without_unit_vectors_warns():
    found = check(Fake(similarity="cos"))
    assert any("long instead of 1" in line for line in found.warnings)


def test_texts_that_are_cut_warn_with_their_share():
    recipe = Recipe(model="h", kind="hashing", dim=64, normalize=True, max_document_tokens=3)
    found = preflight(HashingEncoder(recipe), [""] * 4, ["a b c", "a b c d", "e f g h", "i"], ["q"])
    assert found.documents.truncated == 0.5
    assert found.queries.truncated == 0
    assert "documents: 50% of the texts are cut to the model's length" in found.warnings


def test_an_encoder_that_counts_no_tokens_has_no_truncation_rate():
    assert check(Fake()).documents.truncated is None


@pytest.mark.parametrize(("dtype", "warns"), [("float32", True), ("bfloat16", False)])
def test_padding_that_leaks_into_a_vector_warns_by_dtype(dtype, warns):
    def change(vectors):
        return vectors * np.float32(1 + 0.01 * (len(vectors) > 1))

    found = check(Fake(change, dtype=dtype))
    assert found.batch_difference == pytest.approx(0.01, rel=1e-3)
    assert any("padding may leak" in line for line in found.warnings) is warns


def test_an_empty_sample_is_no_division_by_zero():
    found = preflight(Fake(), [], [], [])
    assert found.stop == found.warnings == ()
    assert found.documents.count == 0


def test_the_record_survives_json():
    found = check(Fake())
    assert msgspec.json.decode(msgspec.json.encode(found), type=Preflight) == found
