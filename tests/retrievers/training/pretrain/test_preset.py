"""Presets are strict: what is misspelt or contradicts itself is refused with a suggestion."""

import msgspec
import pytest

from foundation.errors import BenchError
from retrievers.training.objectives.objective import OBJECTIVES
from retrievers.training.objectives.retromae import RetroMAE
from retrievers.training.preset import PRETRAIN_PRESETS
from retrievers.training.pretrain.texts import texts_per_step

WHOLE = {
    "title": "t",
    "start": {"model": "bert"},
    "objective": {"name": "retromae"},
    "steps": 10,
}


@pytest.mark.parametrize("name", PRETRAIN_PRESETS.names())
def test_every_shipped_preset_can_be_read_and_says_where_its_figures_are_from(name):
    preset = PRETRAIN_PRESETS.load(name)
    assert preset.objective.name in OBJECTIVES
    assert preset.source
    assert (
        PRETRAIN_PRESETS.convert(msgspec.json.decode(msgspec.json.encode(preset)), "again")
        == preset
    )


def test_every_objective_has_a_published_and_a_small_preset():
    published = {f"{name}-paper" for name in OBJECTIVES} - {"mlm-paper"} | {"mlm"}
    assert published | {f"{name}-small" for name in OBJECTIVES} <= set(PRETRAIN_PRESETS.names())


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        # Texts of a step over all GPUs. RetroMAE's examples/pretrain: 8 GPUs, 32 each.
        *(("retromae-paper", 256), ("dupmae-paper", 256), ("mlm", 256)),
        ("condenser-paper", 1_024),  # luyug/Condenser, issue 4
        ("cocondenser-paper", 2_048),  # its README, documents
        ("cotmae-paper", 512),  # cotmae.sh, documents
        ("simcse-paper", 64),  # run_unsup_example.sh
    ],
)
def test_on_one_gpu_a_step_has_the_texts_of_the_paper(name, texts):
    assert texts_per_step(PRETRAIN_PRESETS.load(name)) == texts


def test_the_preset_of_retromae_has_the_figures_of_the_paper():
    preset = PRETRAIN_PRESETS.load("retromae-paper")
    assert preset.objective == RetroMAE(
        decoding="enhanced", decoder_layers=1, encoder_mask=0.3, decoder_mask=0.5
    )
    assert (preset.optimizer.lr, preset.batch_size, preset.epochs) == (1e-4, 32, 8)
    assert preset.max_tokens == 512


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"batchsize": 3}, "unknown field 'batchsize'", "batch_size"),
        ({"batch_size": "3"}, "'3': Expected `int`", ""),
        ({"batch_size": 0}, "Expected `int` >= 1", ""),
        ({"epochs": 2}, "one of steps, epochs and tokens", ""),
        ({"tokens": 9}, "one of steps, epochs and tokens", ""),
        ({"steps": None}, "one of steps, epochs and tokens", ""),
        ({"start": {}}, "either a model or scratch", ""),
        ({"start": {"modle": "bert"}}, "unknown field 'modle'", "model"),
        ({"optimizer": {"warm_up": 0.1}}, "unknown field 'warm_up'", "warmup"),
        ({"optimizer": {"lr": -1.0}}, "lr", ""),
        (
            {"objective": {"name": "retromae", "decoder_lairs": 1}},
            "decoder_lairs",
            "decoder_layers",
        ),
        (
            {"start": {"scratch": {"tokenizer": "bert", "layers": 2, "width": 10, "heads": 3}}},
            "intermediate",
            "",
        ),
    ],
)
def test_a_wrong_preset_is_refused(changes, message, hint):
    with pytest.raises(BenchError) as caught:
        PRETRAIN_PRESETS.convert(WHOLE | changes, "mine.toml")
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_changes_are_validated_like_the_file():
    preset = PRETRAIN_PRESETS.convert(WHOLE, "mine.toml")
    done = PRETRAIN_PRESETS.changed(
        preset, {"optimizer.lr": 3e-5, "objective.decoding": "basic"}, "test"
    )
    assert (done.optimizer.lr, done.objective) == (3e-5, RetroMAE(decoding="basic"))
    assert PRETRAIN_PRESETS.changed(preset, {"epochs": 2.0}, "test").steps is None
    with pytest.raises(BenchError, match="unknown field 'decodin'"):
        PRETRAIN_PRESETS.changed(preset, {"objective.decodin": "basic"}, "test")
    with pytest.raises(BenchError, match=r"no optimiser\.lr") as caught:
        PRETRAIN_PRESETS.changed(preset, {"optimiser.lr": 1e-3}, "test")
    assert "optimizer" in caught.value.hint


def test_another_objective_begins_with_its_own_settings():
    preset = PRETRAIN_PRESETS.convert(
        WHOLE | {"objective": {"name": "retromae", "encoder_mask": 0.4}}, "mine"
    )
    done = PRETRAIN_PRESETS.changed(
        preset, {"objective.mask": 0.2, "objective.name": "mlm"}, "test"
    )
    assert msgspec.to_builtins(done)["objective"] == {"name": "mlm", "mask": 0.2}


def test_a_start_model_replaces_a_new_one():
    preset = PRETRAIN_PRESETS.changed(
        PRETRAIN_PRESETS.load("retromae-scratch-small"), {"start.model": "minilm"}, "test"
    )
    assert (preset.start.model, preset.start.scratch) == ("minilm", None)


def test_an_unknown_preset_has_a_suggestion(tmp_path):
    with pytest.raises(BenchError, match="no preset for pre-training") as caught:
        PRETRAIN_PRESETS.load("retromea")
    assert "retromae" in caught.value.hint
    with pytest.raises(BenchError, match="there is no preset for pre-training"):
        PRETRAIN_PRESETS.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("= 3")
    with pytest.raises(BenchError, match="is not TOML"):
        PRETRAIN_PRESETS.load(tmp_path / "bad.toml")
