"""Another version of a library is another model, if it gives other token ids or vectors."""

import errno

import numpy as np
import pytest

from bench.store import shards
from bench.store.store import VectorStore
from foundation.errors import DriftError
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny
from tests.support.library_versions import pretend_version
from tests.support.stores import CountingEncoder, corpus_of, encode, everything

DOCUMENTS = [(title, text) for title, text in zip(tiny.TITLES, tiny.SENTENCES, strict=True)]
MORE = [("the river", "a cloud of the stone"), ("", "the beta"), ("delta", "gamma the delta")]


@pytest.fixture
def card(tmp_path):
    tiny.write_bert(tmp_path / "bert")
    return tiny.write_card(tmp_path / "tiny.toml", checkpoint="bert", pooling="mean")


@pytest.fixture
def corpus(tmp_path):
    return corpus_of(DOCUMENTS, tmp_path / "corpus")


@pytest.fixture
def fresh(card, tmp_path, monkeypatch):
    """Returns a store of this folder and an encoder, as another process opens them."""
    monkeypatch.setattr(shards, "SHARD_ROWS", 2)

    def opened(folder: str = "vectors"):
        encoder = open_encoder(resolve_model(str(card)), "cpu")
        return VectorStore(tmp_path / folder), encoder

    return opened


def test_versions_that_tokenise_alike_share_vectors(fresh, corpus, monkeypatch):
    store, encoder = fresh()
    encode(store, corpus, encoder)
    store.queries(encoder, tiny.SENTENCES)
    pretend_version(monkeypatch, "99")
    store, encoder = fresh()
    assert store.plan(encoder, corpus).missing_rows == 0
    assert encode(store, corpus, encoder).encoded == 0


def test_versions_that_tokenise_differently_never_mix(fresh, corpus, tmp_path, monkeypatch):
    half = corpus_of(DOCUMENTS[:3], tmp_path / "half")
    store, encoder = fresh()
    encode(store, half, encoder)
    queries = store.queries(encoder, tiny.SENTENCES)
    whole = everything(encode(*(fresh("reference")[0], corpus, encoder)))
    with monkeypatch.context() as patch:
        pretend_version(patch, "99", other_tokens=True)
        store, encoder = fresh()
        vectors = encode(store, corpus, encoder)
        assert vectors.encoded == len(DOCUMENTS)
        expected = encoder.encode_documents(*corpus.documents_at(np.arange(len(corpus))))
        np.testing.assert_allclose(everything(vectors), expected, rtol=0, atol=1e-5)
        assert np.abs(expected - whole).max() > 1e-2
        assert np.abs(store.queries(encoder, tiny.SENTENCES) - queries).max() > 1e-2
    store, encoder = fresh()
    assert store.plan(encoder, half).missing_rows == 0
    assert store.queries(encoder, tiny.SENTENCES).tobytes() == queries.tobytes()
    np.testing.assert_allclose(everything(encode(store, corpus, encoder)), whole, atol=1e-5)


def test_the_tokenizer_is_loaded_once_for_each_version(fresh, corpus, monkeypatch):
    store, encoder = fresh()
    encode(store, corpus, encoder)
    store, encoder = fresh()
    assert store.tokens_sha256(CountingEncoder(), "document") == ""  # it has no tokenizer
    monkeypatch.setattr(type(encoder), "hash_tokens", lambda self, role: pytest.fail("loaded"))
    assert encode(store, corpus, encoder).encoded == 0


def test_a_version_that_gives_other_vectors_has_drifted(fresh, corpus, tmp_path, monkeypatch):
    store, encoder = fresh()
    encode(store, corpus, encoder)
    with monkeypatch.context() as patch:
        pretend_version(patch, "98", other_weights=1e-7)  # rounding
        store, encoder = fresh()
        assert encode(store, corpus_of(MORE[:1], tmp_path / "one"), encoder).encoded == 1
    pretend_version(monkeypatch, "99", other_weights=0.05)
    store, encoder = fresh()
    assert encode(store, corpus, encoder).encoded == 0  # nothing is loaded
    with pytest.raises(DriftError, match="as a document differs") as drift:
        encode(store, corpus_of(MORE, tmp_path / "more"), encoder)
    assert "transformers 99" in str(drift.value)
    assert "cache --prune tiny" in drift.value.hint


def test_the_digest_depends_on_prompt_and_length_of_its_role(tmp_path):
    tiny.write_bert(tmp_path / "bert")
    settings = {"checkpoint": "bert", "pooling": "mean", "max_document_tokens": 8}
    card = tiny.write_card(tmp_path / "tiny.toml", **settings)
    plain = open_encoder(resolve_model(str(card)), "cpu")
    prompted = open_encoder(
        resolve_model(str(card), ModelSettings(query_prompt="the river ")), "cpu"
    )
    assert plain.hash_tokens("query") != plain.hash_tokens("document")
    assert plain.hash_tokens("document") == prompted.hash_tokens("document")
    assert plain.hash_tokens("query") != prompted.hash_tokens("query")


def test_a_read_only_store_is_used_by_another_version(fresh, corpus, monkeypatch):
    store, encoder = fresh()
    before = everything(encode(store, corpus, encoder))

    def refuse(path):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    pretend_version(monkeypatch, "99")
    monkeypatch.setattr("bench.store.store.replace_file", refuse)
    store, encoder = fresh()
    again = everything(encode(store, corpus, encoder))
    assert again.tobytes() == before.tobytes()
