"""DAS: importance of units against finite differences, softened weights, its loss against loops."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from foundation.errors import BenchError
from retrievers.training.continual.das import (
    DAS,
    KINDS,
    Units,
    fill_units,
    gate_gradients,
    gate_units,
    kl_divergence,
    masked_loss,
    normalise,
)
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.mlm import MLM
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]
STEP = 1e-6


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    collate = DAS(state="", mask=0.4).collator(tiny.tokenizer(tmp_path), 16)
    return collate(tiny.examples(tiny.TEXTS))


def written(folder: Path, units: Units) -> str:
    save_file(units, str(folder / "state.safetensors"))
    return str(folder / "state.safetensors")


def random_units(encoder) -> Units:
    drawn = torch.Generator().manual_seed(1)
    return {
        kind: torch.rand(one.shape, generator=drawn, dtype=one.dtype)
        for kind, one in fill_units(encoder, 0).items()
    }


def heads_with(folder: Path, units: Units | float, architecture: str = "bert", **settings):
    encoder = tiny.encoder(architecture, dropout=0.1)
    if isinstance(units, float):
        units = fill_units(encoder, units)
    return DAS(state=written(folder, units), **settings).build_module(encoder)


def expected_factors(encoder, units: Units) -> dict[str, np.ndarray]:
    """1 − I of every weight that belongs to a unit, unit by unit."""
    found = {name: np.ones(one.shape) for name, one in encoder.named_parameters()}
    prefix = f"model.{encoder.config.model_type}.encoder.layer"
    width = encoder.config.hidden_size // encoder.config.num_attention_heads
    for layer in range(encoder.config.num_hidden_layers):
        at = f"{prefix}.{layer}"
        for head in range(encoder.config.num_attention_heads):
            free = 1 - units["heads"][layer, head].item()
            for place in range(head * width, (head + 1) * width):
                for part in ("query", "key", "value"):
                    found[f"{at}.attention.self.{part}.weight"][place, :] = free
                    found[f"{at}.attention.self.{part}.bias"][place] = free
                found[f"{at}.attention.output.dense.weight"][:, place] = free
        for kind in ("intermediate", "output"):
            for unit, importance in enumerate(units[kind][layer].tolist()):
                found[f"{at}.{kind}.dense.weight"][unit, :] = 1 - importance
                found[f"{at}.{kind}.dense.bias"][unit] = 1 - importance
    return found


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_each_gradient_is_multiplied_by_what_its_unit_is_free(architecture, batch, tmp_path):
    units = random_units(tiny.encoder(architecture))
    soft, hard = (heads_with(tmp_path, units, architecture) for _ in range(2))
    for weight in hard.parameters():
        if weight._backward_hooks:
            weight._backward_hooks.clear()
    factors = expected_factors(soft.encoder, units)
    whole, softened = tiny.gradients(hard, batch), tiny.gradients(soft, batch)
    assert whole.keys() == softened.keys()
    for name, gradient in whole.items():
        expected = gradient * torch.tensor(factors[name.removeprefix("encoder.")])
        torch.testing.assert_close(softened[name], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_the_loss_is_mlm_and_the_contrast_written_out(architecture, batch, tmp_path):
    units = random_units(tiny.encoder(architecture))
    heads = heads_with(tmp_path, units, architecture, temperature=0.1)
    ids, mask, labels = (batch[name] for name in ("input_ids", "attention_mask", "labels"))
    whole = torch.where(labels >= 0, labels, ids)
    with torch.no_grad():
        torch.manual_seed(3)
        losses = heads(**batch)
        torch.manual_seed(3)
        mlm = heads.encoder.loss(heads.encoder(ids, mask)[-1], labels)
        states = [heads.encoder(whole.repeat(2, 1), mask.repeat(2, 1))[-1]]
        with gate_units(heads.encoder, units):
            states.append(heads.encoder(whole, mask)[-1])
    n = len(ids)
    vectors = []
    for text, state in enumerate(torch.cat(states)):
        real = [
            row for row, kept in zip(state.tolist(), mask[text % n].tolist(), strict=True) if kept
        ]
        vectors.append([sum(column) / len(real) for column in zip(*real, strict=True)])
    anchors, positives, known = vectors[:n], vectors[n : 2 * n], vectors[2 * n :]
    total = 0.0
    for i in range(n):
        shares = [math.exp(cosine(anchors[i], one) / 0.1) for one in (*positives, *known)]
        total -= math.log(shares[i] / sum(shares)) / n
    assert losses["mlm"].item() == pytest.approx(mlm.item(), rel=1e-9)
    assert losses["contrast"].item() == pytest.approx(total, rel=1e-6)
    assert losses["loss"].item() == pytest.approx(mlm.item() + total, rel=1e-6)


def cosine(one: list[float], other: list[float]) -> float:
    inner = sum(x * y for x, y in zip(one, other, strict=True))
    return inner / math.sqrt(sum(x * x for x in one) * sum(y * y for y in other))


def test_importance_of_another_model_is_refused(tmp_path):
    path = written(tmp_path, fill_units(tiny.encoder(num_hidden_layers=3), 0.5))
    with pytest.raises(BenchError, match="does not fit this model: heads"):
        DAS(state=path).build_module(tiny.encoder(dropout=0.1))


@pytest.fixture
def batches(tmp_path: Path) -> list[Batch]:
    collate = MLM(mask=0.4).collator(tiny.tokenizer(tmp_path), 16)
    return [collate(tiny.examples(tiny.TEXTS[:4])), collate(tiny.examples(tiny.TEXTS[4:], 4))]


def reading(encoder: MaskedLM, batch: Batch) -> Tensor:
    return encoder(batch["input_ids"], batch["attention_mask"])[-1]


def moved(encoder: MaskedLM, kind: str, place: tuple[int, int], step: float) -> Units:
    """Gates of 1, one of them moved."""
    gates = fill_units(encoder, 1)
    gates[kind][place] += step
    return gates


def test_a_gate_of_zero_is_a_head_or_neuron_without_weights(batches):
    encoder, pruned = tiny.encoder(), tiny.encoder()
    layer = pruned.layers[2]
    with torch.no_grad():
        layer.attention.self.value.weight[8:16] = 0  # the second head's rows
        layer.attention.self.value.bias[8:16] = 0
        layer.output.dense.weight[:, 5] = 0  # what reads the intermediate neuron
        layer.output.dense.weight[3] = 0
        layer.output.dense.bias[3] = 0
    gates = fill_units(encoder, 1)
    for kind, unit in (("heads", 1), ("intermediate", 5), ("output", 3)):
        gates[kind][2, unit] = 0
    with gate_units(encoder, gates):
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
    found = gate_gradients(encoder, batches, masked_loss)[kind][place]
    slopes = []
    for batch in batches:
        values = []
        for step in (STEP, -STEP):
            with gate_units(encoder, moved(encoder, kind, place, step)), torch.no_grad():
                values.append(masked_loss(encoder, batch))
        slopes.append((values[0] - values[1]) / (2 * STEP))
    assert found.item() == pytest.approx(np.mean(slopes), rel=1e-5, abs=1e-9)


def test_gradients_of_the_divergence_are_finite_differences_under_the_same_dropout(batches):
    encoder = tiny.encoder(dropout=0.2)
    torch.manual_seed(5)
    found = gate_gradients(encoder, batches[:1], kl_divergence)["intermediate"][1, 4]
    values = []
    for step in (STEP, -STEP):
        torch.manual_seed(5)
        with gate_units(encoder, moved(encoder, "intermediate", (1, 4), step)), torch.no_grad():
            values.append(kl_divergence(encoder, batches[0]))
    slope = (values[0] - values[1]) / (2 * STEP)
    assert found.item() == pytest.approx(slope.item(), rel=1e-5)


def test_the_divergence_is_the_sum_over_states_written_out(batches):
    encoder, batch = tiny.encoder(dropout=0.2), batches[0]
    torch.manual_seed(7)
    found = kl_divergence(encoder, batch).item()
    torch.manual_seed(7)
    with torch.no_grad():
        p, q = (torch.softmax(reading(encoder, batch), -1).numpy() for _ in range(2))
    real = np.argwhere(batch["attention_mask"].numpy())
    parts = [sum(a * np.log(a / b) for a, b in zip(p[i, j], q[i, j], strict=True)) for i, j in real]
    assert found == pytest.approx(sum(parts) / len(real), rel=1e-9)
    assert found > 0


def test_importance_is_standardised_in_each_layer():
    gradients = np.array([[1.0, 2.0, 6.0], [-4.0, 0.0, 1.0]])
    same = np.full((2, 3), 0.25)
    kinds = (gradients, same, gradients[:, :1])
    found = normalise(dict(zip(KINDS, map(torch.tensor, kinds), strict=True)))
    spread = gradients.std(axis=1, ddof=1, keepdims=True)
    expected = np.abs(np.tanh((gradients - gradients.mean(axis=1, keepdims=True)) / spread))
    np.testing.assert_allclose(found["heads"], expected)
    assert (found["intermediate"] == 0).all()
    assert (found["output"] == 0).all()  # one unit in a layer
