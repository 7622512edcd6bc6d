"""Encoders of networks that have a decoder, too, next to those of sentence-transformers."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from retrievers.encoders.transformer import open_encoder
from retrievers.models.loading import ENCODERS
from retrievers.models.resolve import resolve_model
from tests.support import tiny_checkpoints as tiny

st = pytest.importorskip("sentence_transformers")

SMALL: dict[str, int] = {
    **dict.fromkeys(("d_model", "hidden_size"), 32),
    **dict.fromkeys(("d_ff", "encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_heads", "encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 2),
    "d_kv": 16,
    "num_experts": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
    "vocab_size": len(tiny.VOCABULARY),
}


def write_plain(folder: Path, kind: str) -> Path:
    made_by = transformers.CONFIG_MAPPING[kind]
    known = made_by().to_dict()
    config = made_by(**{name: size for name, size in SMALL.items() if name in known})
    module, name = ENCODERS[kind]
    network = tiny.seeded(lambda: getattr(import_module(module), name)(config))
    network.save_pretrained(str(folder))
    tiny.write_tokenizer(folder)
    path = folder / "tokenizer_config.json"
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    tiny.write_json(path, json.loads(path.read_text()) | names)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENCODERS)
def test_the_encoder_alone_is_used(tmp_path: Path, kind: str) -> None:
    from sentence_transformers.sentence_transformer import modules

    whole: list[Any] = [modules.Transformer(str(write_plain(tmp_path / "plain", kind)))]
    whole.append(modules.Pooling(32, pooling_mode="mean"))
    folder = tmp_path / "st"
    st.SentenceTransformer(modules=whole, device="cpu", similarity_fn_name="dot").save(str(folder))
    theirs = st.SentenceTransformer(str(folder), device="cpu")
    encoder = open_encoder(resolve_model(str(folder)), "cpu")
    assert encoder.recipe.kind == "transformer"
    # One by one: the networks' own vectors of padded texts differ for some kinds.
    expected = np.concatenate([theirs.encode_document([text]) for text in tiny.SENTENCES])
    found = encoder.encode_documents([""] * len(tiny.SENTENCES), tiny.SENTENCES)
    np.testing.assert_allclose(found, expected, atol=1e-4)
