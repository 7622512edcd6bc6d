"""Parts of an encoder that are trained alone: which weights change, and by what."""

import numpy as np
import pytest

from foundation.errors import BenchError
from retrievers.training.engine.run_folder import read_size
from retrievers.training.finetune.finetune import finetune
from retrievers.training.finetune.finetune_preset import FILES, LastLayers, from_table, load_preset
from retrievers.training.finetune.student import build_student, train_only
from tests.support.small_finetuning import examples, model, on_cpu, preset, weights

LAYER = "encoder.layer.1."
EVERY_WEIGHT = "[optimizer]\nlr = 3e-3\nwarmup = 0.0\nweight_decay = 0.1\n"


def trained(folder, part, name="out"):
    start = model(folder)
    out = folder / name
    finetune(preset(part + EVERY_WEIGHT, steps=3), start, examples(), on_cpu(out))
    return weights(start.document.root), weights(out), read_size(out)


def changed(before, after):
    return {name for name in after if not np.array_equal(before[name], after[name])}


def used(names):
    """Without the pooler, which no vector depends on."""
    return {name for name in names if not name.startswith("pooler.")}


@pytest.mark.parametrize(
    ("part", "belongs"),
    [
        ('part = { name = "biases" }\n', lambda name: name.endswith(".bias")),
        ('part = { name = "last-layers", layers = 1 }\n', lambda name: name.startswith(LAYER)),
    ],
)
def test_exactly_the_weights_of_the_part_change_and_are_counted(tmp_path, part, belongs):
    before, after, size = trained(tmp_path, part)
    wanted = {name for name in used(before) if belongs(name)}
    # The gradient of the bias of keys is 0: softmax does not see what is added to all its inputs.
    exempt = {name for name in wanted if name.endswith("key.bias")}
    assert wanted - exempt <= used(changed(before, after)) <= wanted
    assert size.trained == sum(before[name].size for name in before if belongs(name))
    assert size.parameters == sum(value.size for value in before.values())


def test_a_part_has_a_learning_rate_of_its_own(tmp_path):
    text = 'part = { name = "biases", lr = 0.5 }\n' + EVERY_WEIGHT
    settings = preset(text)
    assert (settings.trained_by().lr, settings.trained_by().weight_decay) == (0.5, 0.1)
    assert preset(text.replace(", lr = 0.5", "")).trained_by() == settings.optimizer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('part = { name = "last-layers", layers = 3 }', "the last 3 layers, and the encoder has 2"),
        ('part = { name = "first-layers" }', "Invalid value 'first-layers'"),
        ('part = { name = "biases" }\nadapter = { method = "lora" }', "drop part, or the adapter"),
    ],
)
def test_a_part_that_is_not_there_is_one_error(tmp_path, text, message):
    with pytest.raises(BenchError, match=message):
        finetune(preset(text + "\n"), model(tmp_path), examples(), on_cpu(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_all_layers_are_all_but_the_embeddings(tmp_path):
    start = model(tmp_path)
    network = build_student(start, start.recipe)[0].model
    train_only(network, LastLayers(layers=2))
    frozen = {name for name, weight in network.named_parameters() if not weight.requires_grad}
    assert {name.split(".")[0] for name in frozen} <= {"embeddings", "pooler"}


def test_the_shipped_presets_of_parts_differ_from_dpr_small_in_the_part_alone():
    dpr = load_preset("dpr-small")
    parts = {name: own for name in FILES.names() if (own := load_preset(name)).part}
    assert {own.part.__struct_config__.tag for own in parts.values()} == {
        *("biases", "last-layers")
    }
    for own in parts.values():
        fields = ("rounds", "batch_size", "hard_negatives", "steps", "max_document_tokens")
        assert all(getattr(own, field) == getattr(dpr, field) for field in fields)
    assert from_table({"title": "t", "steps": 1}, "t").part is None
