"""The packed forward pass against the Hugging Face model, text by text."""

import functools
import shutil
from importlib.util import find_spec
from typing import Any, get_args

import pytest
import torch
import transformers
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters, get_compilation_metrics

from foundation.errors import BenchError
from retrievers.encoders import packed
from retrievers.encoders.device import HALF_SUMS
from retrievers.encoders.packed import (
    VARLEN_MODULE,
    Attention,
    CompiledNetwork,
    PackedBatch,
    PackedEncoder,
    attend_by_length,
    attend_padded,
    can_compile,
    is_plain_bert,
    pool,
)
from retrievers.encoders.tokens import Tokens
from retrievers.models.card import Pooling
from tests.support import variable_length_on_cpu
from tests.support.tiny_checkpoints import SIZES, bert_config, seeded
from tests.support.variable_length_on_cpu import one_by_one

LENGTHS = [1, 7, 30, 2, 1, 19]
POSITIONS = 64
PAD = 1  # of RoBERTa
# Half of g++'s time: neither vector instructions nor a compiled header.
QUICKLY_COMPILED = {"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
POOLINGS = [mode for mode in get_args(Pooling) if mode != "none"]
needs_kernel = pytest.mark.skipif(
    find_spec(VARLEN_MODULE) is None,
    reason="this PyTorch has no variable-length attention",
)


def bert(**changes: Any) -> Any:
    return seeded(lambda: transformers.BertModel(bert_config(**changes)))


def roberta(name: str = "Roberta") -> Any:
    config = getattr(transformers, f"{name}Config")
    sizes = {**SIZES, "vocab_size": 70, "type_vocab_size": 2, "pad_token_id": PAD}
    sizes["max_position_embeddings"] = POSITIONS
    return seeded(lambda: getattr(transformers, f"{name}Model")(config(**sizes)))


def texts() -> tuple[list[list[int]], list[list[int]]]:
    made = torch.Generator().manual_seed(1)
    ids = [torch.randint(5, 60, (n,), generator=made).tolist() for n in LENGTHS]
    types = [torch.randint(0, 2, (n,), generator=made).tolist() for n in LENGTHS]
    ids[2][4] = ids[2][5] = PAD  # as "<pad>" in a text gives
    return ids, types


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("name", ["Bert", "Roberta", "XLMRoberta", "Camembert"])
@torch.inference_mode()
def test_packed_hidden_states_and_pooling_are_those_of_the_hugging_face_model(name, typed):
    network = bert() if name == "Bert" else roberta(name)
    packed = PackedEncoder(network)
    ids, types = texts()
    batch = packed.pack_batch(Tokens.of(ids, types if typed else None))
    hidden = packed(batch)
    vectors = {mode: packed.encode_batch(mode, batch) for mode in POOLINGS}
    for i, (text, kinds) in enumerate(zip(ids, types, strict=True)):
        kinds = kinds if typed else [0] * len(kinds)
        output = network(torch.tensor([text]), token_type_ids=torch.tensor([kinds]))
        start, end = batch.cu_seqlens[i : i + 2].tolist()
        torch.testing.assert_close(
            hidden[start:end], output.last_hidden_state[0], atol=1e-5, rtol=0
        )
        (states,) = output.last_hidden_state
        expected = {"cls": states[0], "mean": states.mean(dim=0), "last": states[-1]}
        expected["pooler"] = output.pooler_output[0]
        assert set(expected) == set(POOLINGS)
        for mode, vector in expected.items():
            # The random pooler makes the rounding of the hidden states several times larger.
            torch.testing.assert_close(vectors[mode][i], vector, atol=5e-5, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize(("attend", "most"), [(attend_by_length, 0), (attend_padded, 1e-6)])
def test_attention_of_several_texts_is_that_of_each(attend: Attention, most: float) -> None:
    ends = torch.tensor([0, 5, 10, 15, 17, 18, 19, 24], dtype=torch.int32)
    q, k, v = torch.randn(24, 3, 2, 8).unbind(1)
    found = attend(q, k, v, ends, 8)
    torch.testing.assert_close(found, one_by_one(q, k, v, ends, 8), atol=most, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("longest", [0, 1024])
def test_attention_in_bfloat16_is_the_softmax_of_scaled_products(longest, monkeypatch):
    monkeypatch.setattr(packed, "LONGEST_SCORED", longest)
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 18, 4, 8).bfloat16()
    ends = torch.tensor([0, 5, 10, 18])
    expected = []
    for text in map(slice, ends[:-1].tolist(), ends[1:].tolist()):
        q, k, v = (x[text].double().transpose(0, 1) for x in (query, key, value))
        weights = (q @ k.transpose(1, 2) / 8**0.5).softmax(dim=2)
        expected.append((weights @ v).transpose(0, 1))
    attended = attend_by_length(query, key, value, ends, 8)
    assert attended.dtype == torch.bfloat16
    torch.testing.assert_close(attended.double(), torch.cat(expected), atol=0.02, rtol=0.02)


def test_pooler_without_a_pooler_is_refused() -> None:
    with pytest.raises(BenchError, match="pooler"):
        pool("pooler", torch.zeros(1, 4), torch.tensor([0, 1], dtype=torch.int32), None)


def test_decoders_and_relative_positions_are_not_packed() -> None:
    assert is_plain_bert(bert())
    assert is_plain_bert(roberta())
    assert not is_plain_bert(bert(is_decoder=True))


@needs_kernel
def test_only_half_precision_on_a_new_enough_cuda_device_is_compiled(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert can_compile(bert(), torch.float16, CUDA)
    assert can_compile(bert(), torch.bfloat16, CUDA)
    assert not can_compile(bert(), torch.float32, CUDA)
    assert not can_compile(bert(), torch.bfloat16, CPU)
    assert not can_compile(bert(hidden_size=24), torch.bfloat16, CUDA), "heads of 12"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not can_compile(bert(), torch.float16, CUDA)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> CompileCounter:
    """Counts what PyTorch compiles; the compiler's last stage, code for a device, is left out."""
    variable_length_on_cpu.register()
    torch.compiler.reset()
    counter, compile_with = CompileCounter(), torch.compile

    @functools.wraps(compile_with)
    def counted(network: Any, **options: Any) -> Any:
        return compile_with(network, **options, backend=counter)

    monkeypatch.setattr(torch, "compile", counted)
    return counter


def batches(made: CompiledNetwork) -> list[PackedBatch]:
    """Of many sizes, among them one text, and as many tokens as the longest text is long."""
    sizes = [[2], [16], [3, 4], [20, 7, 7, 5], [33], [62, 2], [2] * 20]
    return [made.pack_batch(Tokens.of([[5 + n] * n for n in lengths])) for lengths in sizes]


@pytest.mark.slow
@needs_kernel
def test_a_network_is_compiled_once_for_batches_of_all_sizes(compilations: Any) -> None:
    made = CompiledNetwork(bert())
    for batch in batches(made):
        made(batch)
    assert compilations.frame_count == 1


@pytest.mark.slow
@needs_kernel
def test_compiling_is_deterministic_and_leaves_the_settings_of_pytorch_as_they_were(monkeypatch):
    variable_length_on_cpu.register()
    torch.compiler.reset()
    matmul, seen = torch.backends.cuda.matmul, []

    def settings() -> tuple[Any, ...]:
        sums = [getattr(matmul, name) for name in HALF_SUMS]
        dynamo, inductor = torch._dynamo.config, torch._inductor.config
        return *sums, dynamo.recompile_limit, getattr(inductor, "deterministic", True)

    def backend(graph: Any, _: Any) -> Any:
        seen.append(settings())
        return graph

    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", functools.partial(compile_with, backend=backend))
    before = settings()
    assert before[:3] == (True, True, False)
    CompiledNetwork(bert())
    assert seen == [(False, False, False, packed.MAX_COMPILES, True)]
    assert settings() == before


@pytest.mark.slow
@needs_kernel
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for the CPU needs g++")
@torch.inference_mode()
def test_the_compiled_network_gives_the_hidden_states_of_the_network_and_is_found_again(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    variable_length_on_cpu.register()
    network = bert(num_hidden_layers=1)
    plain = PackedEncoder(network, one_by_one)
    found_again = []
    for _ in range(2):
        torch.compiler.reset()  # PyTorch forgets what it compiled, except on disk
        counters.clear()
        with torch._inductor.config.patch(QUICKLY_COMPILED):
            made = CompiledNetwork(network)
        for batch in batches(made)[:3]:
            torch.testing.assert_close(made(batch), plain(batch), atol=1e-4, rtol=0)
        found_again.append(counters["inductor"]["fxgraph_cache_hit"])
        assert not get_compilation_metrics()[-1].restart_reasons, "traced twice"
    assert found_again == [0, 1]


@pytest.mark.slow
@needs_kernel
def test_a_network_that_cannot_be_compiled_is_refused_with_what_to_type(monkeypatch, tmp_path):
    variable_length_on_cpu.register()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    absent = torch._inductor.config.patch({"cpp.cxx": (None, str(tmp_path / "no-compiler"))})
    with absent, pytest.raises(BenchError, match="cannot compile this network for cpu") as caught:
        CompiledNetwork(bert(num_hidden_layers=1))
    assert "--dtype float32" in caught.value.hint
