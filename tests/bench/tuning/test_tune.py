"""`tune` from the command line and from Python, with models and run files, on real searches."""

import json

import numpy as np
import pytest

import bench as api
from bench.requests.deciding import TuneRequest
from bench.requests.outcomes import ExitCode
from bench.tuning.tune import _write_cards
from bench.tuning.tuning_record import Cost, TunedSetting
from retrievers.models.card import Fusion
from retrievers.models.resolve import resolve_model
from tests.support.collections import (
    SIXTY,
    SIXTY_QRELS,
    with_metadata,
    write_collection,
    write_run,
)
from tests.support.pipelines import write_rerank, write_reranker

METADATA = 'name = "{}"\nmain_measure = "RR@10"\n'


@pytest.fixture
def sixty(tmp_path):
    return write_collection(tmp_path / "sixty", *SIXTY, metadata=METADATA.format("sixty"))


def ranks(path, of):
    """A run file with the relevant document of each query at rank ``of(number)`` from 1."""
    rankings = {}
    for number, (query, document) in enumerate(SIXTY_QRELS):
        ranking = [f"{path.stem}{place}" for place in range(of(number) - 1)]
        ranking += [document, *(f"{path.stem}{place}" for place in range(50, 55))]
        rankings[query] = {one: float(20 - place) for place, one in enumerate(ranking)}
    return write_run(path, rankings)


@pytest.fixture
def halves(tmp_path):
    """Two run files, each of which is right for one half of the queries, and third for the rest."""
    return [ranks(tmp_path / f"{name}.trec", lambda n, odd=odd: 1 if n % 2 == odd else 3)
            for odd, name in enumerate("ab")]  # fmt: skip


def tune(bench, *words):
    done = bench("tune", *words, "--json", "--cache-dir", bench.cache, "--results", bench.out)
    assert done.code in (ExitCode.OK, ExitCode.INCONCLUSIVE), done.stderr
    return json.loads(done.stdout), done.code


def test_a_fusion_of_run_files_is_proved_better_than_both(bench, sixty, halves, tmp_path):
    card = tmp_path / "both.toml"
    found, code = tune(bench, *halves, "--on", sixty, "--out", card)
    assert code == ExitCode.OK
    assert found["baseline_score"] == pytest.approx((1 + 1 / 3) / 2)
    assert found["chosen"]["models"] == [str(one) for one in halves]
    assert found["chosen"]["low"] > 0.2
    assert found["chosen"]["score"] == found["ceilings"][0]["score"] == 1.0
    assert len(found["settings"]) == 12
    assert card.read_text() == found["card"]
    alone = next(one for one in found["settings"] if one["name"] == "b")
    assert alone["gain"] == pytest.approx(0)
    assert alone["low"] < -0.05 < 0.05 < alone["high"]
    again, code = tune(bench, *halves, "--on", sixty, "--only", card)
    assert code == ExitCode.OK
    (only,) = again["settings"]
    assert (only["fusion"], only["score"]) == (found["chosen"]["fusion"], 1.0)
    assert only["low"] > found["chosen"]["low"]  # as nothing else is tested
    assert again["selection"] == 0


def test_equal_rankings_are_no_pipeline(bench, sixty, halves, tmp_path):
    other = tmp_path / "copy.trec"
    other.write_bytes(halves[0].read_bytes())
    found, code = tune(bench, halves[0], other, "--on", sixty, "--out", tmp_path / "none.toml")
    assert (code, found["chosen"], found["card"]) == (ExitCode.INCONCLUSIVE, None, "")
    assert {one["gain"] for one in found["settings"]} == {0.0}
    assert not (tmp_path / "none.toml").exists()
    done = bench("tune", halves[0], other, "--on", sixty)
    assert "No setting is proved better than a in RR@10 on sixty. Keep a." in done.stdout


def test_the_cheapest_proved_setting_is_one_ranking_if_that_is_enough(bench, sixty, tmp_path):
    poor = ranks(tmp_path / "poor.trec", lambda _: 8)
    good = ranks(tmp_path / "good.trec", lambda n: 1 + n % 2)
    found, _ = tune(bench, poor, good, "--on", sixty)
    assert (found["chosen"]["name"], found["card"]) == ("good", "")
    assert any(one["fusion"] and one["low"] > 0 for one in found["settings"])
    done = bench("tune", poor, good, "--on", sixty, "--out", tmp_path / "c.toml")
    assert "c.toml is not written: good is one ranking alone" in done.stdout


