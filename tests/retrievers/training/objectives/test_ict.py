"""Inverse cloze task: the loss against sums over pairs, and its pairs."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from foundation.errors import BenchError
from retrievers.training.objectives.ict import ICT
from retrievers.training.objectives.objective import read_objective
from tests.retrievers.training.objectives.test_contrast import slow_contrast
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    collate = ICT(kept=0.0).collator(tiny.tokenizer(tmp_path), 16)
    return collate(tiny.examples(tiny.TEXTS))


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_the_loss_contrasts_sentences_with_texts(architecture: str, batch: Batch) -> None:
    heads = ICT().build_module(tiny.encoder(architecture)).double()
    with torch.no_grad():
        loss = heads(**batch)["loss"]
        sentences = heads.encoder(batch["sentence_ids"], batch["sentence_mask"])[-1][:, 0]
        texts = heads.encoder(batch["input_ids"], batch["attention_mask"])[-1][:, 0]
    assert loss.item() == pytest.approx(slow_contrast(sentences, texts, 1.0), abs=1e-8)


@pytest.mark.parametrize("sub_batch", [1, 4])
def test_sub_batches_have_the_gradient_of_the_whole_batch(sub_batch: int, batch: Batch) -> None:
    whole = tiny.gradients(ICT().build_module(tiny.encoder()).double(), batch)
    parts = tiny.gradients(ICT(sub_batch=sub_batch).build_module(tiny.encoder()).double(), batch)
    assert whole.keys() == parts.keys()
    for name, expected in whole.items():
        torch.testing.assert_close(parts[name], expected, rtol=1e-8, atol=1e-10)


def test_the_sentence_is_not_in_its_text(batch: Batch, tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer(tmp_path)
    decoded = {
        side: tokenizer.batch_decode(batch[side], skip_special_tokens=True)
        for side in ("sentence_ids", "input_ids")
    }
    for text, sentence, rest in zip(tiny.TEXTS, *decoded.values(), strict=True):
        assert sentence.replace(" .", ".") in text
        assert sentence not in rest
        assert len(sentence) + len(rest) >= 0.8 * len(text)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_a_tiny_batch_is_learnt_by_heart(architecture: str, batch: Batch) -> None:
    encoder = tiny.encoder(architecture, initializer_range=0.1)
    losses = tiny.train(ICT().build_module(encoder).double(), batch, 40, lr=0.01)
    assert losses[-1] < 0.05 < 1.5 < losses[0]


def test_settings_are_read_strictly() -> None:
    assert read_objective({"name": "ict", "sub_batch": 8}) == ICT(sub_batch=8)
    with pytest.raises(BenchError, match="kept"):
        read_objective({"name": "ict", "kept": 1.5})
