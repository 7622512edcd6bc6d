"""`check --served` with real servers: faithful ones, and ones with a state or other lengths."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench.gate.check import check
from bench.gate.check_record import Check
from bench.requests.deciding import CheckRequest
from reports.check import markdown
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support.collections import write_words
from tests.support.embedding_server import Encode, serve_model, serving
from tests.support.tiny_checkpoints import write_bert, write_card

pytest.importorskip("openai", reason="needs openai: pip install openai")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("served")
    write_bert(folder / "bert")
    fields = {"pooling": "mean", "max_query_tokens": 24, "max_document_tokens": 24}
    return write_card(folder / "tiny.toml", checkpoint="bert", **fields), write_words(
        folder / "words"
    )


def verdict(
    place: Any, change: Callable[[Encode], Encode], served: Any = None, stated: Any = None
) -> Check:
    card, words = place
    faithful = serve_model(
        open_encoder(resolve_model(str(card), ModelSettings(dtype=served)), "cpu")
    )
    with serving(change(faithful)) as (url, _):
        request = CheckRequest(served=url, against=str(card), on=(str(words),), dtype=stated)
        return check(request)


def test_a_faithful_server_passes_without_a_hypothesis(place, capsys):
    done = verdict(place, lambda encode: encode)
    assert done.outcome == "OK"
    assert (done.answer.verdict, done.answer.singles) == ("reproduced", 0)
    shown = capsys.readouterr().err
    for stage in ("sending texts twice", "finding the length that is read", "under load"):
        assert stage in shown


def test_a_server_in_16_bits_passes_without_a_hypothesis_if_that_is_stated(place):
    done = verdict(place, lambda encode: encode, "bfloat16", "bfloat16")
    assert (done.outcome, done.answer.precision, done.answer.singles) == ("OK", "bfloat16", 0)
    unstated = verdict(place, lambda encode: encode, "bfloat16")
    assert unstated.outcome == "DRIFT"
    assert unstated.answer.singles > 10


def test_a_server_whose_vectors_depend_on_the_last_request_is_drift_and_has_no_length(place):
    last = [np.zeros(1)]

    def change(encode: Encode) -> Encode:
        def with_the_last(texts: list[str]) -> np.ndarray:
            vectors = encode(texts)
            mixed, last[0] = vectors + 0.5 * last[0], vectors[-1:]
            return mixed

        return with_the_last

    done = verdict(place, change)
    assert done.outcome == "DRIFT"
    assert "the same text, sent twice, has vectors that differ by up to" in done.reasons[0].what
    text = markdown(done)
    assert "does not reproduce the vectors of the checkpoint" in text
    assert "reads" not in text


def test_vectors_that_differ_only_in_length_are_named_so(place):
    done = verdict(
        place, lambda encode: lambda texts: encode(texts) * [[len(t.split()) + 1] for t in texts]
    )
    assert done.outcome == "DRIFT"
    assert "the cause is: vectors of another length for each text" in done.reasons[0].what


def test_vectors_of_length_1_are_named_normalised_not_of_another_length(place):
    done = verdict(
        place,
        lambda encode: (
            lambda texts: encode(texts) / np.linalg.norm(encode(texts), axis=1, keepdims=True)
        ),
    )
    assert "the cause is: cosine: vectors normalised" in done.reasons[0].what