def test_a_fusion_of_models_scores_what_its_card_scores_in_run(bench, sixty, tmp_path):
    found, _ = tune(bench, "hashing", "bm25", "--on", sixty, "--measure", "RR@5")
    costs = [one["costs"] for one in found["settings"]]
    assert all(0 < one["ms"] <= one["p95_ms"] for one in costs)
    hashing = found["baseline_costs"]["vector_bytes"]
    assert hashing == 4 * resolve_model("hashing").recipe.options["dim"]
    sizes = {tuple(one["models"]): one["costs"]["vector_bytes"] for one in found["settings"]}
    assert sizes == {("bm25",): 0, ("hashing", "bm25"): hashing}
    assert found["measure"] == "RR@5"
    best = next(one for one in found["settings"] if one["fusion"])
    fields = {name: value for name, value in best["fusion"].items() if value not in (None, [])}
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in fields.items()]
    card = tmp_path / "same.toml"
    start = 'name = "same"\ntitle = "Same"\nkind = "fusion"\nmodels = ["hashing", "bm25"]\n'
    card.write_text(start + "".join(lines))
    done = bench("run", sixty, "--model", card, "hashing", "--measure", "RR@5", "--json")
    scores = {one["model"]: one["measures"]["RR@5"] for one in json.loads(done.stdout)["results"]}
    assert scores == {"same": best["score"], "hashing": found["baseline_score"]}


def test_what_was_evaluated_before_is_not_searched_again(bench, sixty):
    assert bench("run", sixty, "--model", "hashing", "bm25").code == 0
    before = {file: file.stat().st_mtime_ns for file in bench.out.rglob("result.json")}
    tune(bench, "hashing", "bm25", "--on", sixty)
    assert {file: file.stat().st_mtime_ns for file in bench.out.rglob("result.json")} == before


def test_a_reranker_takes_its_time_and_settings_over_a_limit_are_not_tested(bench, sixty, tmp_path):
    """Also where its scores are stored."""
    own = write_reranker(tmp_path, "import time; time.sleep(.02); return [1.0] * len(texts)")
    card = write_rerank(tmp_path, own, depth=5)
    typed = ("hashing", "bm25", card, "--on", sixty, "--trust-code")
    for _ in range(2):
        bench.out.rename(tmp_path / "old") if bench.out.exists() else None
        found, _ = tune(bench, *typed)
        alone = next(one for one in found["settings"] if one["name"] == "reranked")
        assert 20 <= alone["costs"]["ms"] < 1000
    fewer, _ = tune(bench, *typed, "--limit-ms", 15)
    assert {model for one in fewer["settings"] for model in one["models"]} == {"hashing", "bm25"}
    assert fewer["over_ms"] + len(fewer["settings"]) == len(found["settings"])
    done = bench("tune", *typed, "--limit-ms", ".000001")
    assert done.code == ExitCode.BAD_INPUT
    assert "every setting costs more than 0.000001 ms a query" in done.stderr


OVERLAP = "return [len({*query.split()} & {*text.split()}) / 2 for text in texts]"


@pytest.fixture
def third(tmp_path, sixty):
    """Two run files of documents of the collection, with the relevant one at rank 3 or 4."""
    found = []
    for rank, name in enumerate("ab", start=2):
        rankings = {}
        for number, (query, document) in enumerate(SIXTY_QRELS):
            others = [f"d{(number + step) % 60:02}" for step in range(1, 9)]
            others.insert(rank, document)
            rankings[query] = {one: float(-place) for place, one in enumerate(others)}
        found.append(write_run(tmp_path / f"{name}.trec", rankings))
    return found


