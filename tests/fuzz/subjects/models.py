"""Cards, checkpoints and adapters: their own libraries say what vectors they give."""

import json
import re
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz import oracle
from tests.fuzz.subjects.base import (
    VECTORS_CLOSE,
    Finished,
    Subject,
    differing,
    only_run,
    same_scores,
)
from tests.fuzz.subjects.sample import write_beir


class Card(Subject):
    """A card of the hashing encoder."""

    name = "card"

    def make(self, folder: Path) -> None:
        write_beir(folder / "collection")
        (folder / "input").mkdir()
        (folder / "input" / "own.toml").write_text(
            'name = "own"\ntitle = "Own"\nkind = "hashing"\nnormalize = true\n'
            'similarity = "dot"\nmax_query_tokens = 512\nmax_document_tokens = 512\n'
            'title_join = "space"\ndtype = "float32"\ntrained_on = ["beir/scifact"]\n'
            'licence = "none"\nwarning = "a test"\n'
            '[options]\ndim = 64\n[prompts]\nquery = "lift "\n'
            '[[expected]]\ndataset = "beir/scifact"\nmeasure = "nDCG@10"\nvalue = 0.5\n'
            'source = "nobody"\ntolerance = 0.001\n',
            encoding="utf-8",
        )

    def command(self, rng: Random, folder: Path) -> list[str]:
        places = ("--out", str(folder / "out"), "--cache-dir", str(folder / "cache"))
        model = str(folder / "input" / "own.toml")
        words = ["run", str(folder / "collection"), "--model", model, "--json"]
        return [*words, *places]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        (result,) = finished.document()["results"]
        card = tomllib.loads((folder / "input" / "own.toml").read_text(encoding="utf-8"))
        if card.get("kind") != "hashing":
            return ""
        found = oracle.read_beir(folder / "collection")
        expected = oracle.ranked(self._scores(card, found), 1000, exclude_self=True)
        return differing(result["measures"], expected, found.grades)

    def _scores(self, card: dict[str, Any], found: oracle.Collection) -> oracle.Scored:
        from retrievers.encoders.python_object import HashingEncoder
        from retrievers.models.recipe import Recipe

        dim = card.get("options", {}).get("dim", 256)
        encoder = HashingEncoder(
            Recipe(model="x", kind="hashing", dim=dim, normalize=True, options={"dim": dim})
        )
        prompts = card.get("prompts", {})
        longest = [card.get(f"max_{side}_tokens", 512) for side in ("query", "document")]
        join = {"space": " ", "none": None}.get(card.get("title_join", "space"), " ")
        texts = [
            f"{title}{join}{text}" if title and join is not None else text
            for title, text in found.documents.values()
        ]
        queries = [prompts.get("query", "") + found.queries[query] for query in found.asked]
        documents = [prompts.get("document", "") + text for text in texts]
        cut = [
            [" ".join(words(text)[:most]) for text in some]
            for some, most in ((queries, longest[0]), (documents, longest[1]))
        ]
        blank = [""] * len(documents)
        return oracle.all_scores(
            found, encoder.encode_queries(cut[0]), encoder.encode_documents(blank, cut[1])
        )


def words(text: str) -> list[str]:
    """As the hashing encoder counts them."""
    return re.findall(r"\w+", text.lower())


class Checkpoint(Subject):
    """A sentence-transformers folder; what that library says of it is the truth."""

    name = "checkpoint"

    def make(self, folder: Path) -> None:
        write_beir(folder / "collection")
        write_sentence_transformer(folder / "input")

    def command(self, rng: Random, folder: Path) -> list[str]:
        places = ("--out", str(folder / "out"), "--cache-dir", str(folder / "cache"))
        words = ["run", str(folder / "collection"), "--model", str(folder / "input")]
        return [*words, "--device", "cpu", "--json", *places]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        found = oracle.read_beir(folder / "collection")
        stated, _ = oracle.read_run(only_run(folder / "out"))
        try:
            expected = scores_of_sentence_transformers(folder / "input", found)
        except Exception as error:  # it refuses more than is refused here
            return self._without_the_library(stated, before, error)
        expected = {pair: score for pair, score in expected.items() if pair[0] != pair[1]}
        return same_scores(stated, expected, VECTORS_CLOSE)

    def _without_the_library(self, stated: oracle.Scored, before: Path, error: Exception) -> str:
        sound, _ = oracle.read_run(only_run(before / "out"))
        different = same_scores(stated, sound, VECTORS_CLOSE)
        return different and f"{different}; sentence-transformers: {str(error)[:200]}"


def write_sentence_transformer(folder: Path) -> None:
    """A BERT of two thin layers with mean pooling, unit length and prompts."""
    import torch
    import transformers
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    vocabulary += [f"##{letter}" for letter in letters]
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config)
    config.save_pretrained(str(folder))
    save_file(model.state_dict(), str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=64)
    tokenizer.save_pretrained(str(folder))
    parts = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    for name, content in {
        "modules.json": modules,
        "1_Pooling/config.json": {
            "word_embedding_dimension": 16,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
        },
        "sentence_bert_config.json": {"max_seq_length": 48, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {"query": "q ", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=1))


def scores_of_sentence_transformers(folder: Path, found: oracle.Collection) -> oracle.Scored:
    """What the library's own ``encode_query`` and ``encode_document`` give."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    texts = [f"{title} {text}" if title else text for title, text in found.documents.values()]
    asked = [found.queries[query] for query in found.asked]
    options = {"convert_to_numpy": True, "show_progress_bar": False}
    queries = model.encode_query(asked, **options)
    documents = model.encode_document(texts, **options)
    if model.similarity_fn_name == "cosine":
        queries, documents = (
            one / np.linalg.norm(one, axis=1)[:, None] for one in (queries, documents)
        )
    return oracle.all_scores(found, queries, documents)


class Adapter(Checkpoint):
    """A PEFT adapter on the checkpoint above; what PEFT says of it is the truth."""

    name = "adapter"

    def make(self, folder: Path) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModel

        write_beir(folder / "collection")
        write_sentence_transformer(folder / "base")
        network = AutoModel.from_pretrained(str(folder / "base"))
        config = LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"])
        adapted = get_peft_model(network, config)
        torch.manual_seed(1)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter.data, std=0.3)
        adapted.save_pretrained(str(folder / "input"))

    def command(self, rng: Random, folder: Path) -> list[str]:
        places = ("--out", str(folder / "out"), "--cache-dir", str(folder / "cache"))
        words = ["run", str(folder / "collection"), "--model", str(folder / "base")]
        adapter = ("--adapter", str(folder / "input"))
        return [*words, *adapter, "--device", "cpu", "--json", *places]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        from peft import PeftModel
        from sentence_transformers import SentenceTransformer

        found = oracle.read_beir(folder / "collection")
        stated, _ = oracle.read_run(only_run(folder / "out"))
        model = SentenceTransformer(str(folder / "base"), device="cpu", local_files_only=True)
        try:
            adapted = PeftModel.from_pretrained(model[0].auto_model, str(folder / "input"))
            model[0].auto_model = adapted.merge_and_unload()
        except Exception as error:
            return self._without_the_library(stated, before, error)
        texts = [f"{title} {text}" if title else text for title, text in found.documents.values()]
        asked = [found.queries[query] for query in found.asked]
        options = {"convert_to_numpy": True, "show_progress_bar": False}
        expected = oracle.all_scores(
            found, model.encode_query(asked, **options), model.encode_document(texts, **options)
        )
        expected = {pair: score for pair, score in expected.items() if pair[0] != pair[1]}
        return same_scores(stated, expected, VECTORS_CLOSE)
