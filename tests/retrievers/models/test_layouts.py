"""Each card's real file layout, against a direct forward pass written here.

The expected vectors come from the model in memory, one unpadded text at a time, from token ids
put together by hand: nothing of the encoder's own path is used.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from tests.support import tiny_checkpoints as tiny

CLS, SEP = tiny.VOCABULARY.index("[CLS]"), tiny.VOCABULARY.index("[SEP]")
PLAIN = ["the river of stone", "alpha beta gamma", "cloud", "a stone and the cloud of delta"]
TITLED = ["alpha", "", "the cloud", "beta gamma"]
Forward = Callable[[list[int]], torch.Tensor]


@dataclass
class Layout:
    """A checkpoint as its authors publish it, and what it must give.

    Attributes:
        card: fields of its card.
        forward: token ids of a document to its vector ``(1, dim)``.
        of_queries: the same of queries, where they have an encoder of their own.
        separated: title and text have a separator between them, and not a space.
        ids: of a text, with special tokens.
    """

    card: dict[str, Any]
    forward: Forward
    of_queries: Forward | None = None
    separated: bool = False
    dim: int = 32
    atol: float = 1e-5
    ids: Callable[[str], list[int]] = lambda text: [CLS, *tiny.word_ids(text), SEP]

    def documents(self) -> Iterable[list[int]]:
        for title, text in zip(TITLED, PLAIN, strict=True):
            if title and self.separated:
                yield [CLS, *tiny.word_ids(title), SEP, *tiny.word_ids(text), SEP]
            else:
                yield self.ids(f"{title} {text}".strip())


def hidden(model: Any, ids: list[int]) -> torch.Tensor:
    states: torch.Tensor = model(input_ids=torch.tensor([ids])).last_hidden_state
    return states


def cls_of(model: Any) -> Forward:
    return lambda row: hidden(model, row)[:, 0]


def retromae(folder: Path) -> Layout:
    """A pickle with an MLM head."""
    return Layout({"pooling": "cls"}, cls_of(tiny.write_mlm_pickle(folder).bert))


def retromae_msmarco(folder: Path) -> Layout:
    """Title and text are joined by a literal separator."""
    card = {"pooling": "cls", "title_join": "sep", "segment_ids": False}
    return Layout(card, cls_of(tiny.write_mlm_pickle(folder).bert), separated=True)


def pair(folder: Path, segment_ids: bool = True) -> Layout:
    """Title and text are two segments."""
    model = tiny.write_bert(folder)

    def forward(row: list[int]) -> torch.Tensor:
        first = row.index(SEP) + 1
        types = [0] * first + [int(segment_ids)] * (len(row) - first)
        out = model(input_ids=torch.tensor([row]), token_type_ids=torch.tensor([types]))
        vector: torch.Tensor = out.last_hidden_state[:, 0]
        return vector

    card = {"pooling": "cls", "title_join": "pair", "segment_ids": segment_ids}
    return Layout(card, forward, cls_of(model), separated=True)


def pair_of_one_segment(folder: Path) -> Layout:
    return pair(folder, segment_ids=False)


def dpr(folder: Path) -> Layout:
    """Two encoders of DPR's own classes."""
    sizes = {"vocab_size": len(tiny.VOCABULARY), "max_position_embeddings": 64}
    config = transformers.DPRConfig(**tiny.SIZES, **sizes)
    documents = tiny.seeded(lambda: transformers.DPRContextEncoder(config), 1)
    queries = tiny.seeded(lambda: transformers.DPRQuestionEncoder(config), 2)
    other = folder.with_name("question")
    tiny.write_pickle(documents, folder, "DPRContextEncoder")
    tiny.write_pickle(queries, other, "DPRQuestionEncoder")
    for each in (folder, other):
        tiny.write_tokenizer(each)
    card = {"query_checkpoint": "question", "pooling": "pooler", "title_join": "pair"}
    encoders = (documents.ctx_encoder.bert_model, queries.question_encoder.bert_model)
    return Layout(card | {"segment_ids": False}, *map(cls_of, encoders), separated=True)


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


def ance(folder: Path) -> Layout:
    """A RoBERTa with a head and a norm in one state dict."""
    tokenizer = roberta_tokenizer(folder)
    config = roberta_config(tokenizer)
    model = tiny.seeded(lambda: transformers.RobertaForMaskedLM(config), 3)
    head, norm = torch.nn.Linear(32, 24), torch.nn.LayerNorm(24)
    torch.nn.init.normal_(norm.weight)
    tiny.save_config(config, folder, "RobertaDot_NLL_LN")
    parts = {"roberta": model.roberta, "embeddingHead": head, "norm": norm}
    state = {
        f"{name}.{key}": value
        for name, part in parts.items()
        for key, value in part.state_dict().items()
    }
    torch.save(state, folder / "pytorch_model.bin")
    stages = [
        {"kind": "dense", "key": "embeddingHead", "width": 24},
        {"kind": "layer-norm", "key": "norm"},
    ]
    # By hand: <s> text </s>, and no space before the first word.
    plain = tokenizer.backend_tokenizer
    return Layout(
        {"pooling": "cls", "stages": stages, "max_query_tokens": 64, "max_document_tokens": 64},
        lambda row: norm(head(hidden(model.roberta, row)[:, 0])),
        dim=24,
        ids=lambda text: [0, *plain.encode(text, add_special_tokens=False).ids, 2],
    )


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


