"""Single texts from graphs: the vectors that they have without, from memory that all share.

Without a GPU the operators of PyTorch stand in for kernels: they are recorded once and run again on
the same memory. Everything but recording and replaying kernels is what runs on CUDA.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievers.encoders.cuda_graphs import SIZES, CudaGraphs, CudaRecorder, filled, recorder
from retrievers.encoders.opening import open_encoder
from retrievers.encoders.packed import PackedNetwork, pack, pool_packed
from retrievers.encoders.tokens import Tokens
from retrievers.models.model import resolve_model
from retrievers.models.recipe import StoredPooling
from tests.support import tiny_checkpoints as tiny
from tests.support import variable_length_on_cpu
from tests.support.variable_length_on_cpu import one_by_one, recorded

POSITIONS = 64
MODES: list[StoredPooling] = ["cls", "mean", "last", "pooler", "every"]
TEXTS = [*tiny.SENTENCES, "alpha", "", "the river of stone and the cloud of alpha " * 9]

texts = st.lists(st.integers(5, 59), min_size=1, max_size=POSITIONS)


@pytest.fixture(scope="module")
def pool() -> Callable[..., torch.Tensor]:
    """Computes the vectors of a batch, with the attention that PyTorch sees as one operator."""
    from retrievers.encoders.compiled import variable_length_kernel

    variable_length_on_cpu.register()
    bert = tiny.seeded(lambda: tiny.transformers.BertModel(tiny.bert_config()))
    network = PackedNetwork(bert, variable_length_kernel()).eval()

    def pooled(mode: StoredPooling, batch: Any) -> torch.Tensor:
        return pool_packed(mode, network(**vars(batch)), batch.cu_seqlens, network.pooler)

    return pooled


def vector(encode: Any, ids: list[int], mode: StoredPooling = "mean") -> torch.Tensor:
    with torch.inference_mode():
        return encode(mode, pack(filled(Tokens.of([ids])), None, POSITIONS))[0]


@given(ids=st.lists(st.integers(0, 9), min_size=1, max_size=600), typed=st.booleans())
def test_a_single_text_is_filled_up_to_one_of_few_sizes(ids: list[int], typed: bool) -> None:
    types = [number % 2 for number in ids]
    tokens = filled(Tokens.of([ids], [types] if typed else None))
    assert tokens.ids[: len(ids)].tolist() == ids
    assert tokens.lengths[0] == len(ids)
    assert (tokens.types is not None) == typed
    if len(ids) < SIZES[-1]:
        assert len(tokens) == 2
        assert int(tokens.lengths.sum()) == len(tokens.ids) in SIZES
        assert tokens.lengths[1] <= max(len(ids), SIZES[0] - 1), "no longer than a text may be"
    else:
        assert len(tokens) == 1
    if tokens.types is not None:
        assert tokens.types[: len(ids)].tolist() == types
        assert len(tokens.types) == len(tokens.ids)


@pytest.mark.parametrize("ids", [[], [[]], [[5], [6, 7]]])
def test_other_batches_are_not_filled(ids: list[list[int]]) -> None:
    tokens = Tokens.of(ids)
    assert filled(tokens) is tokens


def test_what_fills_a_text_does_not_change_its_vector(pool: Any) -> None:
    bert = tiny.seeded(lambda: tiny.transformers.BertModel(tiny.bert_config()))
    network = PackedNetwork(bert, one_by_one).eval()
    for length in (1, 2, 15, 16, 17, 31, 32, 63):
        ids = [5 + number % 50 for number in range(length)]
        alone = pack(Tokens.of([ids]), None, POSITIONS)
        with torch.inference_mode():
            expected = pool_packed("mean", network(**vars(alone)), alone.cu_seqlens)[0]
        torch.testing.assert_close(vector(pool, ids), expected, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def graphs(pool: Any) -> CudaGraphs:
    return CudaGraphs(pool, recorded)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(MODES), texts), min_size=1, max_size=6))
def test_replayed_vectors_are_those_without_graphs_bit_for_bit(
    pool: Any, graphs: CudaGraphs, asked: Any
) -> None:
    kept = [vector(graphs, ids, mode) for mode, ids in asked * 2]
    for found, (mode, ids) in zip(kept, asked * 2, strict=True):
        assert torch.equal(found, vector(pool, ids, mode)), "nor does a later text change it"


def test_all_lengths_together_need_few_graphs(pool: Any) -> None:
    recordings: list[int] = []

    def recording(run: Any) -> Any:
        recordings.append(1)
        return recorded(run)

    graphs = CudaGraphs(pool, recording)
    for length in range(1, POSITIONS):
        vector(graphs, [7] * length)
    assert len(recordings) == len(graphs) == 5  # of 16, 32 and 64 tokens, two bounds of the last


@pytest.mark.parametrize("ids", [[[5], [6]], [[5] * 9, [6] * 3], [[5], [6], [7] * 14], [[5] * 16]])
def test_other_batches_are_computed_as_always(ids: list[list[int]], pool: Any) -> None:
    graphs = CudaGraphs(pool, lambda run: pytest.fail("recorded"))
    with torch.inference_mode():
        batch = pack(Tokens.of(ids), None, POSITIONS)
        assert torch.equal(graphs("mean", batch), pool("mean", batch))


def test_where_recording_fails_it_is_said_once_and_the_vectors_are_the_same(
    pool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    def failing(run: Any) -> Any:
        tries.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    graphs = CudaGraphs(pool, failing)
    with caplog.at_level(logging.WARNING):
        for ids in ([5, 6], [7] * 20, [8]):
            assert torch.equal(vector(graphs, ids), vector(pool, ids))
    assert len(tries) == len(caplog.messages) == 1
    assert "without CUDA graphs, more slowly: CUDA out of memory." in caplog.text


def test_threads_that_share_the_memory_of_a_size_get_their_own_vectors(
    pool: Any, graphs: CudaGraphs
) -> None:
    asked = [[5 + number % 50] * (1 + number % 14) for number in range(200)]
    expected = [vector(pool, ids) for ids in asked]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda ids: vector(graphs, ids), asked))
    assert all(map(torch.equal, found, expected))


def test_there_are_none_on_the_cpu() -> None:
    assert recorder(torch.device("cpu")) is None


@pytest.fixture
def packing() -> Iterator[None]:
    """Encode on the CPU as on a GPU."""
    with variable_length_on_cpu.packing():
        yield


@pytest.mark.usefixtures("packing")
def test_an_encoder_gives_queries_their_vectors_from_graphs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny.write_bert(tmp_path / "bert")
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="bert", pooling="mean")
    encoder: Any = open_encoder(resolve_model(str(card)), "cpu")
    together = encoder.encode_queries(TEXTS)
    graphs = encoder._towers.query._compiled.graphs
    assert len(graphs) == 0
    alone = np.concatenate([encoder.encode_queries([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=1e-5)
    assert len(graphs) > 1
    record, graphs.record = graphs.record, None
    without = np.concatenate([encoder.encode_queries([text]) for text in TEXTS])
    graphs.record = record
    assert without.tobytes() == alone.tobytes()
    assert not caplog.messages


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_work_that_cannot_be_recorded_leaves_stream_and_memory_in_order() -> None:
    numbers, before = torch.ones(3, device="cuda"), torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        CudaRecorder(torch.device("cuda"))(lambda: numbers * numbers.sum().item())
    assert torch.cuda.current_stream() == before
    torch.cuda.empty_cache()
    replay = CudaRecorder(torch.device("cuda"))(lambda: numbers + 1)
    assert replay().tolist() == [2, 2, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_cuda_graphs_give_the_vectors_without_them(
    dtype: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny.write_bert(tmp_path / "bert")
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="bert", pooling="mean")
    encoder: Any = open_encoder(resolve_model(str(card), dtype=dtype), "cuda")
    replayed = [encoder.encode_queries([text]).tobytes() for text in TEXTS * 2]
    graphs = encoder._towers.query._compiled.graphs
    assert len(graphs) > 1
    assert "without CUDA graphs" not in caplog.text
    graphs.record = None
    assert [encoder.encode_queries([text]).tobytes() for text in TEXTS * 2] == replayed
