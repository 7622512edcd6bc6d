"""CoT-MAE: the loss from its equation, what the decoder may see, and pairs of spans."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retrievers.training.objectives.masking import Context
from retrievers.training.objectives.retromae import CoTMAE
from tests.support import slow_transformer as slow
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    collate = CoTMAE().collator(tiny.tokenizer(tmp_path), 10)
    return collate(tiny.examples(tiny.TEXTS[:3]))


def training(architecture: str = "bert", **settings: Any) -> Any:
    return CoTMAE(**settings).build_module(tiny.encoder(architecture)).double()


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
@pytest.mark.parametrize("layers", [1, 2])
def test_a_span_is_predicted_from_the_embedding_of_the_other(
    architecture: str, layers: int, batch: Batch
) -> None:
    """One token at a time; the partner's own ids and padding are taken, not the batch's."""
    heads = training(architecture, decoder_layers=layers)
    with torch.no_grad():
        losses = {name: float(loss) for name, loss in heads(**batch).items()}
        states = heads.encoder(batch["input_ids"], batch["attention_mask"])[-1].tolist()
        embedded = heads.encoder.embed(batch["decoder_input_ids"]).tolist()
    decoded = []
    for own, other in ((0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4)):
        stream = [states[own][0], *embedded[own][1:]]
        real = [place for place, here in enumerate(batch["attention_mask"][other]) if here]
        for layer in heads.decoder:
            stream = slow.transformer_layer(layer, stream, [real] * len(stream))
        decoded.append(stream)
    encoder = slow.masked_lm_loss(heads.encoder.model, states, batch["labels"])
    decoder = slow.masked_lm_loss(heads.encoder.model, decoded, batch["decoder_labels"])
    expected = {"loss": encoder + decoder, "encoder_mlm": encoder, "decoder_mlm": decoder}
    assert losses == pytest.approx(expected, abs=1e-8)


def unmasked(inputs: Tensor, labels: Tensor) -> Tensor:
    return torch.where(labels == -100, inputs, labels)


def test_both_spans_of_a_pair_are_read_and_counted(batch: Batch) -> None:
    read = unmasked(batch["input_ids"], batch["labels"])
    decoder_tokens = unmasked(batch["decoder_input_ids"], batch["decoder_labels"])
    exchanged = [1, 0, 3, 2, 5, 4]
    assert torch.equal(decoder_tokens, read[exchanged])
    assert torch.equal(batch["decoder_context"], batch["attention_mask"][exchanged])
    assert not torch.equal(batch["decoder_labels"], batch["labels"][exchanged])


def test_masks_hide_the_shares_of_the_paper(tmp_path: Path) -> None:
    collate = CoTMAE().collator(tiny.tokenizer(tmp_path), 64)
    batch = collate(tiny.examples([" ".join(tiny.TEXTS * 20)] * 40))
    words = (batch["attention_mask"].sum(dim=1) - 2).sum()
    for labels, share in (("labels", 0.3), ("decoder_labels", 0.45)):
        assert float((batch[labels] != -100).sum() / words) == pytest.approx(share, abs=0.01)


def decoder_loss(heads: Any, batch: Batch, row: int) -> Tensor:
    """Of one row alone."""
    labels = torch.full_like(batch["decoder_labels"], -100)
    labels[row] = batch["decoder_labels"][row]
    loss: Tensor = heads(**{**batch, "decoder_labels": labels})["decoder_mlm"]
    return loss


def test_the_decoder_reaches_its_context_through_one_vector(batch: Batch) -> None:
    heads = training()
    kept = tiny.keep_last_states(heads.encoder)
    decoder_loss(heads, batch, 2).backward()
    (states,) = kept
    assert states.grad[2, 0].any()
    states.grad[2, 0] = 0
    assert not states.grad.any()


def test_a_decoder_that_reads_zeros_does_not_see_the_context(batch: Batch) -> None:
    heads = training(decoder_reads="zero")
    other = {**batch, "input_ids": batch["input_ids"].flip(1)}
    assert torch.equal(heads(**batch)["decoder_mlm"], heads(**other)["decoder_mlm"])


# Words of one to three tokens, each once, so that a token's place in the text is known.
PIECES = [f"{a}{b}{c}" for a in "bcdf" for b in "ghjk" for c in ("", "l", "mn")]


@pytest.mark.parametrize("context", ["nearby", "overlap", "random"])
def test_pairs_lie_in_their_document_as_their_kind_says(context: Context, tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer(tmp_path)
    text = " ".join(PIECES)
    whole = tokenizer(text, add_special_tokens=False)["input_ids"]
    batch = CoTMAE(contexts=(context,)).collator(tokenizer, 14)(tiny.examples([text] * 40))
    read = unmasked(batch["input_ids"], batch["labels"])
    gaps = []
    for pair in range(40):
        spans = [
            read[row][batch["attention_mask"][row]].tolist()[1:-1]
            for row in (2 * pair, 2 * pair + 1)
        ]
        starts = [
            next(i for i in range(len(whole)) if whole[i : i + len(span)] == span) for span in spans
        ]
        assert len(spans[0]) == 12
        gaps.append(starts[1] - starts[0] - 12)  # tokens between what is read of both
    if context == "nearby":
        assert set(gaps) == {0}
    elif context == "overlap":
        assert all(-6 <= gap < 0 for gap in gaps)  # at most half of the tokens
        assert len(set(gaps)) > 2
    else:
        assert min(gaps) >= 0
        assert max(gaps) > 20


def test_every_kind_of_context_is_as_frequent(tmp_path: Path, monkeypatch: Any) -> None:
    from retrievers.training.objectives import masking

    drawn: Counter[str] = Counter()
    draw_starts = masking.draw_starts

    def counted(tokens: int, size: int, context: Context, rng: Any) -> tuple[int, int]:
        drawn[context] += 1
        return draw_starts(tokens, size, context, rng)

    monkeypatch.setattr(masking, "draw_starts", counted)
    CoTMAE().collator(tiny.tokenizer(tmp_path), 14)(tiny.examples(["alpha beta"] * 600))
    assert set(drawn) == {"nearby", "overlap", "random"}
    # 4 standard deviations of a count of 200
    assert all(abs(count - 200) < 4 * (200 * 2 / 3) ** 0.5 for count in drawn.values())


@pytest.mark.parametrize("text", ["", "alpha", "alpha beta", "\u200b \u200b \u200b \u200b"])
def test_texts_that_are_too_short_for_spans_are_read(text: str, tmp_path: Path) -> None:
    batch = CoTMAE().collator(tiny.tokenizer(tmp_path), 10)(tiny.examples([text] * 8))
    assert torch.isfinite(training()(**batch)["loss"])
