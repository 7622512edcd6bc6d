"""Views: what is made of vectors after the forward pass, against plain encoders and FAISS."""

from dataclasses import replace
from typing import get_args

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation.exact import ArrayVectors
from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.encoders.views import (
    View,
    ViewedVectors,
    compress,
    decode_codes,
    encode_codes,
    recipe_with_every_pooling,
)
from retrievers.models.card import AdapterIdentity, Compression, Precision, Recipe
from retrievers.models.resolve import resolve_model
from tests.support import tiny_checkpoints as tiny


def stored(rows=40, width=16, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 3 * width)).astype(np.float32)


def searched(view, documents, queries):
    """Inner products of queries and documents as a view has them, read in tiles of 7."""
    tiles = [tile for _, tile in ViewedVectors(ArrayVectors(documents), view).tiles(7)]
    return view.queries(queries) @ np.concatenate(tiles).T


@pytest.mark.parametrize(("pooling", "normalize"), [("cls", False), ("mean", True), ("last", True)])
def test_a_view_of_every_pooling_is_what_an_encoder_with_that_pooling_gives(
    pooling, normalize, tmp_path
):
    tiny.write_bert(tmp_path / "bert")
    fields = {"checkpoint": "bert", "pooling": "mean"}
    model = resolve_model(str(tiny.write_card(tmp_path / "tiny.toml", **fields)))
    shared = open_encoder(replace(model, recipe=recipe_with_every_pooling(model.recipe)), "cpu")
    view = View(pooling=pooling, normalize=normalize)
    recipe = view.recipe(shared.recipe)
    own = open_encoder(replace(model, recipe=recipe), "cpu")
    titles = [""] * len(tiny.SENTENCES)
    expected = own.encode_documents(titles, tiny.SENTENCES)
    found = view.transform_documents(shared.encode_documents(titles, tiny.SENTENCES))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert recipe.similarity == ("cos" if normalize else "dot")


def test_fewer_dimensions_are_cut_before_vectors_are_scaled():
    vectors = stored()
    found = View(pooling="mean", normalize=True, dimensions=5).transform_documents(vectors)
    cut = vectors[:, 16:21]
    np.testing.assert_allclose(found, cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-6)


@given(seed=st.integers(0, 1000), precision=st.sampled_from(["float32", "float16"]))
def test_euclidean_similarity_ranks_by_distance(seed, precision):
    documents, queries = stored(30, seed=seed), stored(4, seed=seed + 1)
    view = View(pooling="cls", normalize=False, similarity="euclidean", precision=precision)
    held = documents[:, :16].astype(precision).astype(np.float64)
    distance = np.linalg.norm(queries[:, None, :16].astype(np.float64) - held[None], axis=2)
    expected = np.take_along_axis(distance, np.argsort(distance, axis=1), 1)
    order = np.argsort(-searched(view, documents, queries), axis=1)
    np.testing.assert_allclose(np.take_along_axis(distance, order, 1), expected, atol=1e-5)


def test_binary_vectors_are_ranked_by_the_hamming_distance_that_faiss_finds():
    documents, queries = stored(), stored(5, seed=1)
    view = View(pooling="last", normalize=False, precision="binary")
    index = faiss.IndexBinaryFlat(16)
    index.add(np.packbits(documents[:, 32:] > 0, axis=1))
    distances, rows = index.search(np.packbits(queries[:, 32:] > 0, axis=1), len(documents))
    scores = np.take_along_axis(searched(view, documents, queries), rows, 1)
    np.testing.assert_array_equal(scores, 16 - 2 * distances)


@pytest.mark.slow  # imports sentence-transformers
@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_codes_are_those_of_sentence_transformers_bit_for_bit(precision):
    from sentence_transformers.util import quantize_embeddings

    vectors, sample = stored(300), stored(200, seed=1)
    sample[:, 3] = 0.25  # a dimension without a range
    ranges = np.vstack([sample.min(axis=0), sample.max(axis=0)])
    codes = encode_codes(vectors, precision, ranges)
    theirs = quantize_embeddings(vectors, precision, calibration_embeddings=sample)
    assert (codes.dtype, codes.tobytes()) == (theirs.dtype, theirs.tobytes())


@pytest.mark.parametrize("precision", get_args(Precision))
def test_codes_are_decoded_to_the_middle_of_their_step(precision):
    vectors = stored(500, width=5)
    view = View(normalize=False, precision=precision)
    viewed = ViewedVectors(ArrayVectors(vectors), view)
    codes = encode_codes(vectors, precision, viewed.ranges)
    found = decode_codes(codes, precision, viewed.ranges, 15)
    np.testing.assert_array_equal(viewed.rows(np.arange(500)), found)
    np.testing.assert_array_equal(encode_codes(found, precision, viewed.ranges), codes)
    if precision in ("int8", "uint8"):
        step = (vectors.max(axis=0) - vectors.min(axis=0)) / 255
        assert (np.abs(found - vectors) <= step * 0.501).all()


def test_ranges_that_int8_needs_and_dimensions_that_are_not_there_are_errors():
    with pytest.raises(ValueError, match="ranges"):
        encode_codes(stored(3), "int8")
    with pytest.raises(BenchError, match="vectors that have 16"):
        View(pooling="cls", normalize=True, dimensions=17).transform_documents(stored())


def test_the_signs_and_the_first_dimensions_of_routed_adapters_are_refused():
    recipe = Recipe(model="m", kind="hashing", dim=64, adapter=AdapterIdentity("routed", {}))
    for compression in (Compression(dimensions=32), Compression(precision="binary")):
        with pytest.raises(BenchError, match="routed adapters"):
            compress(recipe, compression)
    assert compress(recipe, Compression(precision="int8")).compression.precision == "int8"


def test_models_whose_pooling_cannot_be_chosen_are_refused():
    with pytest.raises(BenchError, match="not a transformer"):
        recipe_with_every_pooling(resolve_model("hashing").recipe)
