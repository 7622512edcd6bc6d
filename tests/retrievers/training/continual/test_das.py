"""DAS: which weights are softened by how much, and its loss against loops."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from foundation.errors import BenchError
from retrievers.training.continual.das import DAS, DASTraining
from retrievers.training.continual.units import Units, gated
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    collate = DAS(state="", mask=0.4).collator(tiny.tokenizer(tmp_path), 16)
    return collate(tiny.examples(tiny.TEXTS))


def written(folder: Path, units: Units) -> str:
    save_file(units.tensors(), str(folder / "state.safetensors"))
    return str(folder / "state.safetensors")


def random_units(encoder) -> Units:
    drawn = torch.Generator().manual_seed(1)
    return Units.full(encoder, 0).map(
        lambda kind: torch.rand(kind.shape, generator=drawn, dtype=kind.dtype)
    )


def heads_with(folder: Path, units: Units | float, architecture: str = "bert", **settings):
    encoder = tiny.encoder(architecture, dropout=0.1)
    if isinstance(units, float):
        units = Units.full(encoder, units)
    return DAS(state=written(folder, units), **settings).build_module(encoder)


def expected_factors(encoder, units: Units) -> dict[str, np.ndarray]:
    """1 − I of every weight that belongs to a unit, unit by unit."""
    found = {name: np.ones(one.shape) for name, one in encoder.named_parameters()}
    prefix = f"model.{encoder.config.model_type}.encoder.layer"
    width = encoder.config.hidden_size // encoder.config.num_attention_heads
    for layer in range(encoder.config.num_hidden_layers):
        at = f"{prefix}.{layer}"
        for head in range(encoder.config.num_attention_heads):
            free = 1 - units.heads[layer, head].item()
            for place in range(head * width, (head + 1) * width):
                for part in ("query", "key", "value"):
                    found[f"{at}.attention.self.{part}.weight"][place, :] = free
                    found[f"{at}.attention.self.{part}.bias"][place] = free
                found[f"{at}.attention.output.dense.weight"][:, place] = free
        for kind in ("intermediate", "output"):
            for unit, importance in enumerate(units.tensors()[kind][layer].tolist()):
                found[f"{at}.{kind}.dense.weight"][unit, :] = 1 - importance
                found[f"{at}.{kind}.dense.bias"][unit] = 1 - importance
    return found


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_each_gradient_is_multiplied_by_what_its_unit_is_free(architecture, batch, tmp_path):
    units = random_units(tiny.encoder(architecture))
    soft = heads_with(tmp_path, units, architecture, soften="gradient")
    hard = heads_with(tmp_path, units, architecture, soften="update")  # its gradients are whole
    factors = expected_factors(soft.encoder, units)
    whole, softened = tiny.gradients(hard, batch), tiny.gradients(soft, batch)
    assert whole.keys() == softened.keys()
    for name, gradient in whole.items():
        expected = gradient * torch.tensor(factors[name.removeprefix("encoder.")])
        torch.testing.assert_close(softened[name], expected, rtol=1e-12, atol=1e-14)


def moves(heads: DASTraining, batch: Batch, steps: int = 3) -> dict[str, Tensor]:
    """How far each weight goes in steps of AdamW, as the trainer takes them."""
    before = {name: one.detach().clone() for name, one in heads.encoder.named_parameters()}
    optimizer = torch.optim.AdamW(heads.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        heads(**batch)["loss"].backward()
        heads.before_step()
        optimizer.step()
        heads.after_step()
    return {name: one.detach() - before[name] for name, one in heads.encoder.named_parameters()}


def test_a_softened_update_is_that_part_of_the_step(batch, tmp_path):
    units = random_units(tiny.encoder())
    heads = heads_with(tmp_path, units, soften="update")
    factors = expected_factors(heads.encoder, units)
    found, free = (
        moves(heads_with(tmp_path, units, soften=kind), batch, steps=1)
        for kind in ("update", "gradient")
    )
    for name, factor in factors.items():
        # The first step of AdamW is the learning rate in the direction of the gradient's sign.
        expected = torch.tensor(factor) * 1e-3
        real = free[name].abs() > 0.99e-3
        torch.testing.assert_close(found[name].abs()[real], expected[real], rtol=1e-2, atol=0)


def test_adamw_undoes_a_factor_on_gradients_but_not_one_on_steps(batch, tmp_path):
    name = "model.bert.encoder.layer.1.intermediate.dense.weight"
    far = {}
    for kind in ("gradient", "update"):
        for importance in (0.0, 0.9):
            heads = heads_with(tmp_path, importance, soften=kind)
            far[kind, importance] = moves(heads, batch)[name].norm().item()
    assert far["gradient", 0.9] > 0.9 * far["gradient", 0.0]
    assert far["update", 0.9] < 0.2 * far["update", 0.0]


def test_units_of_importance_one_do_not_move(batch, tmp_path):
    for kind in ("gradient", "update"):
        heads = heads_with(tmp_path, 1.0, soften=kind)
        found = moves(heads, batch)
        factors = expected_factors(heads.encoder, heads.importance)
        for name, move in found.items():
            assert (move[torch.tensor(factors[name] == 0)] == 0).all()
        assert found["model.bert.embeddings.word_embeddings.weight"].abs().max() > 0


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
        with gated(heads.encoder, units):
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


def test_a_tiny_batch_is_overfitted(batch, tmp_path):
    heads = heads_with(tmp_path, 0.5)
    losses = tiny.train(heads, batch, steps=80, lr=3e-3)
    assert losses[-1] < 0.5 * losses[0]


def test_importance_of_another_model_is_refused(tmp_path):
    path = written(tmp_path, Units.full(tiny.encoder(num_hidden_layers=3), 0.5))
    with pytest.raises(BenchError, match="not the importance of heads of this model"):
        DAS(state=path).build_module(tiny.encoder(dropout=0.1))


def test_importance_is_not_saved_with_the_weights(tmp_path):
    heads = heads_with(tmp_path, 0.5)
    assert not {"heads", "intermediate", "output"} & set(heads.state_dict())
