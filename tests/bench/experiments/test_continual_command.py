"""Ways to learn a sequence: NumPy as oracle, the file, and the command from TOML to report."""

import json
import shutil

import numpy as np
import pytest

from bench.compare.panels import Entrant, Entry
from bench.compare.statistics import Resampling
from bench.exit_codes import ExitCode
from bench.experiments.sequence.comparing import Domains, Learnt, before, rows_of
from bench.experiments.sequence.learning import last_loss
from bench.experiments.sequence.settings import FILES, load_comparison
from bench.results.find import find_results
from foundation.errors import BenchError
from retrievers.training.engine.curve import LossPoint
from tests.bench.monitor.test_watch_command import write_words
from tests.support.collections import Bench
from tests.support.leaderboards import store
from tests.support.tiny_checkpoints import write_bert, write_card

COLLECTIONS = ("bio", "law")
METHODS = ("plain", "kept", "apart")
FAST = Resampling(resamples=999)

TEXT = """
name = "tiny"
preset = "mlm-small"
domains = ["{one}", "{two}"]
also = ["{three}"]

[train]
start = {{ model = "{start}" }}
batch_size = 2
max_tokens = 12
steps = 2

[evaluate]
max_query_tokens = 12
max_document_tokens = 12

[methods.plain]

[methods.ewc]
method = "ewc"
measured = 3

[methods.adapter]
method = "adapter"
"""


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    """Stored results of a base and of two checkpoints of each method on two collections."""
    folder, rng, found = tmp_path_factory.mktemp("scores"), np.random.default_rng(0), {}
    names = ["base", *(f"{method}-{place}" for method in METHODS for place in (1, 2))]
    for collection in COLLECTIONS:
        start = rng.random(40)
        for name in names:
            found[name, collection] = np.clip(start + rng.normal(0, 0.1, 40), 0, 1)
            store(folder, name, collection, found[name, collection].tolist())
    return folder, found


@pytest.fixture(scope="module")
def compared(scores):
    folder, _ = scores
    stored = find_results(folder)

    def entrant(name):
        entries = {one.collection: Entry.of(one) for one in stored if one.result.model == name}
        return Entrant(name, entries)

    base = entrant("base")
    learnt = [
        Learnt(
            method,
            "",
            [entrant(f"{method}-1"), entrant(f"{method}-2")],
            losses=[2.5, 2.25],
            apart=method == "apart",
            seconds=1.0,
        )
        for method in METHODS
    ]
    domains = Domains(COLLECTIONS, (), "nDCG@10", FAST)
    return rows_of(base, learnt, domains), before(base, learnt, domains)


def mean(scores, name, collection):
    return float(scores[1][name, collection].mean())


def test_after_the_sequence_the_last_checkpoint_or_the_domains_own_is_searched_with(
    scores, compared
):
    plain, _, apart = compared[0]
    for name in COLLECTIONS:
        assert plain.after[name].value == pytest.approx(mean(scores, "plain-2", name))
    own = {"bio": "apart-1", "law": "apart-2"}
    for name, checkpoint in own.items():
        assert apart.after[name].value == pytest.approx(mean(scores, checkpoint, name))
    expected = np.mean([mean(scores, checkpoint, name) for name, checkpoint in own.items()])
    assert apart.average.value == pytest.approx(expected)


def test_gained_is_against_the_start_and_forgotten_against_just_after_the_domain(scores, compared):
    plain, _, apart = compared[0]
    gained = [mean(scores, "plain-2", name) - mean(scores, "base", name) for name in COLLECTIONS]
    assert plain.gained.difference == pytest.approx(np.mean(gained))
    forgotten = mean(scores, "plain-2", "bio") - mean(scores, "plain-1", "bio")
    assert plain.forgotten.difference == pytest.approx(forgotten)
    assert apart.forgotten is None
    levels, average = compared[1]
    assert levels["law"].value == pytest.approx(mean(scores, "base", "law"))
    assert average.value == pytest.approx(np.mean([one.value for one in levels.values()]))


def test_each_method_is_against_the_first_with_holm_over_the_methods(scores, compared):
    plain, kept, apart = compared[0]
    assert (plain.against, plain.p_holm) == (None, None)
    parts = [mean(scores, "kept-2", name) - mean(scores, "plain-2", name) for name in COLLECTIONS]
    assert kept.against.difference == pytest.approx(np.mean(parts))
    smaller, larger = sorted([kept, apart], key=lambda row: row.against.p)
    assert smaller.p_holm == pytest.approx(min(1, 2 * smaller.against.p))
    assert larger.p_holm == pytest.approx(max(smaller.p_holm, larger.against.p))


def test_the_shipped_files_and_their_variants_name_presets_and_methods_that_exist():
    assert "three-domains" in FILES.names()
    for name in FILES.names():
        found = load_comparison(name)
        for variant in ("", *found.variants):
            one = load_comparison(name, variant)
            assert one.pretraining().objective.name == "mlm"
            assert one.like(next(iter(one.methods))) == "minilm"
        assert load_comparison(f"{name}.toml") == found


HEAD = 'name = "a"\npreset = "mlm-small"\ndomains = ["x", "y"]\n'


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (f"{HEAD}[methods.plain]\nmetod = 'ewc'", "unknown field `metod`", "method"),
        (f"{HEAD}[methods.plain]\nmethod = 'ewd'", "Invalid enum value 'ewd'", ""),
        (f"{HEAD}[methods.ewc]\nstrength = -1", "`float` > 0", ""),
        (HEAD, "missing required field `methods`", ""),
        (f"{HEAD}[methods]", "at least one method", ""),
        (HEAD.replace(', "y"', "") + "[methods.plain]", "two domains or more", ""),
        ("name = ", "is not TOML", ""),
    ],
)
def test_a_file_is_read_strictly(text, message, hint):
    with pytest.raises(BenchError, match=message.replace("`", ".")) as caught:
        FILES.parse(text.encode(), "file")
    assert hint in caught.value.hint


