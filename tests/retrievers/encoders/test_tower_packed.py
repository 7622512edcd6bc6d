"""Encoders without padding against the same encoders with padding, from texts to vectors.

On a machine without a GPU two things stand in for it: the condition that CUDA is there, and the
attention kernel, which computes text after text. What is above them is what runs on CUDA, except
that the network is not compiled.
"""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bench.store.shards import launch_ahead
from foundation.errors import BenchError
from retrievers.encoders import tower, transformer
from retrievers.encoders.packed import MIN_CAPABILITY, VARLEN_MODULE, has_onednn
from retrievers.encoders.protocol import PhaseTimer
from retrievers.encoders.transformer import open_encoder
from retrievers.models.loading import load_network
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny
from tests.support import variable_length_on_cpu

TEXTS = [*tiny.SENTENCES * 3, "", "alpha", "the river of stone and the cloud of alpha " * 9]
SEGMENTS = [(text, None) for text in TEXTS]
TITLES = ["alpha", *[""] * (len(TEXTS) - 1)]
# Unit vectors of the same texts: 8 bits of bfloat16's fraction and 11 of float16's, over layers.
ROUNDING = {"bfloat16": 5e-2, "float16": 1e-2, "float32": 1e-5}

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < MIN_CAPABILITY,
    reason="needs a CUDA device of compute capability 8.0 or later",
)


