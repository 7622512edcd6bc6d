"""``watch`` on the checkpoints of a real training, in this process."""

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.exit_codes import ExitCode
from bench.monitor.ledger import Broken, Evaluated, read_ledger
from bench.results.load import load
from tests.support.collections import Bench, Finished, write_collection
from tests.support.tiny_checkpoints import WORDS
from tests.support.training import train

STEPS = (2, 4, 6)
ROOT = Path(__file__).parents[3]
SHORT = ("--set", "max_query_tokens=32", "--set", "max_document_tokens=32")


def write_words(folder: Path, count: int = 30) -> Path:
    """A collection of random words; each query has two words of its document."""
    rng = random.Random(folder.name)
    texts = [rng.choices(WORDS, k=4) for _ in range(count)]
    documents = {f"d{place:02}": ("", " ".join(words)) for place, words in enumerate(texts)}
    queries = {f"q{place:02}": " ".join(words[:2]) for place, words in enumerate(texts)}
    qrels = {(f"q{place:02}", f"d{place:02}"): 1 for place in range(count)}
    return write_collection(folder, documents, queries, qrels)


@dataclass(frozen=True)
class Place:
    """A training, a collection, and the command line."""

    bench: Bench
    training: Path
    collection: Path

    @property
    def ledger(self) -> tuple[Evaluated | Broken, ...]:
        return read_ledger(self.training / "watch" / "ledger.jsonl")

    @property
    def evaluated(self) -> list[str]:
        return [one.checkpoint for one in self.ledger if isinstance(one, Evaluated)]

    def watch(self, *options: object, on: tuple[Path, ...] = ()) -> Finished:
        """Look twice and end."""
        places = ("--results", self.bench.out, "--cache-dir", self.bench.cache)
        words = ("--like", "bert", *SHORT, "--once", "--every", 0.01, "--resamples", 199)
        given = ("--on", *(on or (self.collection,)))
        return self.bench("watch", self.training, *given, *words, *places, *options)

    def curve(self, *options: object, on: tuple[Path, ...] = ()) -> dict:
        done = self.watch("--json", *options, on=on)
        assert done.code == ExitCode.OK, done.stderr
        return json.loads(done.stdout)["curve"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(folder, steps=STEPS[-1], save_every=STEPS[0])
    return folder


@pytest.fixture
def place(trained, tmp_path) -> Place:
    training = Path(shutil.copytree(trained, tmp_path / "my run"))
    return Place(Bench(tmp_path), training, write_words(tmp_path / "tiny"))


def test_every_checkpoint_is_evaluated_once_and_never_again(place):
    first = place.curve()
    assert [(one["checkpoint"], one["step"]) for one in first["points"]] == [
        (f"checkpoint-{step}", step) for step in STEPS
    ]
    before = place.ledger
    done = place.watch("--json")
    assert json.loads(done.stdout)["curve"] == first
    assert place.ledger == before
    assert "nDCG" not in done.stderr


def test_values_are_those_of_the_ordinary_pipeline(place):
    place.curve()
    model = place.training / "checkpoint-4"
    done = place.bench("run", place.collection, "--model", model, "--like", "bert", *SHORT)
    assert done.code == ExitCode.OK, done.stderr
    alone = load(place.bench.results("tiny", "checkpoint-4")).result
    (watched,) = (one for one in place.ledger if one.checkpoint == "checkpoint-4")
    assert watched.value == alone.measures["nDCG@10"]
    assert watched.fingerprint == alone.fingerprint
    assert load(Path(watched.result)).result.model == "my_run/checkpoint-4"


def test_a_half_written_checkpoint_is_skipped_and_evaluated_when_it_is_whole(place):
    weights = place.training / "checkpoint-4" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    done = place.watch()
    assert done.code == ExitCode.OK, done.stderr
    assert "not a complete safetensors file" in done.stderr
    assert "checkpoint-4 could not be evaluated" in done.stdout
    assert place.evaluated == ["checkpoint-2", "checkpoint-6"]
    weights.write_bytes(whole)
    assert place.curve()["broken"] == {}
    assert place.evaluated == ["checkpoint-2", "checkpoint-6", "checkpoint-4"]


def test_whole_files_with_numbers_that_are_none_are_reported_and_skipped(place):
    from safetensors.torch import load_file, save_file

    path = place.training / "checkpoint-4" / "model.safetensors"
    save_file({name: one * float("nan") for name, one in load_file(path).items()}, path)
    done = place.watch()
    assert done.code == ExitCode.OK, done.stderr
    assert "checkpoint-4 is left out" in done.stderr
    assert place.evaluated == ["checkpoint-2", "checkpoint-6"]


def test_a_deleted_checkpoint_stays_on_the_curve(place):
    first = place.curve()
    shutil.rmtree(place.training / "checkpoint-2")
    assert place.curve() == first


def test_other_weights_under_the_same_name_are_evaluated_again(place):
    before = {one["step"]: one["levels"] for one in place.curve()["points"]}
    weights = place.training / "checkpoint-2" / "model.safetensors"
    weights.write_bytes((place.training / "checkpoint-6" / "model.safetensors").read_bytes())
    done = place.watch("--json")
    assert "checkpoint-2 has other files than before" in done.stderr
    after = {one["step"]: one["levels"] for one in json.loads(done.stdout)["curve"]["points"]}
    assert after[2] == before[6]
    assert after[4] == before[4]
    assert len(place.evaluated) == len(STEPS) + 1


def test_the_same_weights_written_anew_are_not_evaluated_again(place):
    place.curve()
    os.utime(place.training / "checkpoint-2" / "model.safetensors", ns=(1, 1))
    place.curve()
    assert len(place.evaluated) == len(STEPS)


def test_a_new_checkpoint_is_added_and_other_settings_have_a_curve_of_their_own(place):
    last = place.training / "checkpoint-6"
    hidden = last.rename(place.training.parent / "later")
    assert len(place.curve()["points"]) == 2
    hidden.rename(last)
    assert len(place.curve()["points"]) == 3
    other = place.curve("--set", "max_document_tokens=16")
    assert len(other["points"]) == 3
    assert other["left_out"] == ["3 evaluations with other settings or another protocol"]


def test_vectors_of_a_checkpoint_go_when_it_is_evaluated_unless_they_are_to_be_kept(place):
    def folders(store: str) -> list[str]:
        return [one.name for one in (place.bench.cache / store).iterdir() if one.name != "keys"]

    place.curve()
    assert folders("watched") == []
    shutil.rmtree(place.training / "watch")
    shutil.rmtree(place.bench.out)
    place.curve("--keep-vectors")
    assert len(folders("vectors")) == len(STEPS)


def test_several_collections_have_a_mean_that_chooses(place, tmp_path):
    other = write_words(tmp_path / "other", 20)
    curve = place.curve(on=(place.collection, other))
    assert (curve["headline"], curve["collections"]) == ("mean", ["tiny", "other"])
    for point in curve["points"]:
        levels = {name: one["value"] for name, one in point["levels"].items()}
        assert levels["mean"] == pytest.approx((levels["tiny"] + levels["other"]) / 2)
    means = [point["levels"]["mean"]["value"] for point in curve["points"]]
    best = curve["points"][means.index(max(means))]["checkpoint"]
    assert curve["selection"]["best"] == best


def test_pictures_and_tables_lie_beside_the_ledger(place):
    done = place.watch()
    out = place.training / "watch"
    names = {path.name for path in out.iterdir()}
    assert names == {
        "ledger.jsonl",
        "curve.md",
        "curve.csv",
        "curve.json",
        "curve.svg",
        "curve.png",
    }
    assert (out / "curve.md").read_text() == done.stdout
    assert "test data were used to select" in done.stdout


def test_half_reports_on_queries_that_did_not_choose(place):
    done = place.watch("--select", "half")
    assert "chosen on 15 queries; on the other 15" in done.stdout


def test_a_baseline_is_compared_and_is_no_checkpoint(place):
    assert place.bench("run", place.collection, "--model", "bm25").code == ExitCode.OK
    curve = place.curve("--baseline", "bm25")
    assert curve["baseline"]["checkpoint"] == "bm25"
    assert [one["name"] for one in curve["selection"]["rivals"]][-1] == "bm25"
    assert len(curve["points"]) == len(STEPS)
    done = place.watch("--baseline", "bm25", "--depth", 50)
    assert done.code == ExitCode.BAD_INPUT
    assert "under the protocol of the checkpoints" in done.stderr


def test_a_baseline_of_the_name_of_a_checkpoint_does_not_take_its_place(place):
    name = f"checkpoint-{max(STEPS)}"
    words = ("--model", place.training / name, "--like", "bert", *SHORT)
    done = place.bench("run", place.collection, *words)
    assert done.code == ExitCode.OK, done.stderr
    done = place.watch("--baseline", name)
    assert done.code == ExitCode.BAD_INPUT
    assert f"the baseline and a checkpoint are both called {name}" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--like", "brt"), "did you mean bert"),
        (("--baseline", "nobody"), "holds no results"),
        (("--measure", "nonsense"), "nonsense"),
        (("--on", "nowhere"), "nowhere"),
        (("--every", "0"), "above 0"),
        (("--until", "soon"), "1 or more"),
    ],
)
def test_bad_input_ends_before_the_first_look(place, options, message):
    done = place.watch(*options)
    assert done.code == ExitCode.BAD_INPUT
    assert message in done.stderr
    assert place.ledger == ()


