"""All objectives: found by file, strict, deterministic, and the same with padding."""

import hashlib
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from torch.nn.functional import pad

from foundation.errors import BenchError
from retrievers.training import objectives
from retrievers.training.objectives.condenser import CoCondenser, Condenser
from retrievers.training.objectives.objective import OBJECTIVES, hash_code, read_objective
from retrievers.training.objectives.retromae import DupMAE, RetroMAE
from retrievers.training.preset import PRETRAIN_PRESETS
from retrievers.training.pretrain.pretrain import pretrain
from retrievers.training.pretrain.start import load_heads, save_heads
from tests.support import small_starts as small
from tests.support import tiny_encoders as tiny

FIRST_WORDS = '''
"""The embedding of a text must be short."""

from torch import nn

from retrievers.training.objectives.objective import Settings


class Shrink(Settings, kw_only=True):
    """``weight`` of the loss."""

    weight: float = 1.0

    def batch(self, tokens, vocabulary, rng):
        return {"input_ids": tokens.ids, "attention_mask": tokens.real}

    def build_module(self, encoder):
        return Shrinking(encoder, self.weight)


class Shrinking(nn.Module):
    def __init__(self, encoder, weight):
        super().__init__()
        self.encoder, self.weight = encoder, weight

    def forward(self, input_ids, attention_mask):
        states = self.encoder(input_ids, attention_mask)[-1]
        return {"loss": self.weight * states[:, 0].square().mean()}
'''


def test_an_objective_is_a_file_and_its_edit_is_another_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("mine").mkdir()
    Path("mine/shrink.py").write_text(
        FIRST_WORDS.replace("1.0", "DEFAULT").replace(
            "from torch", "from shrink_settings import DEFAULT\nfrom torch"
        )
    )
    Path("mine/shrink_settings.py").write_text("DEFAULT = 0.5")
    start = small.write_start(tmp_path / "bert", small.texts())
    preset = small.preset(start, objective="mine/shrink.py", steps=2)
    assert msgspec.to_builtins(preset)["objective"] == {"name": "mine/shrink.py", "weight": 0.5}
    trained = pretrain(preset, small.texts(), small.on_cpu(tmp_path / "out"))
    assert trained.objective == "mine/shrink.py"
    again = pretrain(preset, small.texts(), small.on_cpu(tmp_path / "out"))
    assert again == msgspec.structs.replace(trained, found=True)

    with Path("mine/shrink.py").open("a") as file:
        file.write("# edited")
    preset = PRETRAIN_PRESETS.changed(preset, {"objective.weight": 0.5}, "test")
    with pytest.raises(BenchError, match=r"different training: code.objective.shrink.py changed"):
        pretrain(preset, small.texts(), small.on_cpu(tmp_path / "out"))


def test_the_code_of_an_objective_is_its_file_and_those_that_it_extends() -> None:
    package = "retrievers.training.objectives"
    found = hash_code(read_objective("cocondenser"))
    assert {*found} == {"condenser.py", f"{package}.mlm"}
    source = Path(objectives.__path__[0], "condenser.py").read_bytes()
    assert found["condenser.py"] == hashlib.sha256(source).hexdigest()


RIGHT = '{"input_ids": tokens.ids, "attention_mask": tokens.real}'


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('"loss"', '"cost"', "returns no loss"),
        (RIGHT, "3", "is int, not a dictionary"),
        (RIGHT, "{'input_ids': tokens.ids}", "has no int64 or bool array whose name ends in _mask"),
        (RIGHT, "{'input_ids': 'text', 'attention_mask': tokens.real}", "has input_ids as str"),
        (
            RIGHT,
            "{'input_ids': tokens.ids.astype('int32'), 'attention_mask': tokens.real}",
            "has input_ids as int32, not int64, bool, float32",
        ),
        (
            RIGHT,
            "{'ids': tokens.ids, 'attention_mask': tokens.real}",
            "missing a required argument",
        ),
    ],
)
def test_an_objective_that_breaks_the_rules_is_refused(
    right: str, wrong: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "shrink.py").write_text(FIRST_WORDS.replace(right, wrong))
    start = small.write_start(tmp_path / "bert", small.texts())
    preset = small.preset(start, objective={"name": str(tmp_path / "shrink.py")}, steps=2)
    with pytest.raises(BenchError, match=message):
        pretrain(preset, small.texts(), small.on_cpu(tmp_path / "out"))
    assert (tmp_path / "out").exists() == (right != RIGHT)  # a batch is checked before the training


EVERY = [read_objective({"name": name}) for name in OBJECTIVES]


@pytest.mark.parametrize("objective", EVERY, ids=lambda objective: objective.name)
def test_the_same_draws_give_the_same_batch_and_others_another(objective, tmp_path) -> None:
    collate = objective.collator(tiny.tokenizer(tmp_path), 10)
    first, again = (collate(tiny.examples(tiny.TEXTS, first_draw=7)) for _ in range(2))
    other = collate(tiny.examples(tiny.TEXTS, first_draw=8))
    assert all(torch.equal(first[name], again[name]) for name in first)
    same = torch.equal(first["input_ids"], other["input_ids"])
    assert same == (objective.name == "simcse")  # which draws nothing but dropout


@pytest.mark.parametrize("objective", EVERY, ids=lambda objective: objective.name)
def test_padding_changes_nothing(objective, tmp_path) -> None:
    batch = objective.collator(tiny.tokenizer(tmp_path), 14)(tiny.examples(tiny.TEXTS[:3]))
    heads = objective.build_module(tiny.encoder(dropout=0.1)).double().eval()
    fill = {"labels": -100, "decoder_labels": -100, "input_ids": 7, "decoder_input_ids": 7}
    longer = {
        name: pad(value, (0, 3) * (value.dim() - 1), value=fill.get(name, 0))
        for name, value in batch.items()
    }
    if "decoder_context" in longer and longer["decoder_context"].dim() == 3:
        longer["decoder_context"][:, :, 0] = True
    torch.testing.assert_close(heads(**longer)["loss"], heads(**batch)["loss"])


@pytest.mark.parametrize(
    ("before", "after"),
    [(Condenser(), CoCondenser(sub_batch=4)), (RetroMAE(), DupMAE())],
    ids=["condenser", "retromae"],
)
def test_training_goes_on_with_the_heads_of_a_related_objective(before, after, tmp_path) -> None:
    trained, heads = (one.build_module(tiny.encoder()) for one in (before, after))
    save_heads(trained, trained.encoder.encoder, tmp_path, before)
    load_heads(heads, heads.encoder.encoder, tmp_path, after)
    for name, weight in trained.named_parameters():
        assert name.startswith("encoder.") or torch.equal(heads.state_dict()[name], weight)


@pytest.mark.parametrize(
    ("table", "message", "hint"),
    [
        ({}, "has no name", "mlm"),
        ({"decoding": "basic"}, "has no name", "mlm"),
        ({"name": "retromea"}, "no pre-training objective is called 'retromea'", "retromae"),
        ({"name": "retromae", "decodin": "basic"}, "unknown field 'decodin'", "decoding"),
        ({"name": "retromae", "decoder_layers": 2}, "enhanced decoding has one layer", ""),
        ({"name": "retromae", "encoder_mask": 1.5}, "encoder_mask", ""),
        ({"name": "condenser", "skip_form": 3}, "skip_form", "Did you mean skip_from?"),
        ({"name": "cotmae", "contexts": ["near"]}, "near", ""),
    ],
)
def test_settings_are_read_strictly(table, message, hint) -> None:
    with pytest.raises(BenchError, match=message) as caught:
        read_objective(table)
    assert hint in caught.value.hint
