"""SimCSE: the loss against sums over pairs, and its two readings."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foundation.errors import BenchError
from retrievers.training.objectives.simcse import SimCSE
from tests.retrievers.training.objectives.test_contrast import slow_contrast
from tests.support import slow_transformer as slow
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    collate = SimCSE().collator(tiny.tokenizer(tmp_path), 16)
    return collate(tiny.examples(tiny.TEXTS))


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_the_loss_contrasts_two_readings(architecture: str, batch: Batch) -> None:
    heads = SimCSE(temperature=0.1).build_module(tiny.encoder(architecture, dropout=0.1)).double()
    twice = [batch["input_ids"].repeat(2, 1), batch["attention_mask"].repeat(2, 1)]
    with torch.no_grad():
        torch.manual_seed(3)
        loss = heads(**batch)["loss"]
        torch.manual_seed(3)
        states = heads.encoder(*twice)[-1][:, 0]
    vectors = torch.tensor(
        [[math.tanh(x) for x in slow.linear(heads.dense, state)] for state in states.tolist()]
    ).double()
    units = vectors / vectors.norm(dim=1, keepdim=True)
    expected = slow_contrast(units[:6], units[6:], 0.1)
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_each_reading_has_a_dropout_of_its_own(batch: Batch) -> None:
    heads = SimCSE().build_module(tiny.encoder(dropout=0.2)).double()
    twice = [rows.repeat(2, 1) for rows in batch.values()]
    first, second = heads.vectors(*twice)[0].chunk(2)
    assert (first != second).any(dim=1).all()


@pytest.mark.parametrize("sub_batch", [1, 5, 12])
def test_sub_batches_have_the_gradient_of_the_whole_batch(sub_batch: int, batch: Batch) -> None:
    found = {}
    for size in (None, sub_batch):
        heads = SimCSE(sub_batch=size).build_module(tiny.encoder(dropout=0.1)).double()
        heads.eval()  # the same readings in batches of any size
        found[size] = tiny.gradients(heads, batch)
    assert found[None].keys() == found[sub_batch].keys()
    for name, expected in found[None].items():
        torch.testing.assert_close(found[sub_batch][name], expected, rtol=1e-8, atol=1e-10)


def test_the_head_that_predicts_tokens_is_left_alone() -> None:
    heads = SimCSE().build_module(tiny.encoder(dropout=0.1))
    frozen = {name for name, one in heads.named_parameters() if not one.requires_grad}
    assert frozen
    assert all(".cls." in name for name in frozen)
    assert heads.encoder.model.get_input_embeddings().weight.requires_grad


def test_an_encoder_without_dropout_is_refused() -> None:
    with pytest.raises(BenchError, match="SimCSE needs dropout"):
        SimCSE().build_module(tiny.encoder())
