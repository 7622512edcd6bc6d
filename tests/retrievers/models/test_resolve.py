"""From what a user types to a recipe; nothing is guessed, and no model library is imported."""

import json
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from foundation import machine
from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.models import names
from retrievers.models import resolve as resolving
from retrievers.models.card import Recipe, load_card
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny
from tests.support.tiny_checkpoints import write_hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.write_mlm_pickle(tmp_path / "checkpoint-100")
    return tmp_path / "checkpoint-100"


def like_card(tmp_path: Path, **fields: Any) -> str:
    content = {
        "checkpoint": "org/original",
        "pooling": "cls",
        "prompts": {"query": "alpha "},
        "trained_on": ["beir/msmarco"],
        "weights_sha256": "0" * 64,
        "package": "nowhere/model",
        "expected": [{"dataset": "beir/nq", "measure": "R@5", "value": 0.5, "source": "here"}],
        "warning": "old news",
    }
    return str(tiny.write_card(tmp_path / "original.toml", **(content | fields)))


@pytest.mark.slow
def test_resolving_imports_no_model_library() -> None:
    code = (
        "import sys; from retrievers.encoders.transformer import open_encoder; "
        "from retrievers.models.resolve import resolve_model; "
        "model = resolve_model('minilm'); open_encoder(model); print(model.recipe.dim); "
        "heavy = {'torch', 'transformers', 'sentence_transformers', 'huggingface_hub'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["384", "[]"]


def test_a_card_name_gives_its_recipe() -> None:
    recipe = resolve_model("minilm").recipe
    assert (recipe.model, recipe.pooling, recipe.similarity) == ("minilm", "mean", "cos")
    assert recipe.files["model.safetensors"] == load_card("minilm").weights_sha256
    assert (recipe.max_query_tokens, recipe.dim) == (256, 384)
    assert msgspec.json.decode(msgspec.json.encode(recipe), type=Recipe) == recipe


def test_a_plain_checkpoint_is_refused_without_a_card(folder: Path) -> None:
    with pytest.raises(BenchError, match="is a plain checkpoint") as caught:
        resolve_model(str(folder))
    assert "add --like CARD" in caught.value.hint
    assert "or write card.toml into its folder" in caught.value.hint


def test_like_uses_the_recipe_and_drops_what_belongs_to_the_other_checkpoint(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = resolve_model(str(folder), ModelSettings(like=like_card(tmp_path)))
    assert model.card.name == model.recipe.model == "checkpoint-100"
    assert (model.recipe.pooling, model.recipe.prompts.query) == ("cls", "alpha ")
    assert model.recipe.max_document_tokens == 32
    assert model.recipe.checkpoint == "checkpoint-100"
    assert model.card.expected == model.card.trained_on == ()
    assert model.card.weights_sha256 == model.card.package == model.card.warning == ""
    assert "old news" not in caplog.text


@pytest.mark.parametrize("name", ["model.py", "model.toml"])
def test_a_folder_may_be_called_like_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert names.find_card(str(tmp_path / name)) is None


def test_like_needs_a_card_of_one_transformer(tmp_path: Path, folder: Path) -> None:
    card = tiny.write_card(tmp_path / "gone.toml", missing="not published", pooling="cls")
    assert resolve_model(str(folder), ModelSettings(like=str(card))).recipe.pooling == "cls"
    with pytest.raises(BenchError, match="two encoders"):
        resolve_model(str(folder), ModelSettings(like="dpr-nq"))
    with pytest.raises(BenchError, match="not describe a transformer"):
        resolve_model(str(folder), ModelSettings(like="bm25"))
    with pytest.raises(BenchError, match="no model card"):
        resolve_model(str(folder), ModelSettings(like="retromea"))
    for named in ("minilm", str(card)):
        with pytest.raises(BenchError, match="is a card, but --like minilm"):
            resolve_model(named, ModelSettings(like="minilm"))


def test_an_adapter_alone_is_not_read_as_a_plain_checkpoint(tmp_path: Path) -> None:
    content = '{"base_model_name_or_path": "org/base"}'
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(BenchError, match="is an adapter") as caught:
        resolve_model(str(tmp_path))
    assert f"org/base --adapter {tmp_path}" in caught.value.hint


def test_a_moved_checkpoint_keeps_its_fingerprint(tmp_path: Path, folder: Path) -> None:
    card = like_card(tmp_path)
    first = resolve_model(str(folder), ModelSettings(like=card)).recipe
    moved = folder.rename(tmp_path / "elsewhere")
    second = resolve_model(str(moved), ModelSettings(like=card)).recipe
    assert first.fingerprint == second.fingerprint

    weights = moved / "pytorch_model.bin"
    weights.write_bytes(weights.read_bytes() + b"\0")
    assert (
        resolve_model(str(moved), ModelSettings(like=card)).recipe.fingerprint != first.fingerprint
    )


def test_paths_in_a_card_are_relative_to_the_card(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = tiny.write_card(tmp_path / "mine.toml", checkpoint="checkpoint-100", pooling="mean")
    monkeypatch.chdir("/")
    model = resolve_model(str(card))
    assert model.document is not None
    assert model.document.folder == folder
    assert (model.recipe.checkpoint, model.recipe.revision) == ("checkpoint-100", "")


def test_weights_that_are_not_the_cards_are_refused(folder: Path, tmp_path: Path) -> None:
    card = tiny.write_card(
        tmp_path / "mine.toml",
        checkpoint="checkpoint-100",
        pooling="cls",
        weights_sha256="0" * 64,
    )
    with pytest.raises(BenchError, match="is not the checkpoint of mine") as caught:
        resolve_model(str(card))
    assert "--like mine" in caught.value.hint


def test_vectors_of_no_dimension_are_refused(tmp_path: Path) -> None:
    fields = {"kind": "hashing", "normalize": True, "options": {"dim": 0}}
    with pytest.raises(BenchError, match=r"options\.dim"):
        resolve_model(str(tiny.write_card(tmp_path / "own.toml", **fields)))


def test_a_card_without_its_ending_is_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.write_card(tmp_path / "own.toml", kind="hashing", options={"dim": 8})
    with pytest.raises(BenchError) as caught:
        resolve_model("own")
    assert "Did you mean own.toml?" in caught.value.hint


@pytest.mark.parametrize("name", ["retromea", "no/such/folder/here", "./retromae"])
def test_an_unknown_model_gets_a_suggestion(name: str) -> None:
    with pytest.raises(BenchError) as caught:
        resolve_model(name)
    assert "list models" in caught.value.hint
    with pytest.raises(BenchError, match="Shitao/RetroMAE_BEIR has a card") as caught:
        resolve_model("Shitao/RetroMAE_BEIR")
    assert caught.value.hint == "Use its card: retromae"


def test_a_plain_hub_checkpoint_is_refused_without_a_card(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hub(tmp_path, folder, monkeypatch)
    with pytest.raises(BenchError, match="org/name is a plain checkpoint"):
        resolve_model("org/name")
    model = resolve_model("org/name", ModelSettings(like=like_card(tmp_path)))
    assert (model.recipe.checkpoint, model.recipe.revision) == ("org/name", "c0ffee")


def test_a_branch_is_not_accepted_as_a_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an installed package nobody knows the commit; of the Hub's cache it is the folder."""
    tiny.write_bert(tmp_path / "site" / "tiny_package" / "model")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path / "site")])
    fields = {"checkpoint": "org/name", "pooling": "cls", "package": "tiny_package/model"}
    for revision, shown in (("main", ""), ("c0ffee", "c0ffee")):
        card = tiny.write_card(tmp_path / "tiny.toml", **fields, revision=revision)
        assert resolve_model(str(card)).recipe.revision == shown


def write_st(folder: Path, **settings: Any) -> Path:
    tiny.write_bert(folder)
    return tiny.write_st_folder(folder, **settings)


def test_a_sentence_transformers_repository_of_the_hub_needs_no_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hub(tmp_path, write_st(tmp_path / "st", similarity_fn_name="dot"), monkeypatch)
    recipe = resolve_model("org/name").recipe
    assert (recipe.model, recipe.pooling, recipe.similarity) == ("name", "mean", "dot")
    assert (recipe.checkpoint, recipe.revision) == ("org/name", "c0ffee")


def test_a_card_whose_pooling_differs_from_its_folder_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_st(tmp_path / "st")
    card = tiny.write_card(tmp_path / "own.toml", checkpoint=str(folder), pooling="cls")
    resolve_model(str(card))
    assert "states pooling mean, but cls is used" in caplog.text
    recipe = resolve_model(str(folder)).recipe
    assert (recipe.similarity, recipe.normalize) == ("cos", True)
    assert "does not say which similarity" in caplog.text


@pytest.mark.parametrize(
    ("stated", "used", "contradicted"),
    [
        ({}, {"pooling": "cls"}, "pooling is mean, not cls"),
        ({"prompts": {"query": "q: "}}, {}, "query prompt is 'q: ', not none"),
        ({}, {"truncation_side": "left"}, "truncation_side is right, not left"),
        ({}, {"stages": [{"kind": "dense", "folder": "2_Dense"}]}, r"stages is \[\], not"),
    ],
)
def test_like_is_refused_if_it_contradicts_a_sentence_transformers_folder(
    tmp_path: Path, stated: dict[str, Any], used: dict[str, Any], contradicted: str
) -> None:
    folder = write_st(tmp_path / "st", **stated)
    like = tiny.write_card(tmp_path / "like.toml", **{"checkpoint": "-", "pooling": "mean", **used})
    with pytest.raises(BenchError, match=contradicted):
        resolve_model(str(folder), ModelSettings(like=str(like)))


def test_like_may_choose_other_lengths_and_the_use_of_a_pre_trained_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_st(tmp_path / "st", similarity_fn_name="cosine")
    like = {"checkpoint": "-", "pooling": "mean", "normalize": True, "similarity": "cos"}
    card = str(tiny.write_card(tmp_path / "like.toml", **like, max_query_tokens=8))
    assert resolve_model(str(folder), ModelSettings(like=card)).recipe.max_query_tokens == 8
    assert "states max_query_tokens 64, but 8 is used" in caplog.text
    dot = tiny.write_card(tmp_path / "dot.toml", checkpoint="-", pooling="mean")
    assert not resolve_model(str(folder), ModelSettings(like=str(dot))).recipe.normalize
    assert "states normalize True, but False is used" in caplog.text
    own = {"checkpoint": ".", "pooling": "cls"}
    tiny.write_card(folder / "card.toml", **own, warning="pre-trained only: MLM")
    assert resolve_model(str(folder), ModelSettings(like=card)).recipe.pooling == "mean"
    tiny.write_card(folder / "card.toml", **own)
    with pytest.raises(BenchError, match="pooling is cls, not mean"):
        resolve_model(str(folder), ModelSettings(like=card))
    tiny.write_card(folder / "card.toml", **own | {"pooling": "mean"})
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    tiny.write_json(folder / "modules.json", modules)
    with pytest.raises(BenchError, match="normalize is False, not True"):
        resolve_model(str(folder), ModelSettings(like=card))
    (folder / "card.toml").unlink()
    with pytest.raises(BenchError, match="normalize is True, not False"):
        resolve_model(str(folder), ModelSettings(like=str(dot)))


def test_settings_of_the_call_win_over_the_card(folder: Path, tmp_path: Path) -> None:
    card = like_card(tmp_path)
    recipe = resolve_model(
        str(folder),
        ModelSettings(like=card, dtype="bfloat16", max_query_tokens=8, max_document_tokens=16),
    ).recipe
    assert (recipe.dtype, recipe.max_query_tokens, recipe.max_document_tokens) == (
        "bfloat16",
        8,
        16,
    )
    with pytest.raises(BenchError, match="positions for 64") as caught:
        resolve_model(str(folder), ModelSettings(like=card, max_document_tokens=65))
    assert "at most 64" in caught.value.hint
    with pytest.raises(BenchError, match="from 1 to 1,000,000 tokens"):
        resolve_model(str(folder), ModelSettings(like=card, max_query_tokens=0))


def test_a_class_of_a_package_is_refused_with_what_to_write(tmp_path: Path) -> None:
    card = str(tmp_path / "theirs.toml")
    fields = {"name": "theirs", "title": "t", "kind": "python", "encoder": "package.module:Class"}
    Path(card).write_text("".join(f'{name} = "{value}"\n' for name, value in fields.items()))
    with pytest.raises(BenchError, match="not part of this project") as caught:
        resolve_model(card)
    assert "--trust-code" in caught.value.hint
    with pytest.raises(BenchError, match=r"is not path/to/file\.py:NAME"):
        resolve_model(card, ModelSettings(trust_code=True))


def test_bm25_has_no_encoder() -> None:
    with pytest.raises(BenchError, match="makes no vectors"):
        open_encoder(resolve_model("bm25"))


@pytest.mark.parametrize(
    ("flags", "allowed", "has_vnni"),
    [
        ("avx512_vnni amx_int8", "", True),
        ("avx_vnni", "", True),
        ("fma", "", False),
        ("avx512_vnni", "AVX2", False),
    ],
)
def test_int8_is_refused_if_its_sums_saturate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, allowed: str, has_vnni: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : fpu avx2 {flags}\n")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if allowed:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", allowed)
    if has_vnni:
        assert resolve_model("minilm", ModelSettings(dtype="int8")).recipe.precision == "int8"
    else:
        with pytest.raises(BenchError, match="int8 overflows on this CPU"):
            resolve_model("minilm", ModelSettings(dtype="int8"))


