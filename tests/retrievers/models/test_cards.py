"""Cards are strict when they are read, and those that are shipped state what a score depends on."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.__main__ import main
from datasets_cfg.catalogue import dataset_names, suite_names
from foundation.errors import BenchError
from retrievers.models import card as cards
from retrievers.models.card import all_cards, load_card, write_card
from retrievers.models.resolve import resolve_model
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import write_collection

GOOD = {"checkpoint": "somewhere/model", "pooling": "cls"}
SCORE = {"dataset": "beir/nq", "measure": "nDCG@10", "value": 0.5}


def test_a_model_is_added_with_one_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(cards.FILES.folder, tmp_path / "cards")
    added = dataclasses.replace(cards.FILES, folder=tmp_path / "cards")
    monkeypatch.setattr(cards, "FILES", added)
    tiny.write_bert(tmp_path / "weights")
    fields = {"checkpoint": str(tmp_path / "weights"), "pooling": "mean", "title": "Mine"}
    tiny.write_card(tmp_path / "cards" / "mine.toml", **fields)
    assert main(["list", "models"]) == 0
    assert "mine" in capsys.readouterr().out
    places = ["--cache-dir", str(tmp_path / "cache"), "--results", str(tmp_path / "results")]
    collection = str(write_collection(tmp_path / "tiny"))
    assert main(["run", collection, "--model", "mine", "--json", *places]) == 0
    assert '"mine"' in capsys.readouterr().out


def test_a_card_is_read_from_its_file_and_written_so_that_it_is_the_same(tmp_path: Path) -> None:
    prompts = {"query": "q: ", "datasets": {"beir/quora": {"query": ""}}}
    fields = {"trained_on": ["beir/nq"], "dtype": "bfloat16", "prompts": prompts}
    card = load_card(tiny.write_card(tmp_path / "mine.toml", **GOOD, **fields))
    assert (card.name, card.checkpoint, card.pooling) == ("mine", "somewhere/model", "cls")
    assert (card.trained_on, card.dtype) == (("beir/nq",), "bfloat16")
    with pytest.raises(AttributeError):
        card.pooling = "mean"  # type: ignore[misc]
    again = load_card(write_card(card, tmp_path, card.checkpoint))
    assert msgspec.structs.replace(again, name="mine") == card


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"poolng": "cls"}, "unknown field 'poolng'"),
        ({"pooling": "max"}, "pooling"),
        ({"kind": "hash"}, "'hash'"),
        ({"max_query_tokens": "32"}, "'32': expected a whole number"),
        ({"max_query_tokens": 0}, "from 1 to 1,000,000 tokens"),
        ({"max_document_tokens": 10**30}, "from 1 to 1,000,000 tokens"),
        ({"normalize": 1}, "1: expected true or false"),
        ({"similarity": "cos"}, "normalize = true"),
        ({"pooling": "none"}, "needs a pooling"),
        ({"pooling": "every"}, "pooling"),
        ({"checkpoint": ""}, "needs a checkpoint"),
        ({"options": {"dim": 3}}, "options belong to"),
        ({"kind": "hashing", "checkpoint": "", "pooling": "cls"}, "pooling does not apply to kind"),
        ({"unverified": ["poling"]}, "do not exist"),
        ({"stages": [{"kind": "dense"}]}, "either a key or a folder"),
        ({"stages": [{"kind": "dense", "key": "head"}]}, "output width"),
        ({"prompts": {"qurey": "q: "}}, "unknown field 'qurey'"),
        ({"expected": [SCORE]}, "source"),
        *(
            ({"source": "s", "expected": [SCORE | {field: value}]}, "expected a number")
            for field, value in [("value", -0.1), ("value", 1.01), ("tolerance", 0.051)]
        ),
        ({"name": "yours"}, "is named 'yours'"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_card_is_refused(tmp_path: Path, fields: dict[str, Any], problem: str) -> None:
    path = tiny.write_card(tmp_path / "mine.toml", **(GOOD | fields))
    with pytest.raises(BenchError) as caught:
        load_card(path)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_card_without_name_and_title_has_those_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path, name in (("mine.toml", "mine"), ("folder/card.toml", "folder")):
        (tmp_path / path).write_text(cards.format_toml(GOOD), encoding="utf-8")
        card = load_card(tmp_path / path)
        assert (card.name, card.title) == (name, name)
        assert (card.checkpoint, card.pooling) == (GOOD["checkpoint"], GOOD["pooling"])


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("field", ["value", "tolerance"])
def test_a_published_score_or_tolerance_is_a_number(tmp_path: Path, field: str, value: str) -> None:
    path = tiny.write_card(tmp_path / "mine.toml", **GOOD, source="s")
    score = {"dataset": '"beir/nq"', "measure": '"R@5"', "value": "0.5"} | {field: value}
    lines = [f"{key} = {said}" for key, said in score.items()]
    path.write_text("\n".join([path.read_text(), "[[expected]]", *lines]))
    with pytest.raises(BenchError, match=f"{field}.*expected a number"):
        load_card(path)


def test_a_published_score_has_the_source_that_the_card_states_once(tmp_path: Path) -> None:
    scores = [SCORE, SCORE | {"dataset": "beir/fiqa", "source": "an erratum"}]
    stated = GOOD | {"expected": scores, "source": "the model's page"}
    for more, first in (({}, "the model's page"), ({"expected_source": "a paper"}, "a paper")):
        card = load_card(tiny.write_card(tmp_path / "mine.toml", **stated, **more))
        assert [score.source for score in card.expected] == [first, "an erratum"]


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        (
            "mine.toml",
            b'name = "mine"\ntitle = ""\nnormalise = true',
            "Did you mean normalize or normalization?",
        ),
        ("nothing.toml", None, ""),
        ("broken.toml", b"name = ", ""),
        ("binary.toml", b"name = \xff", ""),
        ("retromea", None, "retromae"),
    ],
)
def test_an_unknown_card_suggests_the_closest(
    tmp_path: Path, name: str, content: bytes | None, hint: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BenchError, match=name) as caught:
        load_card(name if "." not in name else tmp_path / name)
    assert hint in caught.value.hint


def test_cards_state_what_the_scores_depend_on() -> None:
    """The use of the others is in their fingerprints, see test_recipe.py."""
    dpr = load_card("dpr-nq")
    assert (dpr.pooling, dpr.similarity, dpr.title_join) == ("pooler", "dot", "pair")
    assert "multiplied with the scores of BM25" in load_card("laprador").warning
    assert not load_card("laprador").expected
    bge = load_card("bge-base").prompts
    assert bge.query.startswith("Represent this sentence")
    asked = {name: prompts.query for name, prompts in bge.datasets.items()}
    assert asked == {"beir/quora": "", "beir/arguana": ""}
    warned = {name for name, card in all_cards().items() if card.pretrained_only}
    raw = "bert roberta deberta condenser cocondenser-wiki cocondenser-marco retromae-pretrained"
    assert warned == {*raw.split(), "retromae-msmarco", "cotmae"}
    with pytest.raises(BenchError, match="fairseq pickle; shuqi/seed-encoder"):
        resolve_model("seed")


@pytest.mark.parametrize("name", all_cards())
def test_every_card_is_whole(name: str) -> None:
    card, known = load_card(name), {*dataset_names(), *suite_names()}
    assert msgspec.json.decode(msgspec.json.encode(card), type=type(card)) == card
    keys = [(one.dataset, one.measure) for one in card.expected]
    assert len(keys) == len(set(keys))
    for one in card.expected:
        assert 0 < one.value < 1
        assert 0 < one.tolerance <= 0.01
        assert one.source.startswith("https://")
    named = {one.dataset for one in card.expected} | set(card.trained_on)
    assert named | set(card.prompts.datasets) <= known
    assert card.source
    assert card.citation or name == "hashing"
    usable = not card.missing and not card.pretrained_only and card.kind == "transformer"
    if usable and card.trained_on and name not in ("gtr-large", "gtr-xl", "gtr-xxl"):
        assert card.expected
