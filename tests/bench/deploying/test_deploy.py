"""`deploy` from the command line and from Python, on small collections with real searches."""

import json

import msgspec
import numpy as np
import pytest

import bench as api
from bench.deploying import deploy as trials
from bench.deploying import deployment as records
from bench.deploying.deployment import Setting
from bench.evaluation.exact import ArrayVectors
from bench.evaluation.retriever import FLAT
from bench.gate.decision import draw_means, upper_bound
from bench.requests.outcomes import ExitCode
from bench.runner.workspace import Workspace
from bench.speed.speed_report import QueryLatency
from bench.store.indexes import IndexFolder
from reports.deploy import deployment_text
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.card import Compression, Recipe
from retrievers.models.settings import ModelSettings
from tests.bench.evaluation.test_kinds import ENCODER
from tests.support.collections import write_collection, write_hashing_card
from tests.support.pipelines import write_rerank, write_reranker

COUNT = 150
TEXTS = {f"d{n:03}": ("", f"w{n % 7} w{n % 11} w{n} w{n // 3}") for n in range(COUNT)}
QUERIES = {f"q{n:03}": f"w{n % 11} w{n} w{n // 3}" for n in range(COUNT)}
QRELS = {(f"q{n:03}", f"d{n:03}"): 1 for n in range(COUNT)}
AS_TESTED = ("--measure", "RR@10", "--depth", "10", "--json")
METADATA = 'name = "{}"\nmain_measure = "RR@10"\n'


def collection(folder):
    return write_collection(folder, TEXTS, QUERIES, QRELS, METADATA.format(folder.name))


@pytest.fixture
def words(tmp_path):
    return collection(tmp_path / "words")


@pytest.fixture
def card(tmp_path):
    return write_hashing_card(tmp_path / "wide.toml", 256)


@pytest.fixture(autouse=True)
def few_timings(monkeypatch):
    monkeypatch.setattr(trials, "TIMED_QUERIES", 5)


def deploy(bench, card, *words):
    done = bench("deploy", card, "--on", *words, "--json", "--cache-dir", bench.cache)
    assert done.code in (ExitCode.OK, ExitCode.INCONCLUSIVE), done.stderr
    return json.loads(done.stdout)


def a_setting(name, size, **changes):
    return records.TestedSetting(
        name=name,
        compression=changes.get("compression", Compression()),
        index=changes.get("index", "Flat"),
        bytes_per_document=size,
        latency=(QueryLatency.of("1 thread", 1, 1, [1.0]),),
        tests={"words": records.CollectionTest(0.4, 0.9, 0.12341, 4000)},
        proved=not changes,
    )


def test_the_text_states_the_answer_and_what_the_next_setting_would_need():
    binary = Compression(dimensions=192, precision="binary", rescore=120)
    name = "192 float16 120:stored IVF1024:256"
    last = a_setting(name, 1234, compression=binary, index="HNSW32?efSearch=128")
    done = records.Deployment(
        model="m",
        encoders=("m",),
        recipe=Recipe(model="m", kind="hashing", dim=384),
        measures={"words": "RR@10"},
        queries={"words": 300},
        margin=0.02,
        provable=0.0099,
        queries_for_margin=149,
        grid=231,
        over_bytes=3,
        baseline=a_setting("float32", 8),
        tested=(a_setting("float16", 8), last),
        chosen=last,
    )
    text = deployment_text(done)
    assert text.startswith(
        "192 dimensions in binary, 120 candidates scored again by the stored vectors, "
        "HNSW32?efSearch=128: 1,234 bytes per document and 1.00 ms a query instead of 8 and 1.00. "
    )
    assert "2 of 231 settings. 3 exceed --limit-bytes. The first that is not proved" in text
    assert "about 4,000 queries or a margin of 0.1235 would prove it" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert max(map(len, rows)) <= 100
    assert len(rows) == 2 + 3


def test_a_margin_below_what_the_queries_can_prove_is_answered_before_anything_is_encoded(
    bench, words, card
):
    found = deploy(bench, card, words)
    assert found["provable"] == pytest.approx(1 - 0.05 ** (1 / COUNT), rel=1e-3)
    assert found["queries_for_margin"] == 299  # 1 - .05^(1/299) is .00997
    assert (found["tested"], found["chosen"]) == ([], None)
    assert not list(bench.cache.rglob("*.f32"))
    done = bench("deploy", card, "--on", words, "--cache-dir", bench.cache)
    assert done.code == ExitCode.INCONCLUSIVE
    assert "A margin of 0.0100 needs 299 queries" in done.stdout
    done = bench("deploy", card, "--on", words, "--margin", ".05", "--limit-bytes", "3")
    assert done.code == ExitCode.BAD_INPUT
    assert "--limit-bytes 3 is below every setting" in done.stderr


