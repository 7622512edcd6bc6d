"""EWC and distillation: Fisher information, penalty and divergence against their formulas."""

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
    Distill,
    DistillTraining,
    EWCTraining,
    accumulate_fisher,
    estimate_fisher,
    kl_divergence,
)
from retrievers.training.continual.sequence import Domain, adapt, read_method
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.masking import IGNORED
from retrievers.training.objectives.mlm import MLM
from retrievers.training.preset import Start
from retrievers.training.pretrain.start import open_start
from tests.support import small_starts as small
from tests.support import tiny_encoders as tiny
from tests.support.small_starts import on_cpu, weights

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


TEXTS = small.texts(40)
DOMAINS = (Domain("one", TEXTS[:20]), Domain("two", TEXTS[20:]))


@pytest.fixture
def batch(tmp_path: Path) -> dict[str, Tensor]:
    collate = MLM(mask=0.4).collator(tiny.tokenizer(tmp_path), 16)
    return collate(tiny.examples(tiny.TEXTS))


def softened(encoder: MaskedLM, batch: dict[str, Tensor], temperature: float) -> np.ndarray:
    """p^(1/T), normalised, of the predictions p of the masked tokens, as the paper writes it."""
    with torch.no_grad():
        logits = encoder.model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"].long()
        ).logits
    chosen = logits.numpy()[batch["labels"].numpy() != IGNORED]
    predicted = np.exp(chosen) / np.exp(chosen).sum(axis=1, keepdims=True)
    powers = predicted ** (1 / temperature)
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_loss_is_the_papers_less_the_entropy_of_the_teacher(architecture, temperature, batch):
    teacher = tiny.encoder(architecture)
    student = moved(tiny.encoder(architecture), 1)
    old, new = (softened(each, batch, temperature) for each in (teacher, student))
    cross_entropy = -(old * np.log(new)).sum(axis=1).mean()
    entropy = -(old * np.log(old)).sum(axis=1).mean()
    losses = DistillTraining(student, teacher, 0.7, temperature)(**batch)
    assert losses["distillation"].item() == pytest.approx(
        0.7 * (cross_entropy - entropy), rel=1e-10
    )
    assert losses["distillation"].item() > 0
    alone = MLM().build_module(student)(**batch)["loss"].item()
    assert losses["mlm"].item() == pytest.approx(alone, rel=1e-12)
    assert losses["loss"].item() == pytest.approx(alone + losses["distillation"].item())


def test_without_masked_tokens_there_is_nothing_to_compare():
    nothing = torch.zeros(0, 7, requires_grad=True)
    assert kl_divergence(nothing, nothing, 2.0).item() == 0


def test_half_precision_is_compared_in_float32():
    logits, answers = torch.randn(2, 5, 9).bfloat16()
    exact = kl_divergence(logits.float(), answers.float(), 2.0)
    assert kl_divergence(logits, answers, 2.0).equal(exact)


def test_the_teacher_is_neither_trained_nor_saved_and_has_no_dropout(batch):
    student, teacher = tiny.encoder(dropout=0.3), moved(tiny.encoder(dropout=0.3), 1)
    module = DistillTraining(student, teacher, 1.0, 2.0).train()
    before = [weight.clone() for weight in teacher.parameters()]
    tiny.train(module, batch, steps=3, lr=0.01)
    assert all(map(torch.equal, before, teacher.parameters()))
    plain = MLM().build_module(student)
    assert module.state_dict().keys() == plain.state_dict().keys()
    assert not any(part.training for part in teacher.modules())


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    return small.write_start(tmp_path_factory.mktemp("start") / "bert", TEXTS)


def trained(start: Path, out: Path, method: str = "plain", **options):
    preset = small.preset(start, objective={"name": "mlm", "mask": 0.3}, steps=4)
    return adapt(preset, DOMAINS, read_method({"name": method, **options}), on_cpu(out))


@pytest.mark.slow
def test_the_teacher_of_a_domain_is_the_model_before_it_with_its_head(start, tmp_path):
    first, second = trained(start, tmp_path / "x", method="distill", weight=2.0, temperature=3.0)
    recorded = (Path(second.folder) / "heads" / "objective.json").read_bytes()
    assert first.folder.encode() in recorded
    objective = Distill(teacher=first.folder, weight=2.0, temperature=3.0)
    module = objective.build_module(open_start(Start(model=second.folder), 0).encoder)
    (teacher,) = module.teacher
    held = weights(first.folder)
    own = dict(teacher.encoder.named_parameters())
    assert all(torch.equal(own[name], held[name]) for name in own)
    head = dict(teacher.named_parameters())
    for name, value in held.items():
        if name.startswith("heads "):
            assert torch.equal(head[name.removeprefix("heads encoder.")], value)
    assert (module.weight, module.temperature) == (2.0, 3.0)
