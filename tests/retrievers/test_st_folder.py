"""sentence-transformers folders, read as data."""

from pathlib import Path
from typing import Any

import pytest
import tiny_checkpoints as tiny

from foundation.errors import BenchError
from retrievers.models.st_folder import read_st_folder, stage_activation

OLD = "sentence_transformers.models."
NEW = "sentence_transformers.base.modules.transformer.Transformer"
NEW_POOLING = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"
NEW_NORMALIZE = "sentence_transformers.base.modules.normalize.Normalize"
DENSE = {
    "in_features": 32,
    "out_features": 16,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
}


def write(folder: Path, *extra: tuple[str, str], **settings: Any) -> Path:
    modules = [("", f"{OLD}Transformer"), ("1_Pooling", f"{OLD}Pooling"), *extra]
    tiny.write_st_files(folder, modules, **settings)
    tiny.write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    return folder


def test_the_layout_of_version_2(tmp_path: Path) -> None:
    folder = write(tmp_path, ("2_Dense", f"{OLD}Dense"), ("3_Normalize", f"{OLD}Normalize"))
    tiny.write_json(folder / "2_Dense" / "config.json", DENSE)
    tiny.write_json(folder / "sentence_bert_config.json", {"max_seq_length": 128})
    found = read_st_folder(folder)

    assert (found.pooling, found.normalize, found.max_tokens) == ("mean", True, 128)
    assert [(stage.kind, stage.folder) for stage in found.stages] == [("dense", "2_Dense")]
    assert found.similarity is None
    assert found.prompts.query == found.prompts.document == ""


def test_the_layout_of_version_6(tmp_path: Path) -> None:
    modules = [("", NEW), ("1_Pooling", NEW_POOLING), ("2_Normalize", NEW_NORMALIZE)]
    prompts = {"query": "q: ", "document": "d: "}
    tiny.write_st_files(tmp_path, modules, similarity_fn_name="cosine", prompts=prompts)
    pooling = {"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True}
    tiny.write_json(tmp_path / "1_Pooling" / "config.json", pooling)
    tiny.write_json(tmp_path / "tokenizer_config.json", {"model_max_length": 64})
    found = read_st_folder(tmp_path)

    assert (found.pooling, found.normalize, found.similarity) == ("cls", True, "cos")
    assert (found.prompts.query, found.prompts.document) == ("q: ", "d: ")
    assert found.max_tokens == 64


@pytest.mark.parametrize(
    ("settings", "query", "document"),
    [
        ({"prompts": {"passage": "p: "}}, "", "p: "),
        ({"prompts": {"corpus": "c: "}}, "", "c: "),
        ({"prompts": {"a": "all: "}, "default_prompt_name": "a"}, "all: ", "all: "),
        ({"prompts": {"query": "q: ", "a": "all: "}, "default_prompt_name": "a"}, "q: ", "all: "),
        ({"prompts": None}, "", ""),
    ],
)
def test_prompts_are_those_that_encode_query_and_encode_document_would_use(
    tmp_path: Path, settings: dict[str, Any], query: str, document: str
) -> None:
    found = read_st_folder(write(tmp_path, **settings)).prompts
    assert (found.query, found.document) == (query, document)


def test_a_class_from_elsewhere_is_refused_and_not_imported(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    with pytest.raises(BenchError, match=r"'evil\.Module', which is not of"):
        read_st_folder(write(tmp_path, ("2_Evil", "evil.Module")))
    with pytest.raises(BenchError, match="not of sentence-transformers"):
        read_st_folder(write(tmp_path, ("2_Evil", "sentence_transformers_evil.Dense")))


@pytest.mark.parametrize(
    "extra",
    [
        [("2_CNN", f"{OLD}CNN")],
        [("2_Normalize", f"{OLD}Normalize"), ("3_Dense", f"{OLD}Dense")],
        [("2_Pooling", f"{OLD}Pooling")],
    ],
)
def test_other_modules_and_orders_are_not_supported(
    tmp_path: Path, extra: list[tuple[str, str]]
) -> None:
    with pytest.raises(BenchError, match="are not supported") as caught:
        read_st_folder(write(tmp_path, *extra))
    assert "Transformer, Pooling" in caught.value.hint


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        {"pooling_mode_max_tokens": True},
        {"pooling_mode": ["cls", "mean"]},
        {"pooling_mode": "weightedmean"},
        {"pooling_mode_mean_tokens": False},
        {"pooling_mode": "mean", "include_prompt": False},
    ],
)
def test_pooling_that_cannot_be_reproduced_is_refused(
    tmp_path: Path, pooling: dict[str, Any]
) -> None:
    folder = write(tmp_path)
    tiny.write_json(folder / "1_Pooling" / "config.json", pooling)
    with pytest.raises(BenchError, match="not supported"):
        read_st_folder(folder)


def test_an_activation_outside_the_list_is_refused() -> None:
    assert stage_activation(DENSE) == "tanh"
    assert stage_activation({}) == "tanh"
    with pytest.raises(BenchError, match=r"'os\.system' is not supported"):
        stage_activation({"activation_function": "os.system"})


def test_other_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="similarity 'euclidean'"):
        read_st_folder(write(tmp_path, similarity_fn_name="euclidean"))
    folder = write(tmp_path, ("../outside", f"{OLD}Dense"))
    with pytest.raises(BenchError, match="leads out"):
        read_st_folder(folder)
    (folder / "modules.json").write_text('[{"path": 3}]')
    with pytest.raises(BenchError, match=r"modules\.json"):
        read_st_folder(folder)


def test_lower_casing_outside_the_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    tiny.write_json(folder / "sentence_bert_config.json", {"do_lower_case": True})
    with pytest.raises(BenchError, match="do_lower_case"):
        read_st_folder(folder)
    tiny.write_json(folder / "tokenizer_config.json", {"do_lower_case": True})
    assert read_st_folder(folder).max_tokens is None
