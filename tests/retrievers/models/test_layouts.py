"""Each card's real file layout, against a direct forward pass written here.

The expected vectors come from the model in memory, one unpadded text at a time, from token ids
put together by hand: nothing of the encoder's own path is used.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from retrievers.encoders.routed import open_encoder
from retrievers.models.model import resolve_model
from tests.support import tiny_checkpoints as tiny

CLS, SEP = tiny.VOCABULARY.index("[CLS]"), tiny.VOCABULARY.index("[SEP]")
PLAIN = ["the river of stone", "alpha beta gamma", "cloud", "a stone and the cloud of delta"]
TITLED = ["alpha", "", "the cloud", "beta gamma"]


def one_by_one(forward: Callable[[list[int]], torch.Tensor], ids: Sequence[list[int]]) -> Any:
    with torch.inference_mode():
        return np.stack([forward(row).squeeze(0).float().numpy() for row in ids])


def hidden(model: Any, ids: list[int]) -> torch.Tensor:
    states: torch.Tensor = model(input_ids=torch.tensor([ids])).last_hidden_state
    return states


def single(text: str) -> list[int]:
    return [CLS, *tiny.word_ids(text), SEP]


def titled_rows() -> list[list[int]]:
    """Title and text with separators between them; a text alone where it has no title."""
    return [
        [CLS, *tiny.word_ids(title), SEP, *tiny.word_ids(text), SEP] if title else single(text)
        for title, text in zip(TITLED, PLAIN, strict=True)
    ]


def test_retromae_is_the_cls_vector_of_a_pickle_with_an_mlm_head(tmp_path: Path) -> None:
    model = tiny.write_mlm_pickle(tmp_path / "retro").bert
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="retro", pooling="cls")
    encoder = open_encoder(resolve_model(str(card)), "cpu")

    joined = [single(f"{title} {text}".strip()) for title, text in zip(TITLED, PLAIN, strict=True)]
    expected = one_by_one(lambda row: hidden(model, row)[:, 0], joined)
    assert encoder.dim == 32
    np.testing.assert_allclose(encoder.encode_documents(TITLED, PLAIN), expected, atol=1e-5)
    queries = one_by_one(lambda row: hidden(model, row)[:, 0], [single(text) for text in PLAIN])
    np.testing.assert_allclose(encoder.encode_queries(PLAIN), queries, atol=1e-5)


def test_retromae_msmarco_joins_title_and_text_by_a_literal_separator(tmp_path: Path) -> None:
    model = tiny.write_mlm_pickle(tmp_path / "retro").bert
    card = tiny.write_card(
        tmp_path / "tiny.toml",
        checkpoint="retro",
        pooling="cls",
        title_join="sep",
        segment_ids=False,
    )
    encoder = open_encoder(resolve_model(str(card)), "cpu")

    expected = one_by_one(lambda row: hidden(model, row)[:, 0], titled_rows())
    np.testing.assert_allclose(encoder.encode_documents(TITLED, PLAIN), expected, atol=1e-5)


@pytest.mark.parametrize("segment_ids", [True, False])
def test_a_title_pair_is_two_segments(tmp_path: Path, segment_ids: bool) -> None:
    model = tiny.write_bert(tmp_path / "bert")
    card = tiny.write_card(
        tmp_path / "tiny.toml",
        checkpoint="bert",
        pooling="cls",
        title_join="pair",
        segment_ids=segment_ids,
    )
    encoder = open_encoder(resolve_model(str(card)), "cpu")

    def forward(row: list[int]) -> torch.Tensor:
        first = row.index(SEP) + 1
        types = [0] * first + [int(segment_ids)] * (len(row) - first)
        out = model(input_ids=torch.tensor([row]), token_type_ids=torch.tensor([types]))
        vector: torch.Tensor = out.last_hidden_state[:, 0]
        return vector

    expected = one_by_one(forward, titled_rows())
    np.testing.assert_allclose(encoder.encode_documents(TITLED, PLAIN), expected, atol=1e-5)


def test_dpr_has_two_encoders_of_dpr_classes(tmp_path: Path) -> None:
    config = transformers.DPRConfig(
        **tiny.SIZES, vocab_size=len(tiny.VOCABULARY), max_position_embeddings=64
    )
    documents = tiny.seeded(lambda: transformers.DPRContextEncoder(config), 1)
    queries = tiny.seeded(lambda: transformers.DPRQuestionEncoder(config), 2)
    tiny.write_pickle(documents, tmp_path / "ctx", "DPRContextEncoder")
    tiny.write_pickle(queries, tmp_path / "question", "DPRQuestionEncoder")
    tiny.write_tokenizer(tmp_path / "ctx")
    tiny.write_tokenizer(tmp_path / "question")
    card = tiny.write_card(
        tmp_path / "tiny.toml",
        checkpoint="ctx",
        query_checkpoint="question",
        pooling="pooler",
        title_join="pair",
        segment_ids=False,
    )
    encoder = open_encoder(resolve_model(str(card)), "cpu")

    def cls_of(model: Any) -> Callable[[list[int]], torch.Tensor]:
        return lambda row: hidden(model, row)[:, 0]

    pairs = [
        [CLS, *tiny.word_ids(title), SEP, *tiny.word_ids(text), SEP] if title else single(text)
        for title, text in zip(TITLED, PLAIN, strict=True)
    ]
    expected = one_by_one(cls_of(documents.ctx_encoder.bert_model), pairs)
    np.testing.assert_allclose(encoder.encode_documents(TITLED, PLAIN), expected, atol=1e-5)
    expected = one_by_one(
        cls_of(queries.question_encoder.bert_model), [single(text) for text in PLAIN]
    )
    np.testing.assert_allclose(encoder.encode_queries(PLAIN), expected, atol=1e-5)


def roberta_tokenizer(folder: Path) -> Any:
    """A genuine byte-level BPE tokenizer, trained here on a few sentences."""
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir(parents=True, exist_ok=True)
    trainer = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(
        tiny.SENTENCES * 4, vocab_size=300, show_progress=False, special_tokens=specials
    )
    trainer.save_model(str(folder))
    tokenizer = transformers.RobertaTokenizerFast.from_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return tokenizer


def roberta_config(tokenizer: Any) -> Any:
    return transformers.RobertaConfig(
        **tiny.SIZES,
        vocab_size=len(tokenizer),
        max_position_embeddings=66,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )


def test_ance_is_a_roberta_with_a_head_and_a_norm_in_one_state_dict(tmp_path: Path) -> None:
    tokenizer = roberta_tokenizer(tmp_path / "ance")
    config = roberta_config(tokenizer)
    model = tiny.seeded(lambda: transformers.RobertaForMaskedLM(config), 3)
    head, norm = torch.nn.Linear(32, 24), torch.nn.LayerNorm(24)
    torch.nn.init.normal_(norm.weight)
    tiny.save_config(config, tmp_path / "ance", "RobertaDot_NLL_LN")
    state = {f"roberta.{key}": value for key, value in model.roberta.state_dict().items()}
    state |= {f"embeddingHead.{key}": value for key, value in head.state_dict().items()}
    state |= {f"norm.{key}": value for key, value in norm.state_dict().items()}
    torch.save(state, tmp_path / "ance" / "pytorch_model.bin")
    card = tiny.write_card(
        tmp_path / "tiny.toml",
        checkpoint="ance",
        pooling="cls",
        stages=[
            {"kind": "dense", "key": "embeddingHead", "width": 24},
            {"kind": "layer-norm", "key": "norm"},
        ],
        max_query_tokens=64,
    )
    encoder = open_encoder(resolve_model(str(card)), "cpu")

    # Written out by hand: <s> text </s>, and no space before the first word.
    rows = [
        [0, *tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids, 2]
        for text in tiny.SENTENCES
    ]
    expected = one_by_one(lambda row: norm(head(hidden(model.roberta, row)[:, 0])), rows)
    assert encoder.dim == 24
    np.testing.assert_allclose(encoder.encode_queries(tiny.SENTENCES), expected, atol=1e-5)


def test_roberta_cannot_be_longer_than_its_usable_positions(tmp_path: Path) -> None:
    from foundation.errors import BenchError

    tokenizer = roberta_tokenizer(tmp_path / "roberta")
    model = tiny.seeded(lambda: transformers.RobertaModel(roberta_config(tokenizer)), 4)
    model.save_pretrained(str(tmp_path / "roberta"))
    fields = {"checkpoint": "roberta", "pooling": "mean", "max_query_tokens": 8}
    fits = tiny.write_card(tmp_path / "fits.toml", **fields, max_document_tokens=64)
    encoder = open_encoder(resolve_model(str(fits)), "cpu")
    assert np.isfinite(encoder.encode_documents([""], ["stone " * 200])).all()

    too_long = tiny.write_card(tmp_path / "too_long.toml", **fields, max_document_tokens=65)
    with pytest.raises(BenchError, match="positions for 64"):
        resolve_model(str(too_long))


def t5_tokenizer(folder: Path) -> Any:
    """A genuine unigram tokenizer that ends each text with </s>, as T5's does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60,
        show_progress=False,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
    )
    backend.train_from_iterator(tiny.SENTENCES * 4, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(str(folder))
    return tokenizer


def test_gtr_is_a_t5_encoder_with_a_dense_folder(tmp_path: Path) -> None:
    folder = tmp_path / "gtr"
    tokenizer = t5_tokenizer(folder)
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2
    )
    model = tiny.seeded(lambda: transformers.T5EncoderModel(config), 5)
    tiny.write_pickle(model, folder, "T5EncoderModel")
    dense = torch.nn.Linear(32, 24, bias=False)
    settings = {
        "in_features": 32,
        "out_features": 24,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    tiny.write_json(folder / "2_Dense" / "config.json", settings)
    torch.save({"linear.weight": dense.weight.data}, folder / "2_Dense" / "pytorch_model.bin")
    card = tiny.write_card(
        tmp_path / "tiny.toml",
        checkpoint="gtr",
        pooling="mean",
        stages=[{"kind": "dense", "folder": "2_Dense"}],
        max_query_tokens=128,
        normalize=True,
        similarity="cos",
    )
    encoder = open_encoder(resolve_model(str(card)), "cpu")

    def forward(row: list[int]) -> torch.Tensor:
        vector = dense(hidden(model, row).mean(dim=1))
        unit: torch.Tensor = vector / vector.norm()
        return unit

    rows = [
        [*tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids, 1]
        for text in tiny.SENTENCES
    ]
    assert encoder.dim == 24
    expected = one_by_one(forward, rows)
    np.testing.assert_allclose(encoder.encode_queries(tiny.SENTENCES), expected, atol=1e-5)


def test_supervised_simcse_is_the_pooler_output(tmp_path: Path) -> None:
    model = tiny.write_bert(tmp_path / "simcse")
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="simcse", pooling="pooler")
    encoder = open_encoder(resolve_model(str(card)), "cpu")

    def forward(row: list[int]) -> torch.Tensor:
        pooled = torch.tanh(model.pooler.dense(hidden(model, row)[:, 0]))
        return pooled

    expected = one_by_one(forward, [single(text) for text in PLAIN])
    np.testing.assert_allclose(encoder.encode_queries(PLAIN), expected, atol=1e-5)


