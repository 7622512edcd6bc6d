"""Claims: kept beside results, never among them."""

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.results.find import find_results
from bench.results.interchange.claimed import CLAIM_FILE, Claimed, cards_with, find_claims, keep
from foundation.errors import BenchError
from retrievers.models.card import Card, Expected
from tests.support.leaderboards import store

CLAIM = Claimed(
    model="someone/words", collection="beir/scifact", measures={"nDCG@10": 1 / 3}, source="a paper"
)


def changed(**fields) -> Claimed:
    return msgspec.structs.replace(CLAIM, **fields)


@settings(deadline=None, max_examples=25)
@given(measures=st.dictionaries(st.sampled_from(["nDCG@10", "R@100", "RR@10"]), st.floats(0, 1)))
def test_a_claim_is_read_as_it_was_kept(measures, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    keep([changed(measures=measures)], out)
    assert find_claims(out) == [changed(measures=measures)]


def test_a_claim_is_kept_once_and_another_one_beside_it(tmp_path):
    other = changed(measures={"nDCG@10": 0.5})
    keep([CLAIM, CLAIM, other], tmp_path)
    keep([CLAIM], tmp_path)
    found = find_claims(tmp_path)
    assert len(found) == 2
    assert all(one in found for one in (CLAIM, other))


def test_claims_are_no_results(tmp_path):
    store(tmp_path, "words", "beir/scifact", [0.5, 0.25])
    keep([CLAIM, changed(model="words")], tmp_path)
    assert [one.result.model for one in find_results(tmp_path)] == ["words"]


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_score_out_of_range_is_no_claim(value):
    with pytest.raises(ValueError, match="not from 0 to 1"):
        Claimed(model="m", collection="c", measures={"nDCG@10": value}, source="s")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff", b"[" * 99_999, CLAIM.content.replace(b"0.33", b"1.33")]
)
def test_a_damaged_claim_is_refused_by_name(content, tmp_path):
    (path,) = keep([CLAIM], tmp_path)
    path.write_bytes(content)
    with pytest.raises(BenchError, match=re.escape(str(path))) as error:
        find_claims(tmp_path)
    assert "import it again" in error.value.hint


def test_another_schema_is_refused(tmp_path):
    (path,) = keep([CLAIM], tmp_path)
    path.write_bytes(changed(schema=2).content)
    with pytest.raises(BenchError, match="has schema 2"):
        find_claims(tmp_path)


@pytest.mark.parametrize("model", ["../x", "", "a b", "/x"])
def test_a_name_that_leads_out_of_the_folder_is_refused(model, tmp_path):
    with pytest.raises(BenchError):
        keep([changed(model=model)], tmp_path / "out")
    assert list(tmp_path.rglob(CLAIM_FILE)) == []


def test_a_model_without_a_card_gets_one_that_holds_its_claims():
    card = cards_with({}, [CLAIM])["someone/words"]
    (expected,) = card.expected
    assert (expected.dataset, expected.measure, expected.value) == (
        "beir/scifact",
        "nDCG@10",
        1 / 3,
    )
    assert expected.source == "a paper"


def test_the_card_s_own_score_comes_last_so_that_it_is_the_one_that_counts():
    own = Expected(dataset="beir/scifact", measure="nDCG@10", value=0.5, source="its card")
    known = {"someone/words": Card(name="someone/words", title="", missing="x", expected=(own,))}
    sources = [one.source for one in cards_with(known, [CLAIM])["someone/words"].expected]
    assert sources == ["a paper", "its card"]
    assert known["someone/words"].expected == (own,)
