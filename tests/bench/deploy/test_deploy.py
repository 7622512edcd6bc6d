"""`deploy` from the command line and from Python, on small collections with real searches."""

import json

import pytest

import bench as api
from bench.gate.decision import draw_means, upper_bound
from bench.requests.outcomes import ExitCode
from tests.support.collections import write_collection, write_hashing_card

COUNT = 150
TEXTS = {f"d{n:03}": ("", f"w{n % 7} w{n % 11} w{n} w{n // 3}") for n in range(COUNT)}
QUERIES = {f"q{n:03}": f"w{n % 11} w{n} w{n // 3}" for n in range(COUNT)}
QRELS = {(f"q{n:03}", f"d{n:03}"): 1 for n in range(COUNT)}


@pytest.fixture
def words(tmp_path):
    return write_collection(
        tmp_path / "words", TEXTS, QUERIES, QRELS, 'name = "words"\nmain_measure = "RR@10"\n'
    )


@pytest.fixture
def card(tmp_path):
    return write_hashing_card(tmp_path / "wide.toml", 256)


def deploy(bench, card, *words):
    done = bench("deploy", card, "--on", *words, "--json")
    assert done.code in (ExitCode.OK, ExitCode.INCONCLUSIVE), done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_answer_is_the_smallest_proved_setting_and_scores_are_those_of_run(bench, words, card):
    found = deploy(bench, card, words, "--margin", "0.05")
    tested = found["tested"]
    assert len(tested) <= found["grid"] // 4
    assert [one["proved"] for one in tested[:-1]] == [True] * (len(tested) - 1)
    proved = [one for one in tested if one["proved"]]
    assert found["chosen"] == min(
        proved, key=lambda one: (one["bytes_per_document"], one["latency"][0]["p50_ms"])
    )
    assert found["chosen"]["bytes_per_document"] <= 256
    scores = {}
    compared = (found["baseline"], found["chosen"], tested[-1])
    for one in compared:
        how = one["compression"]
        options = ["--precision", how.get("precision", "float32"), "--index", one["index"]]
        options += ["--dimensions", how["dimensions"]] if "dimensions" in how else []
        if "rescore" in how:
            options += ["--rescore", f"{how['rescore']}:{how.get('rescore_by', 'stored')}"]
        options = [
            part.removesuffix(":stored") if isinstance(part, str) else part for part in options
        ]
        run = bench("run", words, "--model", card, "--measure", "RR@10", "--json", *options)
        (result,) = json.loads(run.stdout)["results"]
        assert one["scores"]["words"] == pytest.approx(result["measures"]["RR@10"], abs=1e-12)
        assert one["bytes_per_document"] == result["bytes_per_document"]
        scores[one["name"]] = api.load_result(max(bench.out.rglob("result.json"), key=_written))
    whole = scores["float32"].scores.values["RR@10"]
    for one in compared:
        losses = whole - scores[one["name"]].scores.values["RR@10"]
        assert one["bounds"]["words"] == pytest.approx(upper_bound([draw_means(losses, "words")]))


def _written(path):
    return path.stat().st_mtime_ns