def test_distilbert_reads_no_token_types(tmp_path: Path) -> None:
    config = transformers.DistilBertConfig(
        vocab_size=len(tiny.VOCABULARY),
        dim=32,
        n_layers=2,
        n_heads=2,
        hidden_dim=64,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    model = tiny.seeded(lambda: transformers.DistilBertModel(config), 6)
    tiny.write_pickle(model, tmp_path / "tas-b", "DistilBertModel")
    tiny.write_tokenizer(tmp_path / "tas-b")
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="tas-b", pooling="cls")
    encoder = open_encoder(resolve_model(str(card)), "cpu")

    expected = one_by_one(lambda row: hidden(model, row)[:, 0], [single(text) for text in PLAIN])
    # Such large weights carry the rounding of a sum further: 1.5e-5 with AVX2 alone.
    np.testing.assert_allclose(encoder.encode_queries(PLAIN), expected, atol=1e-4)


def test_last_token_pooling_takes_the_last_token_that_is_not_padding(tmp_path: Path) -> None:
    model = tiny.write_bert(tmp_path / "bert")
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="bert", pooling="last")
    encoder = open_encoder(resolve_model(str(card)), "cpu")

    expected = one_by_one(lambda row: hidden(model, row)[:, -1], [single(text) for text in PLAIN])
    np.testing.assert_allclose(encoder.encode_queries(PLAIN), expected, atol=1e-5)


