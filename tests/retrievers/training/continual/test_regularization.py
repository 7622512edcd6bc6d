"""EWC: Fisher information and penalty against their formulas."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from retrievers.training.continual.methods import (
    CENTRE,
    EWC,
    FISHER,
    EWCTraining,
    accumulate_fisher,
    estimate_fisher,
)
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.mlm import MLM
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]
STRENGTH = 30.0


@pytest.fixture
def texts(tmp_path: Path) -> list[Batch]:
    collate = MLM(mask=0.4).collator(tiny.tokenizer(tmp_path), 16)
    return [collate(tiny.examples([text], place)) for place, text in enumerate(tiny.TEXTS)]


def moved(encoder: MaskedLM, seed: int) -> MaskedLM:
    """The same encoder elsewhere."""
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in encoder.parameters():
            one += 0.1 * torch.randn(one.shape, generator=drawn, dtype=one.dtype)
    return encoder


def arrays(encoder: MaskedLM) -> dict[str, np.ndarray]:
    return {name: one.detach().numpy().copy() for name, one in encoder.named_parameters()}


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_fisher_is_the_mean_of_squared_gradients_of_single_texts(architecture, texts):
    encoder = tiny.encoder(architecture)
    expected = {name: np.zeros(one.shape) for name, one in encoder.named_parameters()}
    for text in texts:
        encoder.zero_grad()
        logits = encoder.model(
            input_ids=text["input_ids"], attention_mask=text["attention_mask"].long()
        ).logits
        functional.cross_entropy(logits.flatten(0, 1), text["labels"].flatten()).backward()
        for name, one in encoder.named_parameters():
            if one.grad is not None:
                expected[name] += one.grad.numpy() ** 2 / len(texts)
    encoder.zero_grad()
    found = estimate_fisher(encoder, texts)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-9, atol=1e-16)
    assert all(one.grad is None for one in encoder.parameters())


def test_the_penalty_is_its_formula(texts):
    encoder = tiny.encoder()
    importance = estimate_fisher(encoder, texts)
    there = arrays(encoder)
    heads = EWCTraining(moved(encoder, 1), accumulate_fisher(encoder, importance, None), STRENGTH)
    assert heads.penalty().item() == 0  # held where it is
    held = {FISHER + name: one for name, one in importance.items()}
    held |= {CENTRE + name: torch.tensor(one) for name, one in there.items()}
    heads = EWCTraining(encoder, held, STRENGTH)
    here = arrays(encoder)
    expected = sum(
        (importance[name].numpy() * (here[name] - there[name]) ** 2).sum() for name in here
    )
    assert heads.penalty().item() == pytest.approx(STRENGTH / 2 * expected, rel=1e-9)


def test_one_penalty_has_the_gradient_of_one_for_each_domain(texts):
    encoder = tiny.encoder()
    held, apart = None, []
    for domain, part in enumerate((texts[:2], texts[2:4], texts[4:])):
        moved(encoder, domain)
        importance = estimate_fisher(encoder, part)
        held = accumulate_fisher(encoder, importance, held)
        apart.append((importance, arrays(encoder)))
    moved(encoder, 9)
    EWCTraining(encoder, held, STRENGTH).penalty().backward()
    for name, one in encoder.named_parameters():
        here = one.detach().numpy()
        expected = sum(
            STRENGTH * importance[name].numpy() * (here - there[name])
            for importance, there in apart
        )
        np.testing.assert_allclose(one.grad.numpy(), expected, rtol=1e-7, atol=1e-12)


def test_the_loss_is_mlm_and_the_penalty(texts, tmp_path):
    encoder = tiny.encoder()
    state = tmp_path / "state.safetensors"
    save_file(accumulate_fisher(encoder, estimate_fisher(encoder, texts), None), str(state))
    heads = EWC(state=str(state), strength=STRENGTH).build_module(moved(encoder, 1))
    losses = heads(**texts[0])
    mlm = MLM().build_module(encoder)(**texts[0])["loss"].item()
    assert losses["mlm"].item() == pytest.approx(mlm, rel=1e-12)
    assert losses["penalty"].item() == pytest.approx(heads.penalty().item())
    assert losses["penalty"].item() > 0
    assert losses["loss"].item() == pytest.approx(mlm + losses["penalty"].item())
    assert not any("fisher" in name for name in heads.state_dict())