def gtr(folder: Path) -> Layout:
    """A T5 encoder with a dense folder."""
    tokenizer = t5_tokenizer(folder)
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    config = transformers.T5Config(vocab_size=len(tokenizer), **sizes)
    model = tiny.seeded(lambda: transformers.T5EncoderModel(config), 5)
    tiny.write_pickle(model, folder, "T5EncoderModel")
    dense = torch.nn.Linear(32, 24, bias=False)
    settings = {"in_features": 32, "out_features": 24, "bias": False}
    settings["activation_function"] = "torch.nn.modules.linear.Identity"
    tiny.write_json(folder / "2_Dense" / "config.json", settings)
    torch.save({"linear.weight": dense.weight.data}, folder / "2_Dense" / "pytorch_model.bin")

    def forward(row: list[int]) -> torch.Tensor:
        vector = dense(hidden(model, row).mean(dim=1))
        unit: torch.Tensor = vector / vector.norm()
        return unit

    stages = [{"kind": "dense", "folder": "2_Dense"}]
    card = {"pooling": "mean", "stages": stages, "normalize": True, "similarity": "cos"}
    lengths = {"max_query_tokens": 128, "max_document_tokens": 128}
    plain = tokenizer.backend_tokenizer
    return Layout(
        card | lengths,
        forward,
        dim=24,
        ids=lambda text: [*plain.encode(text, add_special_tokens=False).ids, 1],
    )


def supervised_simcse(folder: Path) -> Layout:
    """The pooler's output."""
    model = tiny.write_bert(folder)
    return Layout(
        {"pooling": "pooler"},
        lambda row: torch.tanh(model.pooler.dense(hidden(model, row)[:, 0])),
    )


def distilbert(folder: Path) -> Layout:
    """No token types."""
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    config = transformers.DistilBertConfig(
        **sizes,
        vocab_size=len(tiny.VOCABULARY),
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    model = tiny.seeded(lambda: transformers.DistilBertModel(config), 6)
    tiny.write_pickle(model, folder, "DistilBertModel")
    tiny.write_tokenizer(folder)
    # Such large weights carry the rounding of a sum further: 1.5e-5 with AVX2 alone.
    return Layout({"pooling": "cls"}, cls_of(model), atol=1e-4)


def last_token(folder: Path) -> Layout:
    """The last token that is not padding."""
    model = tiny.write_bert(folder)
    return Layout({"pooling": "last"}, lambda row: hidden(model, row)[:, -1])


def old_sentence_transformers(folder: Path) -> Layout:
    """The transformer is in a folder inside."""
    model = tiny.write_bert(folder / "0_Transformer")
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    tiny.write_json(folder / "1_Pooling" / "config.json", pooling)
    of = "sentence_transformers.models"
    modules = [("0_Transformer", f"{of}.Transformer"), ("1_Pooling", f"{of}.Pooling")]
    tiny.write_st_files(folder, modules, similarity_fn_name="dot")
    return Layout({"pooling": "mean"}, lambda row: hidden(model, row).mean(dim=1))


@pytest.mark.parametrize(
    "layout",
    [
        *(retromae, retromae_msmarco, pair, pair_of_one_segment, dpr, ance, gtr),
        *(supervised_simcse, distilbert, last_token, old_sentence_transformers),
    ],
    ids=lambda layout: layout.__name__,
)
def test_a_layout_gives_the_vectors_of_a_direct_forward_pass(
    tmp_path: Path, layout: Callable[[Path], Layout]
) -> None:
    known = layout(tmp_path / "published")
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="published", **known.card)
    encoder = open_encoder(resolve_model(str(card)), "cpu")
    with torch.inference_mode():
        documents = torch.cat([known.forward(row) for row in known.documents()])
        of_queries = known.of_queries or known.forward
        queries = torch.cat([of_queries(known.ids(text)) for text in PLAIN])
    assert encoder.dim == known.dim
    found = encoder.encode_documents(TITLED, PLAIN)
    np.testing.assert_allclose(found, documents.numpy(), atol=known.atol)
    np.testing.assert_allclose(encoder.encode_queries(PLAIN), queries.numpy(), atol=known.atol)
    if layout is old_sentence_transformers:  # which says itself how it is used
        own = open_encoder(resolve_model(str(tmp_path / "published")), "cpu")
        np.testing.assert_array_equal(own.encode_documents(TITLED, PLAIN), found)


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


def test_a_nystromformer_that_reads_one_length_only_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "nystromformer"
    sizes = {"vocab_size": len(tiny.VOCABULARY), "max_position_embeddings": 62}
    config = transformers.NystromformerConfig(**tiny.SIZES, **sizes, num_landmarks=4)
    transformers.NystromformerModel(config).save_pretrained(folder)
    tiny.write_tokenizer(folder)
    card = tiny.write_card(tmp_path / "card.toml", checkpoint="nystromformer", pooling="cls")
    with pytest.raises(BenchError, match="reads only texts of exactly 64 tokens") as caught:
        open_encoder(resolve_model(str(card)), "cpu").encode_queries(["x"])
    assert "Set segment_means_seq_len to 4" in caught.value.hint