def test_a_folder_without_checkpoints_says_so(place, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder, message in (("empty", "no checkpoint"), ("nowhere", "is no folder")):
        done = Place(place.bench, tmp_path / folder, place.collection).watch()
        assert done.code == ExitCode.BAD_INPUT
        assert message in done.stderr


@pytest.mark.parametrize("ending", [("--until", 4), ("--stop-after", 0.3)])
def test_a_watch_that_goes_on_ends_when_it_is_told_to(place, ending):
    places = ("--results", place.bench.out, "--cache-dir", place.bench.cache)
    words = ("--like", "bert", *SHORT, "--every", 0.1, "--resamples", 99, *ending)
    done = place.bench("watch", place.training, "--on", place.collection, *words, *places)
    assert done.code == ExitCode.OK, done.stderr
    assert len(place.evaluated) == len(STEPS)


LOADED_BEFORE = """
import sys
from bench.__main__ import main
from bench.cli.commands import watch

watch.follow = lambda *given: print("matplotlib.figure" in sys.modules)
main(sys.argv[1:])
"""


def test_what_draws_is_imported_before_it_waits_for_ctrl_c(place):
    # Where Ctrl-C breaks off an import of matplotlib, none can follow; the curve is drawn last.
    typed = ("watch", place.training, "--on", place.collection, "--results", place.bench.out)
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BEFORE, *map(str, typed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["True"], done.stderr
