"""Counts of parameters are those of the loaded network, and loading nothing makes them."""

import pytest
import torch
import transformers

from foundation.errors import BenchError
from retrievers.models.checkpoint import Parameters
from retrievers.models.resolve import count_parameters, resolve_model
from retrievers.models.settings import ModelSettings
from tests.support.tiny_checkpoints import (
    seeded,
    write_bert,
    write_card,
    write_json,
    write_mlm_pickle,
    write_tokenizer,
)


def resolved(folder, tmp_path, **fields):
    card = {"checkpoint": str(folder), "pooling": "cls", **fields}
    return resolve_model(str(write_card(tmp_path / "tiny.toml", **card)))


def size(network) -> int:
    """Of the weights themselves; one that has two names counts once."""
    return sum(weight.numel() for weight in network.parameters())


def test_shards_are_added_up(tmp_path):
    network = write_bert(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    network.save_pretrained(str(tmp_path / "model"), max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 1
    model = resolved(tmp_path / "model", tmp_path)
    assert count_parameters(model).total == size(network)


def test_a_pickle_counts_shared_weights_once_and_no_head(tmp_path):
    network = write_mlm_pickle(tmp_path / "model")
    assert "cls.predictions.decoder.weight" in network.state_dict()
    model = resolved(tmp_path / "model", tmp_path)
    assert count_parameters(model).total == size(network.bert)


def test_a_stage_in_a_folder_of_its_own_counts(tmp_path):
    network = write_bert(tmp_path / "model")
    dense = torch.nn.Linear(32, 8)
    stage = tmp_path / "model" / "2_Dense"
    write_json(
        stage / "config.json",
        {
            "in_features": 32,
            "out_features": 8,
            "bias": True,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
    torch.save(
        {f"linear.{name}": one for name, one in dense.state_dict().items()},
        stage / "pytorch_model.bin",
    )
    model = resolved(tmp_path / "model", tmp_path, stages=[{"kind": "dense", "folder": "2_Dense"}])
    assert count_parameters(model).total == size(network) + size(dense)


def test_both_encoders_of_an_untied_model_count(tmp_path):
    networks = [write_bert(tmp_path / name, seed=seed) for seed, name in enumerate("dq")]
    model = resolved(tmp_path / "d", tmp_path, query_checkpoint=str(tmp_path / "q"))
    assert count_parameters(model).total == sum(map(size, networks))


def test_an_adapter_is_counted_separately_and_in_the_total(tmp_path):
    peft = pytest.importorskip("peft", reason="needs peft")
    network = write_bert(tmp_path / "model")
    base = size(network)
    adapted = peft.get_peft_model(network, peft.LoraConfig(r=4, target_modules=["query", "value"]))
    adapted.save_pretrained(str(tmp_path / "adapter"))
    card = write_card(tmp_path / "tiny.toml", checkpoint=str(tmp_path / "model"), pooling="cls")
    found = count_parameters(
        resolve_model(str(card), ModelSettings(adapter=str(tmp_path / "adapter")))
    )
    trained = sum(one.numel() for one in adapted.parameters() if one.requires_grad)
    assert trained == 4 * 2 * 2 * (32 + 32)
    assert found == Parameters(base + trained, trained)


def test_the_shared_embedding_of_a_t5_pickle_counts_once(tmp_path):
    sizes = {"d_model": 32, "d_ff": 64, "d_kv": 16, "num_layers": 2, "num_heads": 2}
    config = transformers.T5Config(vocab_size=68, **sizes)
    network = seeded(lambda: transformers.T5Model(config))
    write_tokenizer(tmp_path / "model")
    config.architectures = ["T5EncoderModel"]
    config.save_pretrained(str(tmp_path / "model"))
    torch.save(network.state_dict(), tmp_path / "model" / "pytorch_model.bin")
    encoder = seeded(lambda: transformers.T5EncoderModel(config))
    assert count_parameters(resolved(tmp_path / "model", tmp_path)).total == size(encoder)


@pytest.mark.parametrize("name", ["bm25", "hashing"])
def test_models_without_weights_have_no_parameters(name):
    assert count_parameters(resolve_model(name)) == Parameters(0, 0)


def test_a_damaged_pickle_is_refused_by_name(tmp_path):
    write_mlm_pickle(tmp_path / "model")
    file = tmp_path / "model" / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:-900])
    with pytest.raises(BenchError, match=r"pytorch_model\.bin cannot be loaded"):
        count_parameters(resolved(tmp_path / "model", tmp_path))
