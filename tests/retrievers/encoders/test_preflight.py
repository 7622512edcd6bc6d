"""What preflight says of sound and of broken vectors."""

import msgspec
import numpy as np
import pytest

from retrievers.encoders.hashing import HashingEncoder
from retrievers.encoders.preflight import Preflight, measure_vectors, preflight
from retrievers.encoders.protocol import Encoder
from retrievers.encoders.transformer import open_encoder
from retrievers.models.card import Recipe
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny

TEXTS = [f"text about {subject}" for subject in ("wings", "heat", "slabs", "flow", "noise", "drag")]


class Fake(Encoder):
    """Vectors by text length and number; ``change`` breaks them."""

    def __init__(self, change=lambda vectors: vectors, **fields) -> None:
        self.recipe = Recipe(model="fake", kind="hashing", dim=16, **fields)
        self._change = change

    def for_dataset(self, name):
        return self

    def encode_queries(self, texts, advance=None):
        seeds = [sum(text.encode()) for text in texts]
        rows = [np.random.default_rng(seed).standard_normal(16) for seed in seeds]
        return self._change(np.array(rows).reshape(-1, 16).astype(np.float32))

    def encode_documents(self, titles, texts, advance=None):
        return self.encode_queries(texts, advance)


def check(encoder) -> Preflight:
    return preflight(encoder, [""] * len(TEXTS), TEXTS, TEXTS[:3])


def test_figures_equal_those_of_plain_loops():
    vectors = np.random.default_rng(0).standard_normal((30, 8)) + 0.7
    measured = measure_vectors(vectors.astype(np.float32))
    norms = [float(np.sqrt(vector @ vector)) for vector in vectors]
    assert (measured.norm_min, measured.norm_max) == pytest.approx((min(norms), max(norms)))
    distances = [((vector - vectors.mean(axis=0)) ** 2).sum() for vector in vectors]
    wanted = np.sqrt(np.mean(distances) / np.mean(np.square(norms)))
    assert measured.spread == pytest.approx(wanted)


def test_a_sound_encoder_passes_silently():
    found = check(Fake())
    assert found.stop == found.warnings == ()
    assert found.documents.count == 6
    assert found.documents.truncated is None  # it counts no tokens
    assert found.queries.count == 3
    assert found.batch_difference == 0


@pytest.mark.parametrize(
    ("value", "reason"), [(np.nan, "NaN or infinite"), (np.inf, "NaN or infinite"), (0, "are zero")]
)
def test_vectors_that_cannot_be_compared_stop(value, reason):
    found = check(Fake(lambda vectors: np.vstack([vectors[:1] * 0 + value, vectors[1:]])))
    assert [line.partition(" vectors")[0] for line in found.stop] == [
        "documents: 1 of 6",
        "queries: 1 of 3",
    ]
    assert reason in found.stop[0]


@pytest.mark.parametrize(
    ("change", "similarity", "said"),
    [
        (lambda vectors: vectors * np.float32(1e-3) + 1, "dot", "vectors are nearly the same"),
        (np.ones_like, "dot", "vectors are nearly the same"),
        (lambda vectors: vectors, "cos", "long instead of 1"),
    ],
)
def test_vectors_with_wrong_or_low_scores_warn(change, similarity, said):
    found = check(Fake(change, similarity=similarity))
    assert [said in line for line in found.warnings] == [True, True]  # documents, queries
    assert msgspec.json.decode(msgspec.json.encode(found), type=Preflight) == found


def test_texts_that_are_cut_warn_with_their_share():
    recipe = Recipe(model="h", kind="hashing", dim=64, normalize=True, max_document_tokens=3)
    found = preflight(HashingEncoder(recipe), [""] * 4, ["a b c", "a b c d", "e f g h", "i"], ["q"])
    assert found.documents.truncated == 0.5
    assert found.queries.truncated == 0
    assert "documents: 50% of the texts are cut to the model's length" in found.warnings


@pytest.mark.parametrize(("dtype", "warns"), [("float32", True), ("bfloat16", False)])
def test_padding_that_leaks_into_a_vector_warns_by_dtype(dtype, warns):
    def change(vectors):
        return vectors * np.float32(1 + 0.01 * (len(vectors) > 1))

    found = check(Fake(change, dtype=dtype))
    assert found.batch_difference == pytest.approx(0.01, rel=1e-3)
    assert any("the other texts of a batch change it" in line for line in found.warnings) is warns


def test_a_vector_of_a_server_that_depends_on_more_than_its_text_stops():
    def change(vectors):
        return vectors + np.float32(0.2 * (len(vectors) > 1)) * np.abs(vectors)

    assert check(Fake(change)).stop == ()  # a warning, if it runs here
    served = Fake(change)
    served.recipe = msgspec.structs.replace(served.recipe, kind="endpoint", dtype="unknown")
    found = check(served)
    assert found.stop == (
        "a document alone and in a batch differ by 2.0e-01 of its length: its vector depends on "
        "more than its text",
    )


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        (lambda vectors: vectors[::-1], 6),
        (lambda vectors: vectors[[1, 0, *range(2, len(vectors))]], 2),
        (lambda vectors: vectors * 1.05, 0),
    ],
)
def test_a_batch_whose_vectors_are_in_another_order_stops(change, moved):
    found = check(Fake(lambda vectors: change(vectors) if len(vectors) == len(TEXTS) else vectors))
    named = [f"{moved} of 6 have the vector of another one" in line for line in found.stop]
    assert named == [True] * bool(moved)


@pytest.mark.parametrize(
    ("texts", "allow", "stops", "warns"),
    [
        (["the river of stone", "alpha beta"], False, False, False),
        (["the river of stone 7", "alpha beta"], False, False, True),
        (["7 8 9 river", "1 2"], False, True, False),
        (["7 8 9 river", "1 2"], True, False, True),
    ],
)
def test_unknown_tokens_are_a_warning_and_most_of_them_an_error(
    tmp_path, texts, allow, stops, warns
):
    tiny.write_bert(tmp_path / "bert")
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="bert", pooling="mean")
    model = resolve_model(str(card), ModelSettings(allow_unknown_tokens=allow))
    found = preflight(open_encoder(model, "cpu"), [""] * len(texts), texts, ["river"])
    words = [word for text in texts for word in text.split()]
    assert found.unknown == pytest.approx(sum(map(str.isdigit, words)) / len(words))
    assert ["unknown" in line for line in found.stop] == [True] * stops
    assert ["unknown" in line for line in found.warnings if "token" in line] == [True] * warns