@pytest.fixture
def vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "has_vnni", lambda: True)


@pytest.mark.usefixtures("vnni")
def test_int8_is_part_of_the_recipe() -> None:
    exact = resolve_model("minilm").recipe.fingerprint
    assert resolve_model("minilm", ModelSettings(dtype="float32")).recipe.fingerprint == exact
    assert resolve_model("minilm", ModelSettings(dtype="int8")).recipe.fingerprint != exact


@pytest.mark.usefixtures("vnni")
def test_int8_refuses_unsupported_networks(tmp_path: Path, folder: Path) -> None:
    tiny.write_json(tmp_path / "lora" / "adapter_config.json", {"peft_type": "LORA"})
    (tmp_path / "lora" / "adapter_model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    half = tiny.write_card(
        tmp_path / "half.toml", checkpoint=str(folder), pooling="cls", dtype="bfloat16"
    )
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("hashing", {}, "dtype cannot be set for hashing"),
        ("bm25", {}, "dtype cannot be set for bm25"),
        (str(half), {}, "needs float32 weights, not bfloat16"),
        ("minilm", {"adapter": str(tmp_path / "lora")}, "int8 does not support adapters"),
    ]
    for model, settings, problem in refused:
        with pytest.raises(BenchError, match=problem):
            resolve_model(model, ModelSettings(dtype="int8", **settings))
