"""coCondenser: the loss against loops, gradient caching, and span pairs."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foundation.errors import BenchError
from retrievers.training.engine.save import load_heads, save_heads
from retrievers.training.objectives.cocondenser import CoCondenser
from retrievers.training.objectives.condenser import Condenser
from retrievers.training.objectives.contrast import in_sub_batches, span_contrast
from retrievers.training.objectives.objective import read_objective
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


def test_the_random_numbers_after_a_step_do_not_depend_on_caching(batch: Batch) -> None:
    cached, plain = training(3, dropout=0.3), training(None, dropout=0.3)
    tiny.gradients(cached, batch, seed=5)
    after_cached = torch.rand(1)
    torch.manual_seed(5)
    uncached(plain, 3, batch).backward()
    assert torch.equal(torch.rand(1), after_cached)


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

    (sums,) = in_sub_batches(encode, (torch.rand(12, 5),), size)
    sums.sum().backward()
    return most


def test_the_activations_of_one_sub_batch_are_held_at_a_time() -> None:
    assert most_rows_held(None) == 12
    assert most_rows_held(3) == 3


def test_pairs_are_two_spans_of_one_text(tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer(tmp_path)
    batch = CoCondenser().collator(tokenizer, 10)(tiny.examples(tiny.TEXTS))
    original = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    assert len(original) == 2 * len(tiny.TEXTS)
    for i, text in enumerate(tiny.TEXTS):
        whole = tokenizer(text, add_special_tokens=False)["input_ids"]
        for row in (2 * i, 2 * i + 1):
            ids = original[row][batch["attention_mask"][row]].tolist()
            assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
            assert is_part(ids[1:-1], whole)


def is_part(part: list[int], whole: list[int]) -> bool:
    size = len(part)
    return any(whole[i : i + size] == part for i in range(len(whole) - size + 1))


def test_the_same_draws_give_the_same_batch(tmp_path: Path) -> None:
    collate = CoCondenser().collator(tiny.tokenizer(tmp_path), 10)
    first, again = (collate(tiny.examples(tiny.TEXTS, first_draw=7)) for _ in range(2))
    other = collate(tiny.examples(tiny.TEXTS, first_draw=8))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["input_ids"], other["input_ids"])


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_a_tiny_batch_is_learnt_by_heart(architecture: str, batch: Batch) -> None:
    encoder = tiny.encoder(architecture, initializer_range=0.1)
    heads = CoCondenser(sub_batch=4).build_module(encoder).double()
    losses = tiny.train(heads, batch, steps=120, lr=0.01)
    assert losses[-1] < 0.1 < 5 < losses[0]


def test_training_goes_on_with_the_head_of_condenser(tmp_path: Path) -> None:
    condenser = Condenser().build_module(tiny.encoder())
    trained = condenser.layers[0].up.weight
    torch.nn.init.constant_(trained, 0.25)
    save_heads(condenser, condenser.encoder.encoder, tmp_path, Condenser())
    settings = CoCondenser(sub_batch=4)
    heads = settings.build_module(tiny.encoder())
    assert load_heads(heads, heads.encoder.encoder, tmp_path, settings)
    assert torch.equal(heads.layers[0].up.weight, trained)


def test_settings_are_read_strictly() -> None:
    found = read_objective({"name": "cocondenser", "skip_from": 3, "sub_batch": 64})
    assert found == CoCondenser(skip_from=3, sub_batch=64)
    with pytest.raises(BenchError) as error:
        read_objective({"name": "cocondenser", "subbatch": 64})
    assert error.value.hint == "did you mean sub_batch?"


def test_sub_batches_keep_the_order_of_rows() -> None:
    rows = torch.arange(7.0)
    (found,) = in_sub_batches(lambda part: (part + 1,), (rows,), 3)
    assert torch.equal(found, rows + 1)
