"""Importance of units: gates that change nothing at 1, their gradients, and what follows."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foundation.errors import BenchError
from retrievers.training.continual.importance import (
    accumulated,
    divergence,
    domain_importance,
    gate_gradients,
    general_importance,
    masked_loss,
    normalised,
)
from retrievers.training.continual.units import KINDS, Units, gated
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.mlm import MLM
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]
STEP = 1e-6


@pytest.fixture
def batches(tmp_path: Path) -> list[Batch]:
    collate = MLM(mask=0.4).collator(tiny.tokenizer(tmp_path), 16)
    return [collate(tiny.examples(tiny.TEXTS[:4])), collate(tiny.examples(tiny.TEXTS[4:], 4))]


def reading(encoder: MaskedLM, batch: Batch) -> Tensor:
    return encoder(batch["input_ids"], batch["attention_mask"])[-1]


def moved(encoder: MaskedLM, kind: str, place: tuple[int, int], step: float) -> Units:
    """Gates of 1, one of them moved."""
    gates = Units.full(encoder, 1)
    values = gates.tensors()[kind].clone()
    values[place] += step
    return dataclasses.replace(gates, **{kind: values})


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_gates_of_one_change_nothing_and_are_gone_afterwards(architecture, batches):
    encoder = tiny.encoder(architecture)
    before = reading(encoder, batches[0])
    with gated(encoder, Units.full(encoder, 1)):
        assert torch.equal(reading(encoder, batches[0]), before)
    with gated(encoder, Units.full(encoder, 0.5)):
        assert not torch.allclose(reading(encoder, batches[0]), before)
    assert torch.equal(reading(encoder, batches[0]), before)


def test_a_gate_of_zero_is_a_head_or_neuron_without_weights(batches):
    encoder, pruned = tiny.encoder(), tiny.encoder()
    layer = pruned.layers[2]
    with torch.no_grad():
        layer.attention.self.value.weight[8:16] = 0  # the second head's rows
        layer.attention.self.value.bias[8:16] = 0
        layer.output.dense.weight[:, 5] = 0  # what reads the intermediate neuron
        layer.output.dense.weight[3] = 0
        layer.output.dense.bias[3] = 0
    gates = Units.full(encoder, 1)
    gates.heads[2, 1] = gates.intermediate[2, 5] = gates.output[2, 3] = 0
    with gated(encoder, gates):
        found = reading(encoder, batches[0])
    torch.testing.assert_close(found, reading(pruned, batches[0]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
@pytest.mark.parametrize(
    ("kind", "place"),
    [("heads", (1, 1)), ("heads", (3, 0)), ("intermediate", (0, 17)), ("output", (2, 9))],
)
def test_gate_gradients_are_finite_differences_averaged_over_batches(
    architecture, kind, place, batches
):
    encoder = tiny.encoder(architecture)
    found = gate_gradients(encoder, batches, masked_loss).tensors()[kind][place]
    slopes = []
    for batch in batches:
        values = []
        for step in (STEP, -STEP):
            with gated(encoder, moved(encoder, kind, place, step)), torch.no_grad():
                values.append(masked_loss(encoder, batch))
        slopes.append((values[0] - values[1]) / (2 * STEP))
    assert found.item() == pytest.approx(np.mean(slopes), rel=1e-5, abs=1e-9)


def test_gradients_of_the_divergence_are_finite_differences_under_the_same_dropout(batches):
    encoder = tiny.encoder(dropout=0.2)
    torch.manual_seed(5)
    found = gate_gradients(encoder, batches[:1], divergence).intermediate[1, 4]
    values = []
    for step in (STEP, -STEP):
        torch.manual_seed(5)
        with gated(encoder, moved(encoder, "intermediate", (1, 4), step)), torch.no_grad():
            values.append(divergence(encoder, batches[0]))
    slope = (values[0] - values[1]) / (2 * STEP)
    assert found.item() == pytest.approx(slope.item(), rel=1e-5)


def test_the_divergence_is_the_sum_over_states_written_out(batches):
    encoder, batch = tiny.encoder(dropout=0.2), batches[0]
    torch.manual_seed(7)
    found = divergence(encoder, batch).item()
    torch.manual_seed(7)
    with torch.no_grad():
        p, q = (torch.softmax(reading(encoder, batch), -1).numpy() for _ in range(2))
    real = np.argwhere(batch["attention_mask"].numpy())
    parts = [sum(a * np.log(a / b) for a, b in zip(p[i, j], q[i, j], strict=True)) for i, j in real]
    assert found == pytest.approx(sum(parts) / len(real), rel=1e-9)
    assert found > 0


def test_measuring_leaves_weights_and_gradients_alone(batches):
    encoder = tiny.encoder(dropout=0.1)
    before = {name: one.clone() for name, one in encoder.state_dict().items()}
    general, domain = general_importance(encoder, batches), domain_importance(encoder, batches)
    assert all(torch.equal(one, before[name]) for name, one in encoder.state_dict().items())
    assert all(one.grad is None for one in encoder.parameters())
    for units in (general, domain):
        for kind, values in units.tensors().items():
            assert values.shape == Units.full(encoder, 0).tensors()[kind].shape
            assert ((values >= 0) & (values < 1)).all()
    assert not torch.allclose(general.output, domain.output)


def test_importance_is_standardised_in_each_layer():
    gradients = np.array([[1.0, 2.0, 6.0], [-4.0, 0.0, 1.0]])
    same = np.full((2, 3), 0.25)
    units = Units(*(torch.tensor(kind) for kind in (gradients, same, gradients[:, :1])))
    found = normalised(units)
    spread = gradients.std(axis=1, ddof=1, keepdims=True)
    expected = np.abs(np.tanh((gradients - gradients.mean(axis=1, keepdims=True)) / spread))
    np.testing.assert_allclose(found.heads, expected)
    assert (found.intermediate == 0).all()
    assert (found.output == 0).all()  # one unit in a layer


@given(st.lists(st.floats(0, 1), min_size=18, max_size=18))
def test_importance_accumulates_by_the_larger(values):
    one, other = (
        Units(*(torch.tensor(values[at : at + 3])[None] for at in range(first, first + 9, 3)))
        for first in (0, 9)
    )
    both = accumulated(one, other)
    for kind in KINDS:
        left, right, found = (units.tensors()[kind][0].tolist() for units in (one, other, both))
        assert found == [max(pair) for pair in zip(left, right, strict=True)]


def test_an_encoder_without_dropout_has_no_general_importance(batches):
    with pytest.raises(BenchError, match="needs dropout"):
        general_importance(tiny.encoder(), batches)
