"""Python and the command line build the same requests and get the same records."""

import io
from pathlib import Path

import attrs
import msgspec
import pandas as pd
import pytest

import bench
from bench.cli.command_table import COMMANDS
from bench.cli.main import parse_command
from bench.requests.deciding import (
    CheckRequest,
    CompareRequest,
    CutoffRequest,
    DeployRequest,
    LeaderboardRequest,
    TuneRequest,
)
from bench.requests.evaluating import EvaluateRequest, RunRequest, ScoreRequest
from bench.requests.training import AblateRequest, FinetuneRequest, PretrainRequest
from retrievers.models.settings import CARD_FIELDS
from tests.support.collections import Bench, write_collection

SHARED = "--data-dir d --cache-dir c"
DOORS = [
    (
        "score r.trec --dataset x --measure P@1 --name n --depth 5 --split s --results o " + SHARED,
        ScoreRequest(Path("r.trec"), "x", measure="P@1", name="n", depth=5, split="s", results="o"),
    ),
    (
        "compare a b --on x y --measure P@1 --results o p --resamples 99 " + SHARED,
        CompareRequest(*("a", "b"), on=["x", "y"], measure="P@1", results=["o", "p"], resamples=99),
    ),
    (
        "check a --baseline b --on x --floor .05 --results o --like c " + SHARED,
        CheckRequest("a", "b", on="x", floor=0.05, results="o", like="c"),
    ),
    (
        "deploy m --on x y --margin .02 --limit-bytes 9 --limit-ms .5 --write w " + SHARED,
        DeployRequest("m", ["x", "y"], margin=0.02, limit_bytes=9, limit_ms=0.5, write="w"),
    ),
    (
        "cutoff m --on x y --like-cutoff o=.3 --at 5 --without-answer f --split s " + SHARED,
        CutoffRequest("m", ["x", "y"], like_cutoff="o=.3", at=5, without_answer="f", split="s"),
    ),
    (
        "tune m o --on x --measure P@1 --limit-ms 9 --only c --group g --results o " + SHARED,
        TuneRequest(["m", "o"], "x", measure="P@1", limit_ms=9, only="c", group="g", results="o"),
    ),
    (
        "leaderboard --results o --suite beir --measure P@1 --published all " + SHARED,
        LeaderboardRequest("o", suite="beir", measure="P@1", published=["all"]),
    ),
    (
        "pretrain p --on x y --out o --start m --set optimizer.lr=1e-5 --steps 9 " + SHARED,
        PretrainRequest(
            "p", ["x", "y"], "o", start="m", changes={"optimizer.lr": 1e-5, "steps": 9}
        ),
    ),
    (
        "finetune p --model m --on x --out o --like l --held-out y --set save_every=3 " + SHARED,
        FinetuneRequest("p", "m", "x", "o", like="l", held_out="y", save_every=3),
    ),
    (
        "ablate g --seeds 1 2 --out o --max-memory 2KB " + SHARED,
        AblateRequest("g", seeds=[1, 2], out="o", max_memory=2000),
    ),
]


@pytest.mark.parametrize(("typed", "request_"), DOORS, ids=lambda value: str(value).split()[0])
def test_words_and_arguments_make_one_request(typed, request_):
    parsed = parse_command(typed.split())
    assert parsed.request == attrs.evolve(request_, data_dir="d", cache_dir="c")


def test_run_and_evaluate_differ_only_in_the_number_of_models_and_collections():
    parsed = parse_command(
        ["run", "x", "--model", "m", "--results", "o", "--index", "Flat", "--set", "query_prompt=q"]
    )
    single = EvaluateRequest("m", "x", results="o", index="Flat", query_prompt="q")
    shared = {field.name for field in attrs.fields(EvaluateRequest)} - {"model", "dataset"}
    assert {name: getattr(parsed.request, name) for name in shared} == {
        name: getattr(single, name) for name in shared
    }
    assert (parsed.request.names, parsed.request.model) == (("x",), ("m",))
    python_only = {"fingerprint", "similarity", "offline"}
    extra = {"names", "limit", "workers", "engine", "address"}
    options = {*COMMANDS["run"].options.parameters} - {"json", "dry_run", "set"}
    settings = {*CARD_FIELDS}
    assert options | python_only | settings == shared | extra | {"model"}
    assert isinstance(parsed.request, RunRequest)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working folder with a collection and results of two models."""
    folder = tmp_path_factory.mktemp("doors")
    write_collection(folder / "tiny")
    line = Bench(folder)
    assert line("run", folder / "tiny", "--model", "hashing", "bm25").code == 0
    return folder


def document(place, *words):
    """The JSON document of a command, as Python objects."""
    done = Bench(place)(*words, "--json")
    return msgspec.json.decode(done.stdout)


def plain(record):
    """A record as Python objects, as JSON would hold it."""
    return msgspec.json.decode(msgspec.json.encode(record))


def test_run_and_evaluate_give_one_result(place):
    folders = {"cache_dir": place / "cache", "results": place / "out"}
    stored = document(place, "run", place / "tiny", "--model", "hashing")["results"][0]
    assert plain(bench.evaluate("hashing", place / "tiny", **folders).record) == stored


def test_score_gives_one_result(place):
    (place / "some.trec").write_text("q1 Q0 d1 1 1.5 tag\n")
    typed = document(place, "score", place / "some.trec", "--dataset", place / "tiny")
    called = bench.score(place / "some.trec", place / "tiny", cache_dir=place / "cache")
    assert called.measures.items() <= typed["results"][0]["measures"].items()
    assert called.record.fingerprint == typed["results"][0]["fingerprint"]


@pytest.mark.parametrize("by", ["names", "evaluations"])
def test_compare_gives_one_record(place, by):
    words = ("--results", place / "out", "--cache-dir", place / "cache", "--resamples", 199)
    typed = document(place, "compare", "hashing", "bm25", "--data-dir", place, *words)
    models = ["hashing", "bm25"]
    if by == "evaluations":
        stored = bench.results(place / "out").set_index("model").folder
        models = [bench.load_result(stored[name].iloc[0]) for name in models]
    called = bench.compare(
        *models, results=place / "out", cache_dir=place / "cache", data_dir=place, resamples=199
    )
    assert plain(called.report.comparisons) == typed["comparisons"]


def test_leaderboard_gives_one_record(place):
    words = ("--results", place / "out", "--cache-dir", place / "cache", "--resamples", 199)
    typed = Bench(place)("leaderboard", *words, "--format", "csv").stdout
    called = bench.leaderboard(place / "out", cache_dir=place / "cache", resamples=199)
    printed = pd.read_csv(io.StringIO(typed)).set_index("model")
    assert called.index.tolist() == printed.index.tolist()
    assert called["group"].tolist() == printed["group"].tolist()
    scores = [name for name in called.columns if name.endswith("nDCG@10")]
    assert called[scores].values.tolist() == printed[scores].values.tolist() != []


def test_check_gives_one_record(place):
    words = ("--results", place / "out", "--cache-dir", place / "cache", "--resamples", 199)
    typed = document(
        place, "check", "hashing", "--baseline", "bm25", "--on", place / "tiny", *words,
        *("--floor", 0.2, "--margin", 0.1),
    )  # fmt: skip
    settings = {"floor": 0.2, "margin": 0.1, "resamples": 199, "cache_dir": place / "cache"}
    called = bench.check("hashing", "bm25", on=place / "tiny", results=place / "out", **settings)
    assert plain(called) == typed
