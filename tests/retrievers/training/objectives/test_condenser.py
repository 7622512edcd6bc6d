"""Condenser and coCondenser: losses against loops, what the head sees, gradient caching, pairs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retrievers.training.objectives.condenser import CoCondenser, Condenser
from retrievers.training.objectives.masked_lm import span_contrast
from tests.retrievers.training.objectives.test_contrast import slow_span_contrast
from tests.support import slow_transformer as slow
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    collate = Condenser(mask=0.3).collator(tiny.tokenizer(tmp_path), 16)
    return collate(tiny.examples(tiny.TEXTS[:2]))


def slow_losses(heads: Any, batch: Batch, skip_from: int) -> tuple[float, float]:
    """Losses of the head and of the last layer, one token at a time."""
    states = heads.encoder(batch["input_ids"], batch["attention_mask"])
    head, late = [], []
    for i, real in enumerate(batch["attention_mask"]):
        last, early = states[-1][i].tolist(), states[skip_from][i].tolist()
        hidden = [last[0], *early[1:]]
        seen = [[j for j, here in enumerate(real) if here] for _ in hidden]
        for layer in heads.layers:
            hidden = slow.transformer_layer(layer, hidden, seen)
        head.append(hidden)
        late.append(last)
    model = heads.encoder.model
    return (
        slow.masked_lm_loss(model, head, batch["labels"]),
        slow.masked_lm_loss(model, late, batch["labels"]),
    )


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
@pytest.mark.parametrize(("skip_from", "layer"), [(None, 2), (0, 0), (3, 3)])
def test_the_loss_is_that_of_the_head_and_of_the_last_layer(
    architecture: str, skip_from: int | None, layer: int, batch: Batch
) -> None:
    heads = Condenser(skip_from=skip_from).build_module(tiny.encoder(architecture)).double()
    with torch.no_grad():
        losses = heads(**batch)
        head, late = slow_losses(heads, batch, layer)
    assert float(losses["head_mlm"]) == pytest.approx(head, abs=1e-8)
    assert float(losses["late_mlm"]) == pytest.approx(late, abs=1e-8)
    assert float(losses["loss"]) == pytest.approx(head + late, abs=1e-8)


def test_without_late_mlm_the_head_alone_is_trained(batch: Batch) -> None:
    both = Condenser().build_module(tiny.encoder()).double()
    alone = Condenser(late_mlm=False).build_module(tiny.encoder()).double()
    alone.load_state_dict(both.state_dict())
    losses = alone(**batch)
    assert losses.keys() == {"loss", "head_mlm"}
    assert torch.equal(losses["loss"], both(**batch)["head_mlm"])


@pytest.fixture
def pairs(tmp_path: Path) -> Batch:
    collate = CoCondenser(mask=0.3).collator(tiny.tokenizer(tmp_path), 10)
    return collate(tiny.examples(tiny.TEXTS[:2]))


def cocondenser(sub_batch: int | None, *, dropout: float = 0.0, architecture: str = "bert") -> Any:
    encoder = tiny.encoder(architecture, dropout=dropout)
    return CoCondenser(sub_batch=sub_batch).build_module(encoder).double()


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
@pytest.mark.parametrize("sub_batch", [None, 3])
def test_the_loss_is_that_of_condenser_and_the_contrast(
    architecture: str, sub_batch: int | None, pairs: Batch
) -> None:
    heads = cocondenser(sub_batch, architecture=architecture)
    with torch.no_grad():
        losses = {name: float(loss) for name, loss in heads(**pairs).items()}
        states = heads.encoder(pairs["input_ids"], pairs["attention_mask"])
        head, late = slow_losses(heads, pairs, 2)
    contrast = slow_span_contrast(states[-1][:, 0])
    expected = {"head_mlm": head, "late_mlm": late, "contrast": contrast}
    assert losses == pytest.approx({"loss": head + late + contrast, **expected}, abs=1e-8)


def uncached(heads: Any, sub_batch: int, pairs: Batch) -> Tensor:
    """The loss with the same sub-batches, keeping every activation."""
    parts = zip(*(rows.split(sub_batch) for rows in pairs.values()), strict=True)
    outputs = [heads.outputs(*part) for part in parts]
    vectors, head, late = (torch.cat(pieces) for pieces in zip(*outputs, strict=True))
    loss: Tensor = heads.total(head, late, pairs["labels"])["loss"] + span_contrast(vectors)
    return loss


def test_the_second_pass_repeats_the_dropout_of_the_first(pairs: Batch) -> None:
    cached, plain = cocondenser(3, dropout=0.3), cocondenser(None, dropout=0.3)
    found = tiny.gradients(cached, pairs, seed=5)
    torch.manual_seed(5)
    uncached(plain, 3, pairs).backward()
    expected = {name: weight.grad for name, weight in plain.named_parameters()}

    other = tiny.gradients(cached, pairs, seed=6)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12)
    assert any(not torch.allclose(other[name], found[name]) for name in found)
