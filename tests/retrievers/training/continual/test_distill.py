"""Distillation from the model before a domain: the paper's formula, its gradient, its teacher."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from retrievers.training.continual.regularization import Distill, DistillTraining, kl_divergence
from retrievers.training.continual.sequence import Domain, adapt, read_method
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.masking import IGNORED
from retrievers.training.objectives.mlm import MLM
from retrievers.training.preset import Start
from retrievers.training.pretrain.start import open_start
from tests.support import small_starts as small
from tests.support import tiny_encoders as tiny
from tests.support.small_starts import have_equal_weights, on_cpu, weights

TEXTS = small.texts(40)
DOMAINS = (Domain("one", TEXTS[:20]), Domain("two", TEXTS[20:]))


@pytest.fixture
def batch(tmp_path: Path) -> dict[str, Tensor]:
    collate = MLM(mask=0.4).collator(tiny.tokenizer(tmp_path), 16)
    return collate(tiny.examples(tiny.TEXTS))


def moved(encoder: MaskedLM) -> MaskedLM:
    """The same encoder elsewhere."""
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in encoder.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=drawn, dtype=weight.dtype)
    return encoder


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
    student = moved(tiny.encoder(architecture))
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


def test_the_gradient_is_that_of_the_papers_cross_entropy(batch):
    teacher, student = tiny.encoder(), moved(tiny.encoder())
    module = DistillTraining(student, teacher, 1.0, 2.0)
    module(**batch)["distillation"].backward()
    by_module = [weight.grad.clone() for weight in student.parameters()]
    student.zero_grad()
    logits = student.model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"].long()
    ).logits[batch["labels"] != IGNORED]
    old = torch.tensor(softened(teacher, batch, 2.0))
    (-(old * torch.log_softmax(logits / 2.0, dim=1)).sum(dim=1).mean()).backward()
    for ours, weight in zip(by_module, student.parameters(), strict=True):
        torch.testing.assert_close(ours, weight.grad, rtol=1e-9, atol=1e-12)


def test_a_model_that_is_its_own_teacher_has_no_distillation_loss(batch):
    student = tiny.encoder()
    losses = DistillTraining(student, tiny.encoder(), 3.0, 2.0)(**batch)
    assert losses["distillation"].item() == pytest.approx(0, abs=1e-14)
    losses["distillation"].backward()
    assert all(weight.grad.abs().max() < 1e-12 for weight in student.parameters())


def test_without_masked_tokens_there_is_nothing_to_compare():
    nothing = torch.zeros(0, 7, requires_grad=True)
    assert kl_divergence(nothing, nothing, 2.0).item() == 0


def test_half_precision_is_compared_in_float32():
    logits, answers = torch.randn(2, 5, 9).bfloat16()
    exact = kl_divergence(logits.float(), answers.float(), 2.0)
    assert kl_divergence(logits, answers, 2.0).equal(exact)


def test_the_teacher_is_neither_trained_nor_saved_and_has_no_dropout(batch):
    student, teacher = tiny.encoder(dropout=0.3), moved(tiny.encoder(dropout=0.3))
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
def test_it_begins_as_plain_and_with_weight_0_stays_so_to_the_bit(start, tmp_path):
    plain = trained(start, tmp_path / "plain" / "x")
    nothing = trained(start, tmp_path / "nothing" / "x", method="distill", weight=0)
    usual = trained(start, tmp_path / "usual" / "x", method="distill")
    assert all(have_equal_weights(a.folder, b.folder) for a, b in zip(plain, nothing, strict=True))
    assert have_equal_weights(usual[0].folder, plain[0].folder)
    assert not have_equal_weights(usual[1].folder, plain[1].folder)


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
