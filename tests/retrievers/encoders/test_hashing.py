"""What the hashing encoder is by itself; what all encoders share is in the conformance suite."""

import hashlib

import numpy as np
import pytest

from foundation.errors import BenchError
from retrievers.encoders.hashing import HashingEncoder
from retrievers.models.card import Prompts, Recipe


def encoder(dim: int = 64, **fields) -> HashingEncoder:
    recipe = {"model": "hashing", "kind": "hashing", "dim": dim, "normalize": True} | fields
    return HashingEncoder(Recipe(**recipe))


def by_hand(words: list[str], dim: int) -> np.ndarray:
    """Signed feature hashing with every step spelled out."""
    vector = np.zeros(dim)
    for word in words:
        bits = f"{int(hashlib.blake2b(word.encode(), digest_size=8).hexdigest(), 16):064b}"
        vector[int(bits[:-1], 2) % dim] += 1 if bits[-1] == "1" else -1
    return vector / np.sqrt((vector**2).sum())


def test_a_vector_is_the_signed_count_of_hashed_words():
    found = encoder().encode_queries(["The wing of a WING, näher!"])
    expected = by_hand(["the", "wing", "of", "a", "wing", "näher"], 64)
    np.testing.assert_allclose(found[0], expected, atol=1e-7)


def test_words_that_cancel_out_still_give_a_unit_vector():
    one = encoder(1)
    words = [f"w{i}" for i in range(20)]
    signs = one.encode_queries(words)[:, 0]
    plus, minus = words[int(np.argmax(signs))], words[int(np.argmin(signs))]
    assert signs.max() == 1
    assert signs.min() == -1
    assert one.encode_queries([f"{plus} {minus}"]).tolist() == one.encode_queries([""]).tolist()


def test_prompts_titles_and_lengths_of_the_recipe_are_used():
    prompts = Prompts(query="ask ", document="tell ")
    short = encoder(prompts=prompts, max_query_tokens=2, max_document_tokens=3)
    plain = encoder()
    assert (short.encode_queries(["a b c"]) == plain.encode_queries(["ask a"])).all()
    told = plain.encode_queries(["tell t x"])
    assert (short.encode_documents(["t"], ["x y z"]) == told).all()
    assert short.count_query_tokens(["a b c", ""]) == [4, 1]
    assert short.count_document_tokens(["t"], ["x y z"]) == [5]


def test_a_recipe_of_another_encoder_is_refused():
    with pytest.raises(BenchError, match="not a recipe of the hashing encoder"):
        encoder(normalize=False)
    with pytest.raises(BenchError, match="not a recipe of the hashing encoder"):
        encoder(options={"seed": 3})
