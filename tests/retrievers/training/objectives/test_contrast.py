"""Contrastive losses and SimCSE against sums over pairs, and across processes."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed
from torch.multiprocessing import start_processes

from foundation.errors import BenchError
from retrievers.training.objectives.masked_lm import (
    contrastive_loss,
    cosine_contrast,
    span_contrast,
)
from retrievers.training.objectives.simcse import SimCSE
from tests.support import slow_transformer as slow
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]


def vectors(count: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(count, 5, generator=random, dtype=torch.float64)


def slow_contrast(anchors: Tensor, candidates: Tensor, temperature: float) -> float:
    total = 0.0
    for i, anchor in enumerate(anchors):
        below = sum(math.exp(float(anchor @ other) / temperature) for other in candidates)
        total -= math.log(math.exp(float(anchor @ candidates[i]) / temperature) / below)
    return total / len(anchors)


def slow_span_contrast(spans: Tensor) -> float:
    total = 0.0
    documents = len(spans) // 2
    for i in range(documents):
        for j in (0, 1):
            own, other = spans[2 * i + j], spans[2 * i + 1 - j]
            below = 0.0
            for k in range(documents):
                for m in (0, 1):
                    if (k, m) != (i, j):
                        below += math.exp(float(own @ spans[2 * k + m]))
            total -= math.log(math.exp(float(own @ other)) / below)
    return total / (2 * documents)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_contrast_is_the_sum_over_pairs(temperature: float) -> None:
    anchors, candidates = vectors(6), vectors(6, seed=1)
    expected = slow_contrast(anchors, candidates, temperature)
    assert float(contrastive_loss(anchors, candidates, temperature)) == pytest.approx(
        expected, abs=1e-10
    )


def test_cosine_contrast_ignores_lengths() -> None:
    anchors, candidates = vectors(6), vectors(6, seed=1)
    units = [side / side.norm(dim=1, keepdim=True) for side in (anchors, candidates)]
    expected = slow_contrast(units[0], units[1], 0.05)
    found = cosine_contrast(3 * anchors, candidates / 7, 0.05)
    assert float(found) == pytest.approx(expected, abs=1e-10)


def test_span_contrast_is_the_sum_over_spans() -> None:
    spans = vectors(8)
    assert float(span_contrast(spans)) == pytest.approx(slow_span_contrast(spans), abs=1e-10)


def test_large_scores_keep_their_precision_under_autocast() -> None:
    spans = 10 * vectors(8).float()
    expected = span_contrast(spans)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(span_contrast(spans), expected)


def one_process(rank: int, folder: str) -> None:
    """Half of the documents; keeps its loss and gradient."""
    store = distributed.FileStore(f"{folder}/store", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    own = vectors(8)[4 * rank : 4 * rank + 4].clone().requires_grad_()
    loss = span_contrast(own)
    loss.backward()
    torch.save((loss.detach(), own.grad), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_use_each_others_spans_as_negatives(tmp_path: Path) -> None:
    start_processes(one_process, (str(tmp_path),), nprocs=2, start_method="fork")
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    whole = vectors(8).requires_grad_()
    loss = span_contrast(whole)
    loss.backward()

    torch.testing.assert_close((parts[0][0] + parts[1][0]) / 2, loss.detach())
    # a trainer averages the gradients of its processes
    torch.testing.assert_close(torch.cat([parts[0][1], parts[1][1]]) / 2, whole.grad)


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


def test_the_head_that_predicts_tokens_is_left_alone() -> None:
    heads = SimCSE().build_module(tiny.encoder(dropout=0.1))
    frozen = {name for name, one in heads.named_parameters() if not one.requires_grad}
    assert frozen
    assert all(".cls." in name for name in frozen)
    assert heads.encoder.model.get_input_embeddings().weight.requires_grad


def test_an_encoder_without_dropout_is_refused() -> None:
    with pytest.raises(BenchError, match="SimCSE needs dropout"):
        SimCSE().build_module(tiny.encoder())
