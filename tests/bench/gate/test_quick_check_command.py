"""``check --quick`` and ``check --speed`` as they are typed, and candidates named as a baseline."""

import json

import numpy as np
import pytest

from bench.exit_codes import ExitCode
from bench.gate.quick import LEDGER
from tests.support.collections import Bench, write_collection, write_hashing_card

WORDS = [f"word{chr(97 + i)}{chr(97 + j)}" for i in range(10) for j in range(10)]
COUNT, ASKED = 150, 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    documents = {f"d{i:03}": ("", " ".join(rng.choice(WORDS, 8).tolist())) for i in range(COUNT)}
    queries = {f"q{i:02}": " ".join(documents[f"d{i:03}"][1].split()[:2]) for i in range(ASKED)}
    qrels = {(f"q{i:02}", f"d{i:03}"): 1 for i in range(ASKED)}
    return write_collection(tmp_path_factory.mktemp("look") / "tiny", documents, queries, qrels)


def card(place: Bench, name: str, dim: int) -> str:
    path = place.place / str(dim) / f"{name}.toml"
    return str(write_hashing_card(path, dim, similarity="cos"))


@pytest.fixture
def known(bench, folder):
    """Results of a baseline, of another model and of BM25."""
    for model in (card(bench, "old", 64), "hashing", "bm25"):
        done = bench("run", folder, "--model", model, "--quiet")
        assert done.code == 0, done.stderr
    return bench


def check(bench: Bench, folder, *arguments: object):
    places = ("--results", bench.out, "--cache-dir", bench.cache, "--resamples", 499)
    on = () if "--on" in arguments else ("--on", folder)
    return bench("check", *arguments, *on, *places, "--quiet")


def test_a_first_look_never_passes_even_a_model_that_is_the_same(known, folder):
    done = check(known, folder, card(known, "old", 64), "--baseline", "old", "--quick")
    assert done.code == ExitCode.BAD_INPUT  # one model beside the candidate: its own is not pooled
    assert "2 models" in done.stderr
    known("run", folder, "--model", card(known, "third", 32), "--quiet")
    done = check(known, folder, card(known, "old", 64), "--baseline", "old", "--quick")
    assert done.code == ExitCode.INCONCLUSIVE, done.stderr
    assert "favour the candidate" in done.stdout
    assert "+0.0000" in done.stdout


def test_a_first_look_compares_under_one_protocol_only(known, folder):
    done = check(
        known, folder, card(known, "bad", 2), "--baseline", "old", "--quick", "--depth", 70
    )
    assert done.code == ExitCode.BAD_INPUT
    assert "depth 70 and 1000" in done.stderr


def test_a_clear_loss_shows_at_first_look_and_is_related_to_the_full_check(known, folder):
    bad = card(known, "bad", 2)
    options = (bad, "--baseline", "old", "--floor", 1)
    done = check(known, folder, *options, "--quick", "--json")
    assert done.code == ExitCode.REGRESSION, done.stderr
    look = json.loads(done.stdout)
    (subset,) = look["quick"]["subsets"]
    assert subset["judged"] == ASKED
    assert [name.split()[0] for name in subset["pooled"]] == ["bm25", "old", "hashing"]
    assert look["quick"]["relation"] is None
    assert not (known.out / "tiny" / "bad").exists()
    full = json.loads(check(known, folder, *options, "--json").stdout)
    record = json.loads((known.results("tiny", "bad") / "result.json").read_bytes())
    assert record["timings"]["encoded_documents"] == 0  # the look encoded them
    (earlier,) = full["looks"]
    seen = look["against"][0]["rows"][0]["paired"]["difference"]
    assert earlier["difference"] == pytest.approx(seen)
    assert earlier["full"] == pytest.approx(full["against"][0]["rows"][0]["paired"]["difference"])
    again = json.loads(check(known, folder, *options, "--quick", "--json").stdout)
    assert [one["full"] for one in again["quick"]["past"]] == [earlier["full"]]
    assert again["quick"]["relation"] is None  # a look at the whole relates to nothing


