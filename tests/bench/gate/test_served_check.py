"""`check --served` with real servers: faithful ones, and ones with a state or other vectors."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from bench.gate.check import check
from bench.gate.check_record import Check
from bench.requests.deciding import CheckRequest
from reports.check import markdown
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support.collections import WORDS, Bench, Finished, write_collection
from tests.support.embedding_server import Encode, serve_model, serving
from tests.support.tiny_checkpoints import write_bert, write_card

pytest.importorskip("openai", reason="needs openai: pip install openai")
pytestmark = pytest.mark.slow
LENGTH = 24
Change = Callable[[Encode], Encode]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the card of a checkpoint, one without its prompts, and a collection."""
    folder = tmp_path_factory.mktemp("served")
    write_bert(folder / "bert")
    prompts = {"query": "alpha ", "document": "beta "}
    fields = {"pooling": "mean", "max_query_tokens": LENGTH, "max_document_tokens": LENGTH}
    write_card(folder / "tiny.toml", checkpoint="bert", prompts=prompts, **fields)
    write_card(folder / "plain.toml", checkpoint="bert", **fields)
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=(4, 30)[row % 2])) for row in range(20)]
    documents = {f"d{row:02}": ("", text) for row, text in enumerate(texts)}
    queries = {f"q{row:02}": text[:20] for row, text in enumerate(texts)}
    write_collection(folder / "words", documents, queries, {("q00", "d00"): 1})
    return folder


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch):
    monkeypatch.setattr("bench.gate.server.ROUNDS", 3)


def serve(place: Path, dtype: str | None = None) -> Encode:
    """What a faithful server does with a text, which comes with its prompt."""
    model = resolve_model(str(place / "plain.toml"), ModelSettings(dtype=dtype))
    return serve_model(open_encoder(model, "cpu"))


def verdict(place: Path, encode: Encode, dtype: str | None = None) -> Check:
    with serving(encode) as (url, _):
        on = (str(place / "words"),)
        against = str(place / "tiny.toml")
        return check(CheckRequest(served=url, against=against, on=on, dtype=dtype))


def test_a_faithful_server_passes_without_a_hypothesis(place, capsys):
    done = verdict(place, serve(place))
    assert done.outcome == "OK"
    assert (done.answer.verdict, done.answer.singles) == ("reproduced", 0)
    assert [row.mean_a for row in done.rows] == [1.0, 1.0]
    assert done.reasons[1].what.startswith("the server reads at most 24 tokens: longer texts lose")
    shown = capsys.readouterr().err
    for stage in ("sending texts twice", "finding the length that is read", "under load"):
        assert stage in shown


def test_a_server_in_16_bits_passes_without_a_hypothesis_if_that_is_stated(place):
    half = serve(place, "bfloat16")
    done = verdict(place, half, "bfloat16")
    assert (done.outcome, done.answer.precision, done.answer.singles) == ("OK", "bfloat16", 0)
    unstated = verdict(place, half)
    assert unstated.outcome == "DRIFT"
    assert "float32 is stated" in unstated.reasons[0].what


def without_a_prompt(encode: Encode) -> Encode:
    return lambda texts: encode([text.removeprefix("beta ") for text in texts])


def cut(encode: Encode) -> Encode:
    return lambda texts: encode([" ".join(text.split()[: 17 - 2]) for text in texts])


def of_other_lengths(encode: Encode) -> Encode:
    return lambda texts: encode(texts) * [[len(text.split()) + 1] for text in texts]


def normalised(encode: Encode) -> Encode:
    return lambda texts: encode(texts) / np.linalg.norm(encode(texts), axis=1, keepdims=True)


def of_another_checkpoint(encode: Encode) -> Encode:
    other = np.random.default_rng(0).normal(size=(32, 32)) / 8
    return lambda texts: np.tanh(encode(texts) @ other) + 0.1


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (without_a_prompt, "the cause is: document prompt missing"),
        (cut, "the cause is: texts cut at 17 tokens"),
        (of_other_lengths, "the cause is: vectors of another length for each text"),
        (normalised, "the cause is: cosine: vectors normalised"),
        (of_another_checkpoint, "another checkpoint"),
    ],
)
def test_a_server_that_changes_vectors_drifts_and_the_cause_is_named(place, change, cause):
    done = verdict(place, change(serve(place)))
    assert done.outcome == "DRIFT"
    assert cause in done.reasons[0].what
    if change == cut:
        lengths = "the server reads at most 17 tokens, not 24: longer texts "
        assert done.reasons[1].what.startswith(lengths)


def test_a_server_whose_vectors_depend_on_the_last_request_is_drift_and_has_no_length(place):
    encode, last = serve(place), [np.zeros(1)]

    def with_the_last(texts: list[str]) -> np.ndarray:
        vectors = encode(texts)
        mixed, last[0] = vectors + 0.5 * last[0], vectors[-1:]
        return mixed

    done = verdict(place, with_the_last)
    assert done.outcome == "DRIFT"
    assert "the same text, sent twice, has vectors that differ by up to" in done.reasons[0].what
    text = markdown(done)
    assert "does not reproduce the vectors of the checkpoint" in text
    assert "reads" not in text


def typed(bench: Bench, place: Path, encode: Encode, *words: object) -> tuple[Finished, str]:
    """The command, and the host of the server."""
    with serving(encode) as (url, _):
        against = ("--against", place / "tiny.toml", "--on", place / "words")
        done = bench("check", "--served", url, *against, *words)
    return done, url.removeprefix("http://").removesuffix("/v1")


def test_vectors_that_are_mixed_up_under_load_are_drift(bench, place, tmp_path):
    """A request now and then gets the vectors of one that is answered at the same time."""
    exact, requests = serve(place), list[list[str]]()

    def mixing(texts: list[str]) -> np.ndarray:
        requests.append(texts)
        number = len(requests)
        time.sleep(0.01)
        return exact(requests[-1] if number % 50 == 0 else texts)

    done, host = typed(bench, place, mixing, "--junit", tmp_path / "junit.xml")
    assert done.code == 5, done.stderr
    assert done.stdout.startswith(f"## DRIFT: {host}\n")
    assert "of another text" in done.stdout
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert suite.attrib["errors"] == "2"  # of the load, and of the outcome


def test_the_report_of_a_server_names_it_and_explains(bench, place):
    done, host = typed(bench, place, without_a_prompt(serve(place)))
    assert done.stdout.startswith(f"## DRIFT: {host}\n")
    assert f"Best explanation of the vectors of {host}: document prompt missing." in done.stdout
