"""Presets: strict, shipped with the papers' figures, and changed by name."""

import msgspec
import pytest

from foundation.errors import BenchError
from retrievers.training.objectives.objective import OBJECTIVES
from retrievers.training.preset import FINETUNE_PRESETS as FINETUNE
from retrievers.training.preset import PRETRAIN_PRESETS as PRETRAIN
from retrievers.training.preset import Mining, UsageSettings
from retrievers.training.pretrain.texts import texts_per_step
from tests.support.small_finetuning import preset

WHOLE = {"title": "t", "start": {"model": "bert"}, "objective": {"name": "retromae"}, "steps": 10}
BM25 = "hard_negatives = 1\n[[rounds]]\nsources = ['bm25']\n"


@pytest.mark.parametrize("files", [PRETRAIN, FINETUNE], ids=lambda files: files.kind)
def test_every_shipped_preset_can_be_read_and_names_its_source(files):
    for name in files.names():
        found = files.load(name)
        assert found.source
        assert files is PRETRAIN or found.source.startswith("https://")
        assert files.load(files.folder / f"{name}.toml") == found
        assert files.convert(msgspec.json.decode(msgspec.json.encode(found)), "again") == found


def test_every_objective_has_a_published_and_a_small_preset():
    published = {f"{name}-paper" for name in OBJECTIVES} - {"mlm-paper"} | {"mlm"}
    assert published | {f"{name}-small" for name in OBJECTIVES} <= set(PRETRAIN.names())


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
    assert texts_per_step(PRETRAIN.load(name)) == texts


def test_an_unset_lower_case_is_not_part_of_a_trainings_identity():
    before = (
        '{"pooling":null,"normalize":null,"similarity":null,"title_join":null,'
        '"segment_ids":null,"max_query_tokens":null,"max_document_tokens":null}'
    )
    assert msgspec.json.encode(msgspec.to_builtins(UsageSettings())).decode() == before
    for value in (True, False):
        changed = FINETUNE.changed(FINETUNE.load("dpr"), {"use.lower_case": value}, "typed")
        assert changed.use.lower_case is value


def test_unset_dimensions_are_not_part_of_a_trainings_identity():
    plain = preset()
    before = {"name": "contrastive", "temperature": None, "chunk": 0, "in_batch": True}
    assert msgspec.to_builtins(plain.loss) == before
    assert plain.loss.dimensions(384) == (384,)
    nested = FINETUNE.changed(plain, {"loss.matryoshka": [128, 64]}, "typed")
    assert nested.loss.dimensions(384) == (384, 128, 64)
    assert nested.loss.dimensions(128) == (128, 64)


def test_epochs_become_steps_of_whole_batches():
    settings = FINETUNE.parse(b'title = "t"\nepochs = 2.5\nbatch_size = 4', "t")
    assert settings.steps_for(Mining(), 10) == 6
    assert settings.steps_for(Mining(), 1) == 1
    assert settings.steps_for(Mining(epochs=5.0), 10) == 12
    assert preset(steps=9).steps_for(Mining(), 10) == 9


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"batchsize": 3}, "unknown field 'batchsize'", "batch_size"),
        ({"batch_size": 0}, "expected a whole number >= 1", ""),
        ({"epochs": 2}, "one of steps, epochs and tokens", ""),
        ({"steps": None}, "one of steps, epochs and tokens", ""),
        ({"start": {}}, "either a model or scratch", ""),
        ({"optimizer": {"warm_up": 0.1}}, "unknown field 'warm_up'", "warmup"),
        ({"objective": {"name": "retromae", "decoder_lairs": 1}}, "_lairs", "decoder_layers"),
        (
            {"start": {"scratch": {"tokenizer": "bert", "layers": 2, "width": 10, "heads": 3}}},
            "intermediate",
            "",
        ),
    ],
)
def test_a_wrong_preset_for_pretraining_is_refused(changes, message, hint):
    with pytest.raises(BenchError) as caught:
        PRETRAIN.convert(WHOLE | changes, "mine.toml")
    assert message in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("stepz = 3", "unknown field 'stepz'", "Did you mean steps?"),
        ("[loss]\nname = 'klx'", "name is 'klx'", "kl"),
        ("[loss]\nname = 'kl'", r"needs a \[teacher\], such as teacher = {model", ""),
        ("[loss]\nname = 'kl'\nmatryoshka = [64, 128]", "in descending order", ""),
        ("epochs = 2.0", "either steps or epochs", ""),
        ("hard_negatives = 1", "hard_negatives is 1, but a round has .* from dpr-small", ""),
        ("[[rounds]]\nsources = ['bm25']", "hard_negatives is 0, .* from in-batch-small", ""),
        ("[teacher]", "a teacher needs a margin", ""),
        ("[loss]\nname = 'contrastive'\nin_batch = false", "hard_negatives must be", ""),
        ("[loss]\nname = 'contrastive'\nin_batch = false\nchunk = 2", "chunk needs in-batch", ""),
        ("[optimizer]\nalgorithm = 'adam'", "algorithm is 'adam'", "adamw"),
        ("[teacher]\nmargin = 1.0", "needs hard_negatives", ""),
        ("rounds = []", "at least one round", ""),
        (
            "hard_negatives = 1\n[[rounds]]\nsources = ['model']\nrefresh_steps = 2\n"
            "[loss]\nname = 'kl'\n[teacher]",
            "refreshed negatives have no",
            "",
        ),
        ("[teacher]\nmodel = 'a'\nstart = 'b'", "either model or start", ""),
        (BM25 + "margin = 0.1", "margin and refresh_steps need", ""),
        (BM25.replace("['", "['bm25', '"), "listed twice", ""),
        (BM25 + "depth = 0", "at least 1", ""),
        ('part = { name = "biases" }\nadapter = { method = "lora" }', "adapter or part", ""),
        ("[adapter]\nmethod = 'lora'\nrate = 1", "unknown field 'rate'", ""),
        ("[adapter]\nmethod = 'lora'\ninit_scale = 0.1", "init_scale needs a bottleneck", ""),
        ("[adapter]\nlibrary = 'peft'\nmethod = 'lora'\nnorms = true", "norms needs lib", ""),
        ("= 3", "not TOML", ""),
    ],
)
def test_a_wrong_preset_for_finetuning_is_refused(text, problem, hint):
    head = "" if "batch_size" in text or text == "= 3" else "batch_size = 4\n"
    with pytest.raises(BenchError, match=problem) as caught:
        FINETUNE.parse(f'title = "t"\nsteps = 3\n{head}{text}'.encode(), "mine.toml")
    assert "mine.toml" in str(caught.value)
    assert hint in caught.value.hint


def test_another_choice_begins_with_its_own_settings():
    found = PRETRAIN.convert(WHOLE | {"objective": {"name": "retromae", "encoder_mask": 0.4}}, "t")
    done = PRETRAIN.changed(found, {"objective.mask": 0.2, "objective.name": "mlm"}, "test")
    assert msgspec.to_builtins(done)["objective"] == {"name": "mlm", "mask": 0.2}
    found = PRETRAIN.changed(
        PRETRAIN.load("retromae-scratch-small"), {"start.model": "minilm"}, "test"
    )
    assert (found.start.model, found.start.scratch) == ("minilm", None)
