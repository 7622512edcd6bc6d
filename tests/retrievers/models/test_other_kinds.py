"""Folders of models without a single vector per text, in the layouts that are published."""

from pathlib import Path
from typing import Any

import pytest

from foundation.errors import BenchError
from retrievers.models.names import resolve_card
from tests.support import tiny_checkpoints as tiny

ST = "sentence_transformers."


def modules(*types: str) -> list[dict[str, Any]]:
    return [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind.rpartition('.')[2]}" if i else "",
            "type": kind,
        }
        for i, kind in enumerate(types)
    ]


def architecture(name: str, **fields: Any) -> dict[str, Any]:
    return {"architectures": [name], "model_type": "bert", "hidden_size": 32, **fields}


# By name: the kind that the message names, and the JSON files of the folder.
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "naver/splade-v3, sentence-transformers 5": (
        "sparse",
        {
            "modules.json": modules(
                f"{ST}sparse_encoder.models.MLMTransformer",
                f"{ST}sparse_encoder.models.SpladePooling",
            ),
            "config_sentence_transformers.json": {"model_type": "SparseEncoder", "prompts": {}},
            "config.json": architecture("BertForMaskedLM"),
        },
    ),
    "opensearch-neural-sparse-encoding-v1": (
        "sparse",
        {"query_token_weights.txt": {"the": 0.1}, "config.json": architecture("BertForMaskedLM")},
    ),
    "colbert-ir/colbertv2.0": (
        "late-interaction",
        {"config.json": architecture("HF_ColBERT"), "artifact.metadata": {"dim": 128}},
    ),
    "PyLate 1": (
        "late-interaction",
        {
            "modules.json": modules(f"{ST}models.Transformer", "pylate.models.Dense.Dense"),
            "config_sentence_transformers.json": {
                "similarity_fn_name": "MaxSim",
                "query_prefix": "[Q] ",
                "document_length": 300,
                "do_query_expansion": True,
            },
            "config.json": architecture("ModernBertModel"),
        },
    ),
    "BAAI/bge-reranker-base": (
        "cross-encoder",
        {"config.json": architecture("XLMRobertaForSequenceClassification")},
    ),
    "a reranker, sentence-transformers 5.4": (
        "cross-encoder",
        {
            "modules.json": modules(
                f"{ST}base.modules.transformer.Transformer",
                f"{ST}cross_encoder.modules.logit_score.LogitScore",
            ),
            "config_sentence_transformers.json": {"model_type": "CrossEncoder"},
            "config.json": architecture("Qwen3ForCausalLM"),
        },
    ),
}


@pytest.mark.parametrize("like", [None, "minilm"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_other_kinds_of_models_are_refused_with_what_to_do(
    tmp_path: Path, name: str, like: str | None
) -> None:
    kind, files = LAYOUTS[name]
    for file, content in files.items():
        tiny.write_json(tmp_path / file, content)
    with pytest.raises(BenchError, match=f"is a {kind}") as caught:
        resolve_card(str(tmp_path), like)
    assert "bench score" in caught.value.hint
    assert "bench compare" in caught.value.hint


def test_a_dense_folder_whose_configuration_has_a_classifier_is_dense(tmp_path: Path) -> None:
    tiny.write_st_files(tmp_path, [("", f"{ST}models.Transformer"), ("1_P", f"{ST}models.Pooling")])
    tiny.write_json(tmp_path / "1_P" / "config.json", {"pooling_mode_mean_tokens": True})
    tiny.write_json(tmp_path / "config.json", architecture("RobertaForSequenceClassification"))
    assert resolve_card(str(tmp_path), None)[0].pooling == "mean"
