"""Parameters are recorded with a result, and are counted once for a model."""

from bench.evaluate.pipeline import parameters_of
from bench.store import VectorStore
from retrievers.encoders.opening import open_encoder
from retrievers.models.model import resolve_model
from retrievers.models.parameters import Parameters
from tests.support.tiny_checkpoints import write_card, write_mlm_pickle


def test_a_pickle_is_read_once_and_its_count_is_remembered(tmp_path):
    network = write_mlm_pickle(tmp_path / "model")
    card = write_card(tmp_path / "tiny.toml", checkpoint=str(tmp_path / "model"), pooling="cls")
    model = resolve_model(str(card))
    store = VectorStore(tmp_path / "vectors")
    expected = Parameters(sum(one.numel() for one in network.bert.parameters()), 0)
    assert parameters_of(model, open_encoder(model), store) == expected
    (tmp_path / "model" / "pytorch_model.bin").unlink()
    assert parameters_of(model, open_encoder(model), store) == expected


def test_bm25_has_none(tmp_path):
    store = VectorStore(tmp_path / "vectors")
    assert parameters_of(resolve_model("bm25"), None, store) == Parameters(0, 0)
