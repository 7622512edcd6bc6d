"""sentence-transformers folders, read as data."""

from pathlib import Path
from typing import Any

import pytest

from foundation.errors import BenchError
from retrievers.models.folder import ModelFolder
from tests.support import tiny_checkpoints as tiny

DENSE = {
    "in_features": 32,
    "out_features": 16,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
}


def test_the_layout_of_version_2(tmp_path: Path) -> None:
    folder = tiny.write_st_folder(tmp_path, "Dense", "Normalize")
    tiny.write_json(folder / "2_Dense" / "config.json", DENSE)
    tiny.write_json(folder / "sentence_bert_config.json", {"max_seq_length": 128})
    found = ModelFolder(folder).read_st_card()

    assert (found.pooling, found.normalize) == ("mean", True)
    assert found.max_query_tokens == found.max_document_tokens == 128
    assert [(stage.kind, stage.folder) for stage in found.stages] == [("dense", "2_Dense")]
    assert (found.similarity, found.warning) == ("cos", "")
    assert found.prompts.query == found.prompts.document == ""


def test_dropout_is_an_identity_when_texts_are_encoded(tmp_path: Path) -> None:
    folder = tiny.write_st_folder(tmp_path, "Dense", "Dropout", "Normalize")
    tiny.write_json(folder / "2_Dense" / "config.json", DENSE)
    found = ModelFolder(folder).read_st_card()
    assert [stage.folder for stage in found.stages] == ["2_Dense"]
    assert found.normalize


def test_prompts_of_other_names_are_named_as_unused(tmp_path: Path) -> None:
    prompts = {"query": "q: ", "passage": "p: ", "clustering": "c: ", "corpus": ""}
    found = ModelFolder(
        tiny.write_st_folder(tmp_path, prompts=prompts, default_prompt_name="passage")
    ).read_st_card()
    assert (found.prompts.query, found.prompts.document) == ("q: ", "")
    assert "its prompts passage, clustering are not used" in found.warning
    assert "cosine is used" in found.warning


