"""A tiny RoBERTa whose tokenizer tells cases apart, plain and as ANCE is published."""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from tests.support import tiny_checkpoints as tiny


def write_roberta(folder: Path) -> Path:
    """A plain checkpoint with random weights, and a tokenizer of bytes without merges."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: row for row, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    config = transformers.RobertaConfig(
        **tiny.SIZES, vocab_size=len(vocabulary), max_position_embeddings=66, pad_token_id=1
    )
    network = tiny.seeded(lambda: transformers.RobertaModel(config))
    network.save_pretrained(str(folder))
    transformers.RobertaTokenizerFast(
        tokenizer_object=tokenizer, do_lower_case=False, model_max_length=64
    ).save_pretrained(str(folder))
    return folder


def write_ance(folder: Path) -> Path:
    """The files of ``msmarco-roberta-base-ance-firstp``: RoBERTa, two stages, lower-casing."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    plain, st = write_roberta(folder / "plain"), folder / "st"
    torch.manual_seed(1)
    whole = [
        modules.Transformer(str(plain)),
        modules.Pooling(32, pooling_mode="cls"),
        modules.Dense(32, 32, activation_function=torch.nn.Identity()),
        modules.LayerNorm(32),
    ]
    SentenceTransformer(modules=whole, device="cpu").save(str(st))
    tiny.write_json(st / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": True})
    return st