def test_every_setting_is_also_reranked_and_the_gain_of_reranking_is_told(
    bench, sixty, third, tmp_path
):
    write_reranker(tmp_path, OVERLAP)
    own = ["--reranker", tmp_path / "own.py:score", "--trust-code"]
    found, code = tune(bench, *third, "--on", sixty, *own)
    assert code == ExitCode.OK
    assert len(found["settings"]) == 12 + 4 * 13
    assert found["baseline_score"] == pytest.approx(1 / 3)
    assert found["chosen"]["name"] == "a, first 10 reranked"
    assert found["chosen"]["score"] == 1.0
    assert found["reranked"] == "a"
    assert [one["depth"] for one in found["rerankings"]] == [10, 20, 50, 100]
    assert [one["gain"] for one in found["rerankings"]] == pytest.approx([2 / 3] * 4)
    shown = bench("tune", *third, "--on", sixty, *own, "--results", bench.out).stdout
    assert "| first 10 " in shown
    assert "check FILE --baseline a --on OTHER" in shown


def test_a_pair_is_scored_once_for_all_settings(bench, sixty, third, tmp_path):
    seen = tmp_path / "seen.txt"
    write_reranker(
        tmp_path,
        f"open({str(seen)!r}, 'a').writelines(f'{{query}} | {{text}}\\n' for text in texts)\n"
        f"    {OVERLAP}",
    )
    for _ in range(2):
        tune(bench, *third, "--on", sixty, "--reranker", tmp_path / "own.py:score", "--trust-code")
    lines = seen.read_text("utf-8").splitlines()
    assert len(lines) == len({*lines}) == 60 * 9


@pytest.mark.parametrize("fusion", [None, Fusion(method="weighted", weights=(0.3, 0.7))])
def test_the_cards_of_a_reranked_answer_run(bench, sixty, tmp_path, fusion):
    write_reranker(tmp_path, OVERLAP)
    (tmp_path / "cards").mkdir()
    out = tmp_path / "cards" / "answer.toml"
    request = TuneRequest(
        ("hashing", "bm25"), str(sixty), reranker=str(tmp_path / "own.py:score"), out=out
    )
    models = ("hashing", "bm25") if fusion else ("hashing",)
    numbers = {"costs": Cost(1.0, 2.0), "score": 0.5, "gain": 0.1, "low": 0.05, "high": 0.2}
    setting = TunedSetting(name="x", models=models, fusion=fusion, reranked=3, **numbers)
    card, first = _write_cards(request, setting)
    assert card == out.read_text("utf-8")
    assert bool(first) == (tmp_path / "cards" / "answer-first.toml").exists() == bool(fusion)
    done = bench("run", sixty, "--model", out, "--trust-code", "--json")
    (result,) = json.loads(done.stdout)["results"]
    assert result["measures"]["RR@10"] == 1.0


def test_a_reranker_needs_texts(bench, halves, tmp_path):
    (tmp_path / "golden").mkdir()
    golden = tmp_path / "golden" / "golden.csv"
    golden.write_text("id,question,relevant_ids\nq00,word,d00\nq01,other,d01\n", encoding="utf-8")
    write_reranker(tmp_path, OVERLAP)
    own = ["--reranker", tmp_path / "own.py:score", "--trust-code"]
    done = bench("tune", *halves, "--on", golden.parent, *own)
    assert done.code == ExitCode.BAD_INPUT
    assert "has no documents" in done.stderr


def test_the_means_of_groups_are_compared(bench, tmp_path, halves):
    own = with_metadata(tmp_path / "own", [f"t{number % 20}" for number in range(60)])
    found, _ = tune(bench, *halves, "--on", own, "--group", "topic", "--measure", "RR@10")
    assert found["queries"] == 20


def test_a_figure_shows_every_setting(bench, sixty, halves, tmp_path):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "gains.svg"
    assert bench("tune", *halves, "--on", sixty, "--figure", figure).code == ExitCode.OK
    drawn = figure.read_text()
    assert "number of rankings" in drawn
    assert "proved better" in drawn


def test_python_returns_the_same_record(bench, sixty, halves):
    found, _ = tune(bench, *halves, "--on", sixty)
    record = api.tune(halves, sixty, cache_dir=bench.cache, results=None)
    assert record.chosen.low == found["chosen"]["low"]
    assert record.exit_code == ExitCode.OK
    assert np.isclose(record.selection, found["selection"])