def test_the_baseline_scores_on_the_part_what_it_would_score_there(known, folder):
    """With all documents in the part, that is its stored score."""
    bad = card(known, "bad", 2)
    done = check(known, folder, bad, "--baseline", "old", "--quick", "--json")
    found = json.loads(done.stdout)
    (subset,) = found["quick"]["subsets"]
    assert subset["documents"] == subset["of"] == COUNT
    stored = json.loads((known.results("tiny", "old") / "result.json").read_bytes())
    (row,) = found["against"][0]["rows"]
    assert row["baseline"] == pytest.approx(stored["measures"]["nDCG@10"])


def test_a_collection_without_a_baseline_is_missing_at_first_look_too(known, folder, tmp_path):
    other = write_collection(tmp_path / "other")
    options = ("--baseline", "old", "--quick", "--on", folder, other)
    done = check(known, folder, card(known, "third", 32), *options)
    assert done.code == ExitCode.MISSING, done.stderr
    assert "other" in done.stdout


def test_bm25_runs_once_where_it_has_no_stored_result(bench, folder):
    for model in (card(bench, "old", 64), "hashing"):
        bench("run", folder, "--model", model, "--quiet")
    done = check(bench, folder, card(bench, "bad", 2), "--baseline", "old", "--quick")
    assert done.code == ExitCode.REGRESSION, done.stderr
    assert bench.results("tiny", "bm25").is_dir()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--quick", "--expect-same"), "--expect-same"),
        (("--quick", "--measure", "AP"), "cut-off"),
        (("--quick", "--budget", "0.000001s"), "--budget"),
        (("--quick", "--budget", "soon"), "soon"),
        (("--speed", "--slower", "0.5"), "0.5"),
        (("--speed", "--baseline-model", "nowhere"), "--baseline-model"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written_down(known, folder, arguments, said):
    done = check(known, folder, card(known, "bad", 2), "--baseline", "old", *arguments)
    assert done.code == ExitCode.BAD_INPUT
    assert said in done.stderr
    assert not (known.out / LEDGER).exists()


def test_speed_needs_a_model_and_not_a_bare_result(known, folder):
    done = check(known, folder, "hashing", "--baseline", "bm25", "--speed")
    assert done.code == ExitCode.BAD_INPUT
    assert "without vectors" in done.stderr
    done = check(known, folder, "hashing", "--baseline", "old", "--speed")
    assert done.code == ExitCode.BAD_INPUT  # `old` is the name of a card file, not of a card
    assert "--baseline-model" in done.stderr
    other = ("--baseline-model", card(known, "old", 32))
    assert (
        "not the model"
        in check(known, folder, "hashing", "--baseline", "old", "--speed", *other).stderr
    )


def test_speed_is_part_of_the_decision(known, folder):
    own = ("--baseline-model", card(known, "old", 64), "--speed", "--speed-time", "0.2s")
    options = ("hashing", "--baseline", "old", "--floor", 1, *own, "--json")
    plain = json.loads(
        check(known, folder, "hashing", "--baseline", "old", "--floor", 1, "--json").stdout
    )
    found = json.loads(check(known, folder, *options, "--slower", "1000000").stdout)
    assert found["speed"]["outcome"] == "OK"
    assert found["outcome"] == plain["outcome"]
    assert [pace["unit"] for pace in found["speed"]["paces"]] == ["words/s", "ms"]


def test_a_candidate_named_as_its_baseline_shadows_nothing(known, folder):
    other = card(known, "old", 32)
    first = json.loads(check(known, folder, other, "--baseline", "old", "--json").stdout)
    assert first["candidate"].startswith("old-")
    assert known.results("tiny", first["candidate"]).is_dir()
    again = check(known, folder, other, "--baseline", "old", "--json")
    assert json.loads(again.stdout)["against"] == first["against"]
    assert "stored in" in again.stderr
    assert check(known, folder, card(known, "old", 64), "--baseline", "old").code == ExitCode.OK


def test_a_name_that_stands_for_two_results_says_what_to_type(known, folder):
    done = known("run", folder, "--model", card(known, "old", 32), "--quiet")
    assert done.code == 0, done.stderr
    done = check(known, folder, "hashing", "--baseline", "old")
    assert done.code == ExitCode.BAD_INPUT
    assert "'old@dim=64'" in done.stderr
    chosen = check(known, folder, card(known, "old", 64), "--baseline", "old@dim=64")
    assert chosen.code == ExitCode.OK, chosen.stderr