def test_an_old_sentence_transformers_folder_keeps_its_transformer_inside(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    model = tiny.write_bert(folder / "0_Transformer")
    settings = {"max_seq_length": 16, "do_lower_case": False}
    tiny.write_json(folder / "0_Transformer" / "sentence_bert_config.json", settings)
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    tiny.write_json(folder / "1_Pooling" / "config.json", pooling)
    tiny.write_st_files(
        folder,
        [
            ("0_Transformer", "sentence_transformers.models.Transformer"),
            ("1_Pooling", "sentence_transformers.models.Pooling"),
        ],
        similarity_fn_name="dot",
    )
    resolved = resolve_model(str(folder))
    encoder = open_encoder(resolved, "cpu")

    expected = one_by_one(
        lambda row: hidden(model, row).mean(dim=1), [single(text) for text in PLAIN]
    )
    assert resolved.recipe.max_document_tokens == 16
    np.testing.assert_allclose(encoder.encode_queries(PLAIN), expected, atol=1e-5)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_folder_saved_by_sentence_transformers_gives_its_vectors(
    tmp_path: Path, similarity: str
) -> None:
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers import models

    tiny.write_bert(tmp_path / "bert")
    torch.manual_seed(7)
    modules = [
        models.Transformer(str(tmp_path / "bert"), max_seq_length=24),
        models.Pooling(32, pooling_mode="mean"),
        models.Dense(32, 20, activation_function=torch.nn.Tanh()),
        models.LayerNorm(20),
    ]
    if similarity == "cosine":
        modules.append(models.Normalize())
    prompts = {"query": "alpha ", "document": "beta "}
    saved = st.SentenceTransformer(
        modules=modules, prompts=prompts, similarity_fn_name=similarity, device="cpu"
    )
    saved.save(str(tmp_path / "st"))

    resolved = resolve_model(str(tmp_path / "st"))
    encoder = open_encoder(resolved, "cpu")
    joined = [
        f"{title} {text}".strip() for title, text in zip(tiny.TITLES, tiny.SENTENCES, strict=True)
    ]
    assert resolved.recipe.max_query_tokens == 24
    np.testing.assert_allclose(
        encoder.encode_queries(tiny.SENTENCES), saved.encode_query(tiny.SENTENCES), atol=1e-5
    )
    np.testing.assert_allclose(
        encoder.encode_documents(tiny.TITLES, tiny.SENTENCES),
        saved.encode_document(joined),
        atol=1e-5,
    )