def test_a_third_party_class_is_refused_and_not_imported(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    with pytest.raises(BenchError, match=r"'evil\.Module', which is not from"):
        ModelFolder(tiny.write_st_folder(tmp_path, ("2_Evil", "evil.Module"))).read_st_card()
    with pytest.raises(BenchError, match="not from sentence-transformers"):
        ModelFolder(
            tiny.write_st_folder(tmp_path, ("2_Evil", "sentence_transformers_evil.Dense"))
        ).read_st_card()


@pytest.mark.parametrize("extra", [("CNN",), ("Normalize", "Dense"), ("Pooling",)])
def test_other_modules_and_orders_are_not_supported(tmp_path: Path, extra: tuple[str, ...]) -> None:
    with pytest.raises(BenchError, match="are not supported") as caught:
        ModelFolder(tiny.write_st_folder(tmp_path, *extra)).read_st_card()
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
    folder = tiny.write_st_folder(tmp_path)
    tiny.write_json(folder / "1_Pooling" / "config.json", pooling)
    with pytest.raises(BenchError, match="not supported"):
        ModelFolder(folder).read_st_card()


@pytest.mark.parametrize(
    ("files", "lower_case"),
    [
        ({}, True),
        ({"tokenizer_config.json": {"do_lower_case": False}}, True),
        ({"tokenizer_config.json": {"do_lower_case": True}}, True),  # RoBERTa's ignores it
        (
            {
                "tokenizer_config.json": {
                    "do_lower_case": True,
                    "tokenizer_class": "RobertaTokenizer",
                }
            },
            True,
        ),
        (
            {"tokenizer_config.json": {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}},
            False,
        ),
        ({"tokenizer_config.json": {"do_lower_case": True}, "vocab.txt": []}, False),
    ],
)
def test_texts_are_lower_cased_where_the_tokenizer_does_not(
    tmp_path: Path, files: dict[str, Any], lower_case: bool
) -> None:
    folder = tiny.write_st_folder(tmp_path)
    for name, content in files.items():
        tiny.write_json(folder / name, content)
    assert not ModelFolder(folder).read_st_card().lower_case
    tiny.write_json(folder / "sentence_bert_config.json", {"do_lower_case": True})
    assert ModelFolder(folder).read_st_card().lower_case == lower_case


def test_settings_are_found_under_the_names_of_older_versions(tmp_path: Path) -> None:
    folder = tiny.write_st_folder(tmp_path)
    tiny.write_json(folder / "sentence_roberta_config.json", {"max_seq_length": 77})
    assert ModelFolder(folder).read_st_card().max_query_tokens == 77


DEEP = "[" * 200_000
BAD_FILES = {
    "modules.json": ["{}", '[{"path": 3, "type": "x"}]', DEEP, "\xff", "[null]"],
    "config_sentence_transformers.json": [
        *("[]", '{"prompts": []}', '{"prompts": {"query": 3}}'),
        *('{"similarity_fn_name": "manhattan"}', '{"truncate_dim": "half"}'),
    ],
    "sentence_bert_config.json": [
        *(DEEP, '{"max_seq_length": 0}', '{"max_seq_length": true}', '{"max_seq_length": 1.5}'),
        *('{"max_seq_length": ' + "9" * 5_000 + "}", '{"do_lower_case": "yes"}'),
        '{"processing_kwargs": {"text": {"max_length": 3}}}',
        '{"transformer_task": "text-generation"}',
        '{"modality_config": {"text": {"method": "get_text_features"}}}',
        *('{"modality_config": 3}', '{"tokenizer_name_or_path": "other"}', '{"query_length": 8}'),
        *('{"query_expansion": {"strategy": "fixed", "length": 8}}', '{"do_lower_cas": true}'),
    ],
    "tokenizer_config.json": [
        *("[]", '{"model_max_length": 0}', '{"model_max_length": "x"}', '{"do_lower_case": []}'),
        *('{"model_max_length": -1e30}', '{"truncation_side": "middle"}'),
    ],
    "tokenizer.json": [DEEP, '{"truncation": 3}', '{"truncation": {"direction": 1}}'],
    "1_Pooling/config.json": [
        *("{}", '{"pooling_mode": 3}', '{"pooling_mode": {}}'),
        *(
            '{"pooling_mode_mean_tokens": "yes"}',
            '{"pooling_mode": "mean", "include_prompt": null}',
        ),
    ],
    "2_Dense/config.json": [
        *('{"out_features": 0}', '{"out_features": 1e300}', '{"activation_function": 3}'),
        *('{"activation_function": "os.system"}', '{"module_input_name": "token_embeddings"}'),
    ],
}
CASES = [(name, text) for name, texts in BAD_FILES.items() for text in texts]


@pytest.mark.parametrize(
    ("name", "text"), CASES, ids=[f"{name}-{text[:40]}" for name, text in CASES]
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    folder = tiny.write_st_folder(tmp_path, "Dense")
    tiny.write_json(folder / "2_Dense" / "config.json", DENSE)
    assert ModelFolder(folder).read_st_card()
    (folder / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(BenchError) as caught:
        ModelFolder(folder).read_st_card()
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, "\ud800", "a/../../b", "/etc", ""])
def test_a_module_in_no_folder_is_refused(tmp_path: Path, path: str) -> None:
    folder = tiny.write_st_folder(tmp_path, (path, f"{tiny.ST}Dense"))
    with pytest.raises(BenchError):
        ModelFolder(folder).read_st_card()


@pytest.mark.parametrize(
    ("module", "content"),
    [
        ("2_Dense", {**DENSE, "use_residual": True}),
        ("2_Dense", {**DENSE, "temperature": 2}),
        ("1_Pooling", {"pooling_mode_mean_tokens": True, "weights": [1, 2]}),
    ],
)
def test_a_field_that_may_change_vectors_is_refused(
    tmp_path: Path, module: str, content: dict[str, Any]
) -> None:
    folder = tiny.write_st_folder(tmp_path, "Dense")
    tiny.write_json(folder / "2_Dense" / "config.json", DENSE)
    ModelFolder(folder).read_st_card()
    tiny.write_json(folder / module / "config.json", content)
    with pytest.raises(BenchError, match=f"{module}.*(use_residual|temperature|weights)"):
        ModelFolder(folder).read_st_card()


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"rope_theta": 1e4, "max_position_embeddings": 64}, 128),
        ({"max_position_embeddings": 64}, 64),
    ],
)
def test_a_stated_length_is_cut_only_to_a_table_of_positions(
    tmp_path: Path, config: dict[str, Any], length: int
) -> None:
    folder = tiny.write_st_folder(tmp_path)
    tiny.write_json(folder / "config.json", config)
    tiny.write_json(folder / "sentence_bert_config.json", {"max_seq_length": 128})
    assert ModelFolder(folder).read_st_card().max_document_tokens == length
    tiny.write_json(folder / "sentence_bert_config.json", {})
    assert (
        ModelFolder(folder).read_st_card().max_document_tokens == 64
    )  # as sentence-transformers does


def test_requirements_that_are_met_are_accepted(tmp_path: Path) -> None:
    reason = {"specifier": ">=4", "reason": "older versions lack the model"}
    met = {"transformers": reason, "pytorch": ">=1", "python": ">3", "sentence_transformers": ">99"}
    ModelFolder(tiny.write_st_folder(tmp_path, requirements=met)).read_st_card()


@pytest.mark.parametrize(
    ("requirements", "said"),
    [
        ({"transformers": {"specifier": ">=99"}}, r">=99, and transformers \d[\d.]+ is installed"),
        ({"pytorch": ">=99"}, r"requires pytorch>=99, and torch \S+ is installed"),
        ({"no-such-library": ""}, "and no-such-library is not installed"),
        ({"transformers": "~ 3"}, "the requirement of transformers is not valid"),
    ],
)
def test_requirements_that_are_not_met_are_an_error(
    tmp_path: Path, requirements: Any, said: str
) -> None:
    folder = tiny.write_st_folder(tmp_path, requirements=requirements)
    with pytest.raises(BenchError, match=said):
        ModelFolder(folder).read_st_card()
