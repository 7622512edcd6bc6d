"""The packed forward pass against the Hugging Face model, text by text."""

from typing import Any, get_args

import pytest
import torch
import transformers

from retrievers.errors import RetrieverError
from retrievers.packed import PackedNetwork, can_pack, known, one_by_one, pack, pool_packed, varlen
from retrievers.pooling import pool
from retrievers.recipe import Pooling
from tests.retrievers.tiny_checkpoints import SIZES, bert_config, seeded

LENGTHS = [1, 7, 30, 2, 1, 19]
CPU = torch.device("cpu")
POOLINGS = [mode for mode in get_args(Pooling) if mode != "none"]


def bert(**changes: Any) -> Any:
    return seeded(lambda: transformers.BertModel(bert_config(**changes)))


def roberta(name: str = "Roberta") -> Any:
    config = getattr(transformers, f"{name}Config")
    sizes = {**SIZES, "vocab_size": 70, "max_position_embeddings": 64, "type_vocab_size": 2}
    return seeded(lambda: getattr(transformers, f"{name}Model")(config(**sizes)))


def texts() -> tuple[list[list[int]], list[list[int]]]:
    made = torch.Generator().manual_seed(1)
    ids = [torch.randint(5, 60, (n,), generator=made).tolist() for n in LENGTHS]
    types = [torch.randint(0, 2, (n,), generator=made).tolist() for n in LENGTHS]
    return ids, types


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("name", ["Bert", "Roberta", "XLMRoberta", "Camembert"])
@torch.inference_mode()
def test_packed_hidden_states_and_pooling_are_those_of_the_hugging_face_model(
    name: str, typed: bool
) -> None:
    network = bert() if name == "Bert" else roberta(name)
    packed = PackedNetwork(network, one_by_one)
    ids, types = texts()
    batch = pack(ids, types if typed else None, packed.first_position)
    hidden = packed(**vars(batch))
    for i, (text, kinds) in enumerate(zip(ids, types, strict=True)):
        extra = {"token_type_ids": torch.tensor([kinds])} if typed else {}
        output = network(torch.tensor([text]), **extra)
        start, end = batch.cu_seqlens[i : i + 2].tolist()
        torch.testing.assert_close(
            hidden[start:end], output.last_hidden_state[0], atol=1e-5, rtol=0
        )
        for mode in POOLINGS:
            mask = torch.ones(1, len(text), dtype=torch.int64)
            expected = pool(mode, output.last_hidden_state, mask, output.pooler_output)[0]
            found = pool_packed(mode, hidden, batch.cu_seqlens, packed.pooler)[i]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_pooler_without_a_pooler_is_refused() -> None:
    with pytest.raises(RetrieverError, match="pooler"):
        pool_packed("pooler", torch.zeros(1, 4), torch.tensor([0, 1], dtype=torch.int32))


def test_only_plain_encoders_in_half_precision_on_cuda_are_packed() -> None:
    cuda = torch.device("cuda")
    assert can_pack(bert(), torch.float16, cuda)
    assert not can_pack(bert(), torch.float32, cuda)
    assert not can_pack(bert(), torch.bfloat16, CPU)
    assert not known(bert(is_decoder=True))
    assert not known(torch.nn.Linear(2, 2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="variable-length attention needs CUDA")
@torch.inference_mode()
def test_variable_length_kernel_agrees_with_attention_text_by_text() -> None:
    ends = torch.tensor([0, 1, 8, 38], dtype=torch.int32, device="cuda")
    q, k, v = torch.randn(3, 38, 2, 64, device="cuda", dtype=torch.bfloat16)
    expected = one_by_one(q, k, v, ends, 30)
    torch.testing.assert_close(varlen(q, k, v, ends, 30), expected, atol=2e-2, rtol=0)