def open_trial(bench, words, card):
    workspace = Workspace(bench.cache, offline=True)
    return trials.Trial(workspace, workspace.open(str(words)), workspace.load(str(card)))


@pytest.mark.parametrize(
    ("compression", "index"),
    [
        (Compression(rescore=40), "IVF4,PQ8x4?nprobe=2"),
        (Compression(dimensions=64, precision="int8", rescore=40, rescore_by="int8"), "HNSW4"),
        (Compression(precision="binary"), "IVF4,Flat?nprobe=4"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.precision,
)
def test_an_index_with_rescoring_is_searched_and_timed(bench, words, card, compression, index):
    setting = Setting(compression, IndexSpec.parse(index))
    opened = open_trial(bench, words, card)
    found = opened.test(setting, 0.05)
    options = [f"--{name}={value}" for name, value in compression.settings.items() if value]
    run = bench("run", words, "--model", card, *AS_TESTED, "--index", index, *options)
    (result,) = json.loads(run.stdout)["results"]
    assert found.score == pytest.approx(result["measures"]["RR@10"], abs=1e-12)
    assert 0 < found.recall <= 1
    times = opened.time_queries(setting)
    assert all(0 < one.p50_ms <= one.p95_ms for one in times)
    assert len(times[0].samples_ms) == 5 * trials.REPEATS


def test_missed_neighbours_are_those_of_brute_force(bench, words, card):
    opened, rng = open_trial(bench, words, card), np.random.default_rng(1)
    vectors = unit(rng.normal(size=(COUNT, 256)))
    (searched,) = opened.searches
    searched.__dict__["_vectors"] = ArrayVectors(vectors)  # without ties, unlike those of hashing

    def nearest(width, depth):
        cut = unit(vectors[:, :width])
        scores = cut @ cut.T
        np.fill_diagonal(scores, -2)
        return np.argsort(-scores, axis=1)[:, :depth]

    grid = [Setting(Compression(dimensions=32)), Setting(Compression(dimensions=32, rescore=60))]
    missed = opened.missed(grid)
    for setting in grid:
        found = nearest(32, setting.compression.rescore or 10)
        shares = [len({*a} & {*b}) / 10 for a, b in zip(nearest(256, 10), found, strict=True)]
        assert missed[setting] == pytest.approx(1 - np.mean(shares), abs=1e-9)


def write_pipeline(folder, first, depth=20):
    """The card of a reranking of two rankings, whose reranker counts common words."""
    own = write_reranker(
        folder,
        f"open({str(folder / 'seen.txt')!r}, 'a').writelines("
        "f'{query} | {text}\\n' for text in texts)\n"
        "    return [len({*query.split()} & {*text.split()}) + len(text) / 99 for text in texts]",
    )
    return write_rerank(folder, own, model=first, depth=depth)


def test_a_pipeline_scores_what_it_scores_with_an_encoder_of_that_setting(bench, words, tmp_path):
    write_hashing_card(tmp_path / "wide.toml", 256)
    write_hashing_card(tmp_path / "cut.toml", 256, dimensions=64)
    found = {}
    for name in ("wide", "cut"):
        pipeline = write_pipeline(tmp_path, f"{name}.toml+bm25")
        run = bench("run", words, "--model", pipeline, *AS_TESTED, "--trust-code")
        assert not run.code, run.stderr
        (result,) = json.loads(run.stdout)["results"]
        found[name] = result["measures"]["RR@10"]
    assert found["wide"] != found["cut"]
    scored = (tmp_path / "seen.txt").read_text("utf-8").splitlines()
    assert len(scored) == len({*scored})
    pipeline = write_pipeline(tmp_path, "cut.toml+bm25")  # whose 64 dimensions are not the whole
    workspace = Workspace(bench.cache, offline=True)
    model = workspace.load(str(pipeline), ModelSettings(trust_code=True))
    trial = trials.Trial(workspace, workspace.open(str(words)), model)
    settings = [Setting(Compression(dimensions=width), FLAT) for width in (None, 64)]
    scores = [trial.test(setting, 0.05).score for setting in settings]
    assert scores == pytest.approx([found["wide"], found["cut"]], abs=1e-12)
    after = (tmp_path / "seen.txt").read_text("utf-8").splitlines()
    assert after == scored  # all pairs had a stored score


def test_encoders_of_a_pipeline_have_one_setting_or_are_refused(bench, words, tmp_path):
    write_hashing_card(tmp_path / "one.toml", 20)
    write_hashing_card(tmp_path / "other.toml", 128)
    (tmp_path / "letters.py").write_text(ENCODER, encoding="utf-8")  # of 20 letters
    done = bench("deploy", f"{tmp_path / 'one.toml'}+{tmp_path / 'other.toml'}", "--on", words)
    assert done.code == ExitCode.BAD_INPUT
    assert "whose dimensions differ: one 20, other 128" in done.stderr
    both = f"{tmp_path / 'one.toml'}+{tmp_path / 'letters.py'}:letters"
    equal = ("deploy", both, "--on", words, "--margin", ".05", "--trust-code")
    done = bench(*equal, "--write", tmp_path / "index")
    assert "--write writes one index" in done.stderr
    found = json.loads(bench(*equal, "--json").stdout)
    assert found["encoders"] == ["one", "letters"]
    assert found["baseline"]["bytes_per_document"] == 2 * 4 * 20
    lexical = write_pipeline(tmp_path, "bm25")
    done = bench("deploy", lexical, "--on", words, "--trust-code")
    assert "makes no vectors" in done.stderr


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.slow
def test_limits_choose_among_the_settings_and_the_margin_holds_on_each_collection(
    bench, words, card, tmp_path
):
    other = collection(tmp_path / "other")
    both = deploy(bench, card, words, other, "--margin", ".05", "--limit-bytes", "300")
    assert both["over_bytes"] > 0
    assert all(one["bytes_per_document"] <= 300 for one in both["tested"])
    for one in both["tested"]:
        bounds = [test["bound"] for test in one["tests"].values()]
        assert len(bounds) == 2
        assert one["proved"] == (max(bounds) <= 0.05)
    proved = [one for one in both["tested"] if one["proved"]]
    fastest = min(proved, key=lambda one: one["latency"][0]["p50_ms"])
    assert both["chosen"] == fastest
    slow = deploy(bench, card, words, "--margin", ".05", "--limit-ms", "1e-6")
    assert slow["chosen"] is None
    assert all(one["tests"] == {} for one in slow["tested"])
    assert len(slow["tested"]) == slow["sequence"]


@pytest.mark.slow
def test_bytes_and_times_of_a_pipeline_are_those_of_its_vectors(bench, words, card, tmp_path):
    margin, pipeline = ("--margin", ".05"), f"{card}+bm25"
    found = deploy(bench, pipeline, words, *margin)
    assert found["encoders"] == ["wide"]
    assert found["baseline"]["bytes_per_document"] == 4 * 256
    assert found["baseline"]["tests"]["words"]["score"] > 0.5
    assert {one["k"] for one in found["baseline"]["latency"]} == {100}  # as a fusion ranks
    text = bench("deploy", pipeline, "--on", words, *margin).stdout
    assert "those of searching the vectors of wide; recall, score and bound" in text
    how = Compression(dimensions=64, precision="int8")
    opened = open_trial(bench, words, pipeline)
    opened.write_index(Setting(how), tmp_path / "index")
    recipe = IndexFolder(tmp_path / "index").checked().recipe
    assert (recipe.kind, recipe.compression) == ("hashing", how)


@pytest.mark.slow
def test_the_printed_command_evaluates_the_written_index(bench, words, tmp_path):
    card = write_hashing_card(tmp_path / "cut.toml", 256, dimensions=64)
    folder, figure = tmp_path / "index", tmp_path / "figure.svg"
    options = ("--margin", ".05", "--write", folder, "--figure", figure)
    done = bench("deploy", card, "--on", words, *options, "--json", "--cache-dir", bench.cache)
    found = json.loads(done.stdout)
    chosen = found["chosen"]
    assert found["baseline"]["bytes_per_document"] == 4 * 256
    command = done.stderr.splitlines()[-1].partition("python -m bench ")[2].split()
    run = bench(*command, *AS_TESTED)
    assert not run.code, (command, run)
    (result,) = json.loads(run.stdout)["results"]
    assert result["measures"]["RR@10"] == chosen["tests"]["words"]["score"]
    assert chosen["name"] in figure.read_text()


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
    compared, scores = (found["baseline"], found["chosen"], tested[-1]), {}
    for one in compared:
        metadata = msgspec.convert(one["compression"], Compression).settings
        options = [f"--{name}={value}" for name, value in metadata.items() if value]
        options += ["--index", one["index"]]
        run = bench("run", words, "--model", card, *AS_TESTED, *options)
        (result,) = json.loads(run.stdout)["results"]
        score = result["measures"]["RR@10"]
        assert one["tests"]["words"]["score"] == pytest.approx(score, abs=1e-12)
        assert one["bytes_per_document"] == result["bytes_per_document"]
        newest = max(bench.out.rglob("result.json"), key=lambda path: path.stat().st_mtime_ns)
        scores[one["name"]] = api.load_result(newest).scores.values["RR@10"]
    for one in compared:
        drawn = draw_means(scores["float32"] - scores[one["name"]])
        assert one["tests"]["words"]["bound"] == pytest.approx(upper_bound([drawn]))
