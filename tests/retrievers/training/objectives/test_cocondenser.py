"""coCondenser: the loss against loops, gradient caching, and span pairs."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retrievers.training.objectives.condenser import CoCondenser
from retrievers.training.objectives.masked_lm import encode_in_parts, span_contrast
from tests.retrievers.training.objectives.test_condenser import slow_losses
from tests.retrievers.training.objectives.test_contrast import slow_span_contrast
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    collate = CoCondenser(mask=0.3).collator(tiny.tokenizer(tmp_path), 10)
    return collate(tiny.examples(tiny.TEXTS[:4]))


def training(sub_batch: int | None, *, dropout: float = 0.0, architecture: str = "bert") -> Any:
    encoder = tiny.encoder(architecture, dropout=dropout)
    return CoCondenser(sub_batch=sub_batch).build_module(encoder).double()


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
@pytest.mark.parametrize("sub_batch", [None, 3])
def test_the_loss_is_that_of_condenser_and_the_contrast(
    architecture: str, sub_batch: int | None, batch: Batch
) -> None:
    heads = training(sub_batch, architecture=architecture)
    with torch.no_grad():
        losses = {name: float(loss) for name, loss in heads(**batch).items()}
        states = heads.encoder(batch["input_ids"], batch["attention_mask"])
        head, late = slow_losses(heads, batch, 2)
    contrast = slow_span_contrast(states[-1][:, 0])
    expected = {"head_mlm": head, "late_mlm": late, "contrast": contrast}
    assert losses == pytest.approx({"loss": head + late + contrast, **expected}, abs=1e-8)


@pytest.mark.parametrize("sub_batch", [1, 3, 8, 100])
def test_sub_batches_have_the_gradient_of_the_whole_batch(sub_batch: int, batch: Batch) -> None:
    whole = tiny.gradients(training(None), batch)
    parts = tiny.gradients(training(sub_batch), batch)
    assert whole.keys() == parts.keys()
    for name, expected in whole.items():
        torch.testing.assert_close(parts[name], expected, rtol=1e-9, atol=1e-12)


def uncached(heads: Any, sub_batch: int, batch: Batch) -> Tensor:
    """The loss with the same sub-batches, keeping every activation."""
    parts = zip(*(rows.split(sub_batch) for rows in batch.values()), strict=True)
    outputs = [heads.outputs(*part) for part in parts]
    vectors, head, late = (torch.cat(pieces) for pieces in zip(*outputs, strict=True))
    loss: Tensor = heads.total(head, late, batch["labels"])["loss"] + span_contrast(vectors)
    return loss


def test_the_second_pass_repeats_the_dropout_of_the_first(batch: Batch) -> None:
    cached, plain = training(3, dropout=0.3), training(None, dropout=0.3)
    found = tiny.gradients(cached, batch, seed=5)
    torch.manual_seed(5)
    uncached(plain, 3, batch).backward()
    expected = {name: weight.grad for name, weight in plain.named_parameters()}

    other = tiny.gradients(cached, batch, seed=6)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12)
    assert any(not torch.allclose(other[name], found[name]) for name in found)


def most_rows_held(size: int | None) -> int:
    """The most rows whose activations are alive at once, through a forward and a backward pass."""
    weight = torch.ones(1, requires_grad=True)
    activations: list[weakref.ref[Tensor]] = []
    most = 0

    def encode(rows: Tensor) -> tuple[Tensor]:
        nonlocal most
        kept = (rows * weight).exp()  # whose gradient needs its value
        activations.append(weakref.ref(kept))
        most = max(most, sum(len(alive) for one in activations if (alive := one()) is not None))
        return (kept.sum(dim=1),)

    (sums,) = encode_in_parts(encode, (torch.rand(12, 5),), size)
    sums.sum().backward()
    return most


def test_the_activations_of_one_sub_batch_are_held_at_a_time() -> None:
    assert most_rows_held(None) == 12
    assert most_rows_held(3) == 3
