"""Cards are strict: what is misspelt or contradictory is refused when the file is read."""

from pathlib import Path

import msgspec
import pytest

from foundation.errors import BenchError
from retrievers.models.card import card_names, load_card
from tests.support import tiny_checkpoints as tiny

GOOD = {"checkpoint": "somewhere/model", "pooling": "cls"}


def test_a_card_is_read_from_its_file(tmp_path: Path) -> None:
    card = load_card(
        tiny.write_card(tmp_path / "mine.toml", **GOOD, trained_on=["beir/nq"], dtype="bfloat16")
    )
    assert (card.name, card.checkpoint, card.pooling) == ("mine", "somewhere/model", "cls")
    assert card.trained_on == ("beir/nq",)
    assert card.dtype == "bfloat16"
    with pytest.raises(AttributeError):
        card.pooling = "mean"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"poolng": "cls"}, "unknown field `poolng`"),
        ({"pooling": "max"}, "pooling"),
        ({"max_query_tokens": "32"}, "Expected `int`"),
        ({"max_query_tokens": 0}, "from 1 to 1,000,000 tokens"),
        ({"max_document_tokens": 10**30}, "from 1 to 1,000,000 tokens"),
        ({"normalize": 1}, "Expected `bool`"),
        ({"similarity": "cos"}, "normalize = true"),
        ({"pooling": "none"}, "needs a pooling"),
        ({"checkpoint": ""}, "needs a checkpoint"),
        ({"options": {"dim": 3}}, "options belong to"),
        ({"unverified": ["poling"]}, "do not exist"),
        ({"stages": [{"kind": "dense"}]}, "either a key or a folder"),
        ({"stages": [{"kind": "dense", "key": "head"}]}, "output width"),
        ({"prompts": {"qurey": "q: "}}, "unknown field `qurey`"),
        ({"expected": [{"dataset": "beir/nq", "measure": "nDCG@10", "value": 0.5}]}, "source"),
    ],
)
def test_a_wrong_card_is_refused(tmp_path: Path, fields: dict[str, object], problem: str) -> None:
    path = tiny.write_card(tmp_path / "mine.toml", **(GOOD | fields))
    with pytest.raises(BenchError) as caught:
        load_card(path)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300", "-0.1", "1.01"])
def test_a_published_score_outside_0_and_1_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(BenchError, match="value of an expected score is from 0 to 1"):
        load_card(card_expecting(tmp_path, value=value))


@pytest.mark.parametrize("tolerance", ["nan", "inf", "1e300", "-0.001", "0.051"])
def test_a_tolerance_that_would_accept_any_model_is_refused(tmp_path: Path, tolerance: str) -> None:
    with pytest.raises(BenchError, match=r"tolerance of an expected score is from 0 to 0\.05"):
        load_card(card_expecting(tmp_path, tolerance=tolerance))


@pytest.mark.parametrize(("value", "tolerance"), [("0.0", "0.0"), ("1.0", "0.05"), ("1", "0")])
def test_bounds_of_published_scores_are_allowed(tmp_path: Path, value: str, tolerance: str) -> None:
    (claim,) = load_card(card_expecting(tmp_path, value=value, tolerance=tolerance)).expected
    assert (claim.value, claim.tolerance) == (float(value), float(tolerance))


def test_a_published_score_has_the_source_that_the_card_states_once(tmp_path: Path) -> None:
    scores = [
        {"dataset": "beir/nq", "measure": "nDCG@10", "value": 0.5},
        {"dataset": "beir/fiqa", "measure": "nDCG@10", "value": 0.4, "source": "an erratum"},
    ]
    stated = GOOD | {"expected": scores, "source": "the model's page"}
    first = tiny.write_card(tmp_path / "mine.toml", **stated)
    assert [score.source for score in load_card(first).expected] == [
        "the model's page",
        "an erratum",
    ]
    second = tiny.write_card(tmp_path / "mine.toml", **stated, expected_source="a paper")
    assert [score.source for score in load_card(second).expected] == ["a paper", "an erratum"]


def card_expecting(folder: Path, value: str = "0.5", tolerance: str = "0.01") -> Path:
    path = tiny.write_card(folder / "mine.toml", **GOOD)
    stated = f'dataset = "beir/nq"\nmeasure = "nDCG@10"\nsource = "a paper"\nvalue = {value}'
    path.write_text(f"{path.read_text()}\n[[expected]]\n{stated}\ntolerance = {tolerance}\n")
    return path


def test_a_misspelt_key_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(BenchError) as caught:
        load_card(tiny.write_card(tmp_path / "mine.toml", **GOOD, normalise=True))
    assert caught.value.hint == "did you mean normalize?"


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(BenchError, match="'retromea'") as caught:
        load_card("retromea")
    assert "retromae" in caught.value.hint


def test_the_name_in_a_card_is_the_name_of_its_file(tmp_path: Path) -> None:
    path = tiny.write_card(tmp_path / "mine.toml", **(GOOD | {"name": "yours"}))
    with pytest.raises(BenchError, match="is named 'yours'"):
        load_card(path)


def test_a_file_that_is_missing_or_not_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"cannot read .*nothing\.toml"):
        load_card(tmp_path / "nothing.toml")
    (tmp_path / "broken.toml").write_text("name = ")
    with pytest.raises(BenchError, match="is not TOML"):
        load_card(tmp_path / "broken.toml")
    (tmp_path / "binary.toml").write_bytes(b"name = \xff")
    with pytest.raises(BenchError):
        load_card(tmp_path / "binary.toml")


def test_a_missing_model_may_lack_its_checkpoint_and_pooling(tmp_path: Path) -> None:
    card = load_card(tiny.write_card(tmp_path / "gone.toml", missing="nobody published it"))
    assert card.checkpoint == ""


def test_cards_survive_a_round_trip_through_json() -> None:
    for name in card_names():
        card = load_card(name)
        assert msgspec.json.decode(msgspec.json.encode(card), type=type(card)) == card
