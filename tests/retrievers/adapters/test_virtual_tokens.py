"""PEFT's virtual tokens against what they are by hand: other words before the text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from foundation.errors import BenchError
from retrievers.adapters.identify import check_positions
from retrievers.encoders.routed import open_encoder
from retrievers.models.model import Model, resolve_model
from tests.support import tiny_checkpoints as tiny

peft = pytest.importorskip("peft")

TEXTS = ["the river of stone", "cloud", "alpha beta gamma delta alpha beta"]
COUNT = 3
KINDS = ("prompt", "p")


def config(kind: str) -> Any:
    """A new one each time: PEFT writes into it what it reads from the network."""
    if kind == "prompt":
        return peft.PromptTuningConfig(num_virtual_tokens=COUNT)
    return peft.PromptEncoderConfig(num_virtual_tokens=COUNT, encoder_hidden_size=8)


def saved(folder: Path, kind: str) -> Path:
    """A base, and an adapter that PEFT itself wrote, whose virtual tokens are no small change."""
    if not (folder / "base").exists():
        tiny.write_bert(folder / "base", initializer_range=0.2)
    network = transformers.AutoModel.from_pretrained(str(folder / "base"))
    wrapped = peft.PeftModel(network, config(kind))
    torch.manual_seed(3)
    for parameter in wrapped.prompt_encoder.parameters():
        torch.nn.init.normal_(parameter.data, std=0.5)
    wrapped.save_pretrained(str(folder / kind))
    return folder / kind


def resolved(folder: Path, kind: str, **card: Any) -> Model:
    fields = {"checkpoint": "base", "pooling": "cls", "max_query_tokens": 40} | card
    path = tiny.write_card(folder / "base.toml", max_document_tokens=40, **fields)
    return resolve_model(str(path), adapter=str(saved(folder, kind)))


def by_hand(folder: Path, prompt: torch.Tensor, text: str) -> torch.Tensor:
    """States of a text, ``(tokens, width)``, after vectors that stand at the first positions."""
    network = transformers.AutoModel.from_pretrained(str(folder / "base")).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder / "base"))
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        words = network.get_input_embeddings()(ids)
        output = network(inputs_embeds=torch.cat([prompt[None], words], 1))
    states: torch.Tensor = output.last_hidden_state[0, len(prompt) :]
    return states


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_a_prompt_is_vectors_before_the_text_that_are_not_pooled(
    tmp_path: Path, kind: str, pooling: str
) -> None:
    model = resolved(tmp_path, kind, pooling=pooling)
    vectors = open_encoder(model, "cpu").encode_queries(TEXTS)
    assert model.adapter is not None
    weights = peft.utils.load_peft_weights(str(model.adapter), device="cpu")
    for text, vector in zip(TEXTS, vectors, strict=True):
        states = by_hand(tmp_path, weights["prompt_embeddings"], text)
        expected = {"cls": states[0], "mean": states.mean(0), "last": states[-1]}[pooling]
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)


def test_a_pooler_reads_the_first_token_of_the_text(tmp_path: Path) -> None:
    vectors = open_encoder(resolved(tmp_path, "prompt", pooling="pooler"), "cpu")
    network = transformers.AutoModel.from_pretrained(str(tmp_path / "base")).eval()
    weights = peft.utils.load_peft_weights(str(tmp_path / "prompt"), device="cpu")
    for text, vector in zip(TEXTS, vectors.encode_queries(TEXTS), strict=True):
        states = by_hand(tmp_path, weights["prompt_embeddings"], text)
        with torch.inference_mode():
            expected = network.pooler(states[None])[0].numpy()
        np.testing.assert_allclose(vector, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_states_are_those_of_pefts_own_model(tmp_path: Path, kind: str) -> None:
    model = resolved(tmp_path, kind, pooling="mean")
    network = transformers.AutoModel.from_pretrained(str(tmp_path / "base"))
    own = peft.PeftModelForFeatureExtraction.from_pretrained(network, str(tmp_path / kind)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "base"))
    vectors = open_encoder(model, "cpu").encode_queries(TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        read = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            states = own(read["input_ids"], read["attention_mask"]).last_hidden_state[0]
        expected = states[-read["input_ids"].shape[1] :].mean(0)
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)


def test_a_text_of_two_segments_keeps_its_token_types(tmp_path: Path) -> None:
    found = [
        open_encoder(
            resolved(tmp_path, "prompt", title_join="pair", segment_ids=types), "cpu"
        ).encode_documents(["alpha"], ["river"])
        for types in (True, False)
    ]
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_virtual_tokens_leave_fewer_positions_for_the_text(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="3 virtual tokens and texts of 62 do not fit 64"):
        resolved(tmp_path, "prompt", max_query_tokens=62)
    check_positions(3, 61, 64)
    check_positions(3, 61, None)
    check_positions(0, 99, 64)