def test_what_is_not_there_is_named_with_what_is():
    with pytest.raises(BenchError, match="no sequence is called 'three'") as caught:
        load_comparison("three")
    assert "three-domains" in caught.value.hint
    with pytest.raises(BenchError, match="no variant 'smal'") as caught:
        load_comparison("three-domains", "smal")
    assert "small" in caught.value.hint
    wrong = FILES.parse(f"{HEAD}[train]\nstep = 1\n[methods.plain]".encode(), "file")
    with pytest.raises(BenchError, match="unknown field `step`"):
        wrong.pretraining()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three collections, a start with a card, and the file."""
    folder = tmp_path_factory.mktemp("continual")
    write_bert(folder / "start", hidden_dropout_prob=0.1)
    write_card(folder / "start" / "card.toml", checkpoint=".", pooling="mean")
    names = {name: write_words(folder / name, 12) for name in ("one", "two", "three")}
    file = folder / "tiny.toml"
    file.write_text(TEXT.format(start=folder / "start", **names))
    return Bench(folder), folder, file


def run(place, *options):
    bench, folder, file = place
    places = ("--cache-dir", bench.cache, "--out", folder / "out", "--device", "cpu", "--offline")
    return bench("continual", file, *places, "--resamples", 199, *options)


@pytest.fixture(scope="module")
def done(place):
    pytest.importorskip("adapters", exc_type=ImportError)
    return run(place)


def test_a_dry_run_trains_nothing(place):
    pytest.importorskip("adapters", exc_type=ImportError)
    folder = place[1]
    shown = run(place, "--dry-run", "--out", folder / "dry")
    assert shown.code == ExitCode.OK, shown.stderr
    assert "6 trainings; 252 documents to encode" in shown.stdout  # 7 models, 3 collections of 12
    assert not (folder / "dry").exists()


def test_one_command_trains_evaluates_and_reports(place, done):
    _, folder, _ = place
    assert done.code == ExitCode.OK, done.stderr
    out = folder / "out" / "tiny"
    assert (out / "report.md").read_text() == done.stdout
    for name in ("plain", "ewc", "adapter"):
        assert f"# {name}: " in done.stdout
        assert (out / "models" / name / f"{name}-2-two" / "card.toml").is_file()
        assert f"{name}-1-one on three: " in done.stderr  # evaluated when it is there
    at = done.stderr.index("plain-1-one on one: ")
    assert at < done.stderr.index("plain-2-two: ")  # a bar: before the next is trained
    assert "kept apart" in done.stdout
    lines = (out / "report.csv").read_text().splitlines()
    assert lines[0] == "method,kind,collection,value,low,high,p,p_holm"
    assert sum(line.startswith("ewc,after,") for line in lines) == 3


def test_the_loss_is_of_words_alone_over_the_last_tenth_of_the_steps():
    losses = [{"loss": 9.0}] * 18 + [{"loss": 3.0, "mlm": 2.0, "penalty": 1.0}, {"loss": 1.0}]
    curve = [LossPoint(step, one, 0.1, 1.0, 8) for step, one in enumerate(losses, start=1)]
    assert last_loss(curve) == 1.5
    assert last_loss(curve[:3]) == 9.0


def test_the_same_command_again_trains_and_evaluates_nothing(place, done):
    again = run(place, "--json")
    assert again.code == ExitCode.OK, again.stderr
    report = json.loads(again.stdout)
    assert report["measure"] == "nDCG@10"
    assert [row["method"] for row in report["rows"]] == ["plain", "ewc", "adapter"]
    told = [line for line in again.stderr.splitlines() if ": stored in" in line]
    assert len(told) == 7 * 3


def test_a_comparison_goes_on_where_it_was_interrupted(place, done):
    out = place[1] / "out" / "tiny"
    whole = json.loads((out / "report.json").read_text())
    removed = [path for path in out.rglob("ewc-2-two") if path.is_dir()]
    assert len(removed) > 1  # the model, and its results
    for path in removed:
        shutil.rmtree(path)
    again = run(place, "--json")
    assert again.code == ExitCode.OK, again.stderr
    rows = json.loads(again.stdout)["rows"]
    for one, other in zip(rows, whole["rows"], strict=True):
        assert one["after"] == other["after"]


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ('preset = "mlm-small"', 'preset = "mlm-smal"', "mlm-smal", "mlm-small"),
        ('preset = "mlm-small"', 'preset = "retromae-small"', "not retromae", "mlm"),
        ("measured = 3", "measured = 0", ">= 1", ""),
        ("max_tokens = 12\nsteps", "max_tokens = 900\nsteps", "positions for 64", ""),
        ('also = ["', 'also = ["no-', "there is no collection", ""),
        ('/three"]', '/one"]', "is named 2 times", "name it once"),
    ],
)
def test_bad_input_is_one_message_before_any_work(place, tmp_path, old, new, message, hint):
    bench, _, file = place
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(file.read_text().replace(old, new))
    places = ("--cache-dir", bench.cache, "--out", tmp_path / "out", "--offline")
    found = bench("continual", wrong, *places)
    assert found.code == ExitCode.BAD_INPUT
    assert message in found.stderr
    assert hint in found.stderr
    assert "Traceback" not in found.stderr
    assert not (tmp_path / "out").exists()


def test_help_has_examples(place):
    shown = place[0]("continual", "--help")
    assert shown.code == ExitCode.OK
    assert "python -m bench continual three-domains --variant small" in shown.stdout