@pytest.fixture
def with_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no network run without padding."""
    monkeypatch.setattr(tower.Tower, "_pack", lambda *_: None)


@pytest.fixture
def without_cuda() -> Iterator[None]:
    """Pack known networks on the CPU in float32, not compiled."""
    if find_spec(VARLEN_MODULE) is None:
        pytest.skip("this PyTorch has no variable-length attention")
    with variable_length_on_cpu.packing():
        yield


def write_roberta(folder: Path) -> None:
    config = transformers.RobertaConfig(
        **tiny.SIZES, vocab_size=len(tiny.VOCABULARY), max_position_embeddings=64, pad_token_id=0
    )
    tiny.seeded(lambda: transformers.RobertaModel(config)).save_pretrained(str(folder))
    tiny.write_tokenizer(folder)


def card_of(folder: Path, family: str, pooling: str) -> str:
    write = {"bert": tiny.write_bert, "roberta": write_roberta}[family]
    write(folder / family)
    fields: dict[str, Any] = {"checkpoint": family, "pooling": pooling, "normalize": True}
    return str(tiny.write_card(folder / "tiny.toml", **fields, similarity="cos", title_join="pair"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return resolve_model(card_of(tmp_path_factory.mktemp("model"), "bert", "mean"))


@pytest.fixture
def encoder(model):
    return open_encoder(model, "cpu")


def encoded(encoder: Any) -> tuple[Any, Any]:
    return encoder.encode_queries(TEXTS), encoder.encode_documents(TITLES, TEXTS)


@pytest.mark.parametrize(
    ("family", "pooling"),
    [("bert", "cls"), ("bert", "mean"), ("bert", "pooler"), ("roberta", "last")],
)
@pytest.mark.parametrize("as_on_cuda", [False, True])
def test_vectors_without_padding_are_those_with_padding(
    as_on_cuda, family, pooling, tmp_path, monkeypatch, request
):
    model = resolve_model(card_of(tmp_path, family, pooling))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tower.Tower, "_pack", lambda *_: None)
        expected = encoded(open_encoder(model, "cpu"))
    if as_on_cuda:
        request.getfixturevalue("without_cuda")
        monkeypatch.setattr(transformer, "CPU_TOKENS", 40)
    encoder: Any = open_encoder(model, "cpu")
    for found, padded in zip(encoded(encoder), expected, strict=True):
        np.testing.assert_allclose(found, padded, atol=1e-5)
    assert encoder._towers.document.is_packed == (as_on_cuda or has_onednn())


@pytest.mark.parametrize("is_packed", [True, False])
def test_an_empty_text_of_a_tokenizer_without_special_tokens_is_one_of_padding(
    tmp_path, monkeypatch, is_packed, caplog
):
    tower._note_empty.cache_clear()
    tiny.write_bert(tmp_path / "bert")
    path = tmp_path / "bert" / "tokenizer.json"
    tiny.write_json(path, json.loads(path.read_text()) | {"post_processor": None})
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="bert", pooling="mean")
    if not is_packed:
        monkeypatch.setattr(tower.Tower, "_pack", lambda *_: None)
    encoder: Any = open_encoder(resolve_model(str(card)), "cpu")
    encoder.encode_queries(["alpha"])
    assert "without tokens" not in caplog.text
    assert encoder.count_query_tokens(["", "alpha"]) == [0, 1]
    found = encoder.encode_queries(["alpha", "", "[PAD]"])
    (line,) = [line for line in caplog.messages if "without tokens" in line]
    assert line == "tiny: a text without tokens gets the vector of the token [PAD]"
    np.testing.assert_allclose(found[1], found[2], atol=1e-6)
    np.testing.assert_allclose(found[:1], encoder.encode_queries(["alpha"]), atol=1e-6)


@pytest.mark.usefixtures("without_cuda")
def test_lists_of_texts_that_are_launched_one_after_the_other_give_their_vectors(
    encoder, monkeypatch
):
    monkeypatch.setattr(transformer, "CPU_TOKENS", 40)
    expected = encoder.encode_documents(TITLES, TEXTS)
    half = len(TEXTS) // 2
    lists = [(TITLES, TEXTS), (TITLES[:half], TEXTS[:half]), ([""], ["alpha"]), ([], [])]
    prepared = [encoder.prepare_documents(*some) for some in lists]
    sizes = [len(one._tokens.ids) for one in prepared]
    before, done, found = encoder.timer.counts["tokens"], [], []
    for number, (*_, encode) in enumerate(launch_ahead((None, None, one) for one in prepared)):
        launched = encoder.timer.counts["tokens"] - before
        assert launched == sum(sizes[: number + 3]), "three lists are on the device"
        found.append(encode(done.append))
    assert sum(done) == sum(len(texts) for _, texts in lists)
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(prepared[0](), expected)
    np.testing.assert_allclose(found[1], expected[:half], atol=1e-6)
    assert [len(vectors) for vectors in found] == [len(texts) for _, texts in lists]


@pytest.mark.slow
@pytest.mark.parametrize("gpu", [True, False])
def test_long_lists_for_a_gpu_are_tokenised_by_processes(gpu, encoder, monkeypatch, request):
    if gpu:
        request.getfixturevalue("without_cuda")
    expected = encoded(encoder)
    assert "_token_workers" not in vars(encoder._towers.document)
    monkeypatch.setattr(tower, "MANY_TEXTS", len(set(TEXTS)))
    for found, vectors in zip(encoded(encoder), expected, strict=True):
        np.testing.assert_array_equal(found, vectors)
    assert ("_token_workers" in vars(encoder._towers.document)) == gpu


class SmallMemory:
    """A network on a device whose memory holds so many tokens."""

    error: Exception = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    def __init__(self, forward: Any, tokens: int, count: Any) -> None:
        self.forward, self.tokens, self.count = forward, tokens, count
        self.sizes: list[int] = []

    def __call__(self, *batch: Any, **inputs: Any) -> Any:
        size = self.count(*batch, **inputs)
        if size > self.tokens:
            raise self.error
        self.sizes.append(size)
        return self.forward(*batch, **inputs)


def with_small_memory(tower: Any, tokens: int) -> SmallMemory:
    def count(mode: str, batch: Any) -> int:
        return int((batch.input_ids if tower.is_packed else batch.inputs["input_ids"]).numel())

    tower._encoder.encode_batch = small = SmallMemory(tower._encoder.encode_batch, tokens, count)
    return small


@pytest.mark.parametrize("packed", [False, True])
def test_batches_that_do_not_fit_the_memory_are_halved_until_they_do(
    packed, model, request, caplog
):
    if not packed:
        request.getfixturevalue("with_padding")
    expected, encoder = encoded(open_encoder(model, "cpu")), open_encoder(model, "cpu")
    small = with_small_memory(encoder._towers.document, 70)
    for found, whole in zip(encoded(encoder), expected, strict=True):
        np.testing.assert_allclose(found, whole, atol=1e-5)
    assert max(small.sizes) <= 70
    notes = [text for text in caplog.messages if "has no memory for a batch of" in text]
    assert len(notes) == 1, "said once"
    assert "larger batches are split" in notes[0]
    assert "last bits" in notes[0]
    assert encoder.timer.counts["tokens"] == sum(
        int(encoder._towers.document.tokenize(some, 32).lengths.sum())
        for some in (
            [(text, None) for text in dict.fromkeys(TEXTS)],
            list(dict.fromkeys(encoder._document_segments(TITLES, TEXTS))),
        )
    )


@pytest.mark.parametrize(
    "message",
    [
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_out_of_memory_in_a_kernel_or_library_is_recognised(message, encoder):
    expected = encoder.encode_queries(TEXTS)
    with_small_memory(encoder._towers.query, 70).error = RuntimeError(message)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), expected, atol=1e-5)


def test_other_device_failures_are_raised_and_a_text_that_does_not_fit_is_refused(encoder):
    small = with_small_memory(encoder._towers.query, 3)
    with pytest.raises(BenchError, match="no memory for a text of 6 tokens: CUDA out of") as caught:
        encoder.encode_queries(["the river of stone"])
    assert "--device cpu" in caught.value.hint
    small.error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        encoder.encode_queries(TEXTS)


@torch.inference_mode()
def test_float32_on_a_gpu_pads_attention_alone_and_gives_the_vectors_of_the_padded_network(model):
    one: Any = tower.Tower(model.document, model.recipe, None, torch.device("cpu"), PhaseTimer())
    network, tokens = load_network(model.document, model.recipe), one.tokenize(SEGMENTS, 64)
    padded = tower.PaddedEncoder(network, torch.device("cpu"), 0)
    one._device = torch.device("cuda")
    packed = one._pack(network)
    assert packed.is_packed
    for pooling in ("cls", "mean", "last"):
        found, expected = (
            torch.nn.functional.normalize(each.encode_batch(pooling, each.pack_batch(tokens)))
            for each in (packed, padded)
        )
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert one._pack(torch.nn.Linear(2, 2)) is None


@needs_cuda
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_cuda_vectors_without_padding_are_those_of_hugging_face_with_padding(
    family: str, dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = resolve_model(card_of(tmp_path, family, "mean"), ModelSettings(dtype=dtype))
    compiled: Any = open_encoder(model, "cuda")
    found = encoded(compiled)
    assert compiled._towers.document.is_packed
    monkeypatch.setattr(tower.Tower, "_pack", lambda *_: None)
    for one, padded in zip(found, encoded(open_encoder(model, "cuda")), strict=True):
        np.testing.assert_allclose(one, padded, atol=ROUNDING[dtype])


@needs_cuda
@pytest.mark.parametrize("dtype", ROUNDING)
def test_cuda_vectors_of_a_text_alone_are_those_in_a_batch(dtype: Any, tmp_path: Path) -> None:
    model = resolve_model(card_of(tmp_path, "bert", "mean"), ModelSettings(dtype=dtype))
    encoder = open_encoder(model, "cuda")
    together = encoder.encode_queries(TEXTS)
    alone = np.concatenate([encoder.encode_queries([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=ROUNDING[dtype])
    assert encoder.encode_queries(TEXTS).tobytes() == together.tobytes()
