"""The files that make a folder one of sentence-transformers, written beside a checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from retrievers.models.card import Card
from retrievers.models.recipe import Recipe
from retrievers.models.st_folder import LEGACY_POOLING, POOLING

ST_POOLING: Mapping[str, str] = MappingProxyType({ours: mode for mode, ours in POOLING.items()})


def write_st_files(folder: Path, settings: Card | Recipe, width: int) -> None:
    """Write ``modules.json`` and what it names: pooling, lengths, normalisation and prompts.

    Args:
        settings: without stages, of a pooling in `ST_POOLING`.
        width: of the encoder's vectors.
    """
    kinds = ["Transformer", "Pooling", *(["Normalize"] if settings.normalize else [])]
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{kind}" if place else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for place, kind in enumerate(kinds)
    ]
    modes = {key: mode == ST_POOLING[settings.pooling] for key, mode in LEGACY_POOLING.items()}
    uses = {
        "prompts": {"query": settings.prompts.query, "document": settings.prompts.document},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if settings.similarity == "cos" else "dot",
    }
    lengths = {
        "max_seq_length": max(settings.max_query_tokens, settings.max_document_tokens),
        "do_lower_case": settings.lower_case,
    }
    _write_json(folder / "modules.json", modules)
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **modes})
    if settings.normalize:
        (folder / "2_Normalize").mkdir()
    _write_json(folder / "sentence_bert_config.json", lengths)
    _write_json(folder / "config_sentence_transformers.json", uses)


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
