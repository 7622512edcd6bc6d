"""``check`` as CI meets it: evaluates, reuses, decides, and leaves its reports."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.requests.outcomes import ExitCode
from bench.result_store.result import load
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import SIXTY, Bench, Finished, write_collection, write_hashing_card
from tests.support.leaderboards import lower_scores


@dataclass(frozen=True)
class Place:
    """A collection, and the results of BM25 on it."""

    bench: Bench
    collection: Path

    def another(self, name: str) -> Path:
        """A second collection, as the first, with results of BM25."""
        folder = write_collection(self.bench.place / name, *SIXTY)
        done = self.bench("run", folder, "--model", "bm25")
        assert done.code == 0, done.stderr
        return folder

    def run(self, checkpoint: object, baseline: str, *arguments: object) -> Finished:
        """What is typed, on the collection unless the arguments say otherwise."""
        on = () if "--on" in arguments else ("--on", self.collection)
        return self.anywhere(checkpoint, baseline, *arguments, *on)

    def anywhere(self, checkpoint: object, baseline: str, *arguments: object) -> Finished:
        """The same without ``--on``."""
        places = ("--results", self.bench.out, "--cache-dir", self.bench.cache)
        typed = ("check", checkpoint, "--baseline", baseline, *arguments, *places)
        return self.bench(*typed, "--resamples", 199)

    def check(self, checkpoint: object, baseline: str, *arguments: object) -> tuple[int, dict, str]:
        """Exit code, the JSON document, and what went to stderr."""
        done = self.run(checkpoint, baseline, *arguments, "--json")
        return done.code, json.loads(done.stdout), done.stderr

    def card(self, name: str, dim: int) -> Path:
        return write_hashing_card(self.bench.place / f"{name}.toml", dim, similarity="cos")


@pytest.fixture
def place(tmp_path, monkeypatch) -> Place:
    monkeypatch.chdir(tmp_path)  # so that the name of a folder is its path
    collection = write_collection(tmp_path / "tiny", *SIXTY)
    place = Place(Bench(tmp_path), collection)
    done = place.bench("run", collection, "--model", "bm25")
    assert done.code == 0, done.stderr
    return place


def test_a_candidate_that_is_the_baseline_is_compared_like_any_other_and_said(place):
    """60 unchanged queries do not prove the default margin, and all of them prove a wider one."""
    done = place.run("bm25", "bm25")
    assert done.code == ExitCode.INCONCLUSIVE
    assert "about 149 queries are needed, and there are 60" in done.stdout
    assert "bm25 and the baseline, bm25, are the same model" not in done.stdout  # it has no files
    assert place.run("bm25", "bm25", "--margin", 0.05).code == ExitCode.OK
    code, document, stderr = place.check("bm25", "bm25", "--expect-same")
    assert (code, document["outcome"]) == (0, "OK")
    assert "using the result in" in stderr


def test_the_weights_of_the_baseline_in_another_file_format_are_compared(place, tmp_path):
    network = tiny.write_mlm_pickle(tmp_path / "pickle")
    shutil.copytree(tmp_path / "pickle", tmp_path / "safe")
    (tmp_path / "safe" / "pytorch_model.bin").unlink()
    network.save_pretrained(tmp_path / "safe", safe_serialization=True)
    for name in ("pickle", "safe"):
        tiny.write_card(tmp_path / f"{name}.toml", checkpoint=name, pooling="cls")
    place.bench("run", place.collection, "--model", tmp_path / "pickle.toml")
    document = place.check(tmp_path / "safe.toml", "pickle", "--margin", 0.05)[1]
    assert document["outcome"] == "OK"
    assert [one["field"] for one in document["recipes"]] == ["checkpoint", "files"]
    assert not document["same_model"]
    same = place.check(tmp_path / "pickle.toml", "pickle", "--margin", 0.05)[1]
    assert "are the same model: settings and files are equal" in same["warnings"][0]


def test_another_protocol_is_found_before_anything_is_encoded(place, tmp_path):
    second = place.another("second")
    lines = (second / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
    (second / "qrels" / "test.tsv").write_text("".join(lines[:-1]))
    done = place.run("hashing", "bm25", "--on", place.collection, second)
    assert done.code == ExitCode.BAD_INPUT
    assert "the baseline, bm25, was evaluated under another protocol on second" in done.stderr
    assert f"python -m bench run {second} --model bm25" in done.stderr
    assert not (place.bench.out / "tiny" / "hashing").exists()


def test_every_verdict_but_ok_ends_with_the_command_that_looks_for_the_cause(place, tmp_path):
    tiny.write_mlm_pickle(tmp_path / "weights")
    for name, pooling in (("old", "cls"), ("new", "mean")):
        tiny.write_card(tmp_path / f"{name}.toml", checkpoint="weights", pooling=pooling)
    new = tmp_path / "new.toml"
    place.bench("run", place.collection, "--model", tmp_path / "old.toml")
    typed = ("--expect-same", "--dtype", "bfloat16", "--junit", tmp_path / "junit.xml")
    done = place.run(new, "old", *typed)
    assert done.code == ExitCode.DRIFT, done.stderr
    command = (
        f"python -m bench explain path/to/old --on {place.collection} --checkpoint {new} "
        "--dtype bfloat16"
    )
    assert f"To look for the cause, run `{command}`." in done.stdout
    assert command in (tmp_path / "junit.xml").read_text()
    open_case = place.check(new, "old", "--dtype", "bfloat16")[1]
    assert open_case["outcome"] in ("INCONCLUSIVE", "REGRESSION")
    assert open_case["explain"] == command
    with_set = place.check(new, "old", "--expect-same", "--set", "max_query_tokens=4")[1]
    ends = ("--checkpoint", "path/to/old", "--set", "max_query_tokens=4")
    assert with_set["explain"].split()[-4:] == list(ends)
    claim = {"dataset": "tiny", "measure": "nDCG@10", "value": 0.9876, "source": "a paper"}
    tiny.write_card(new, checkpoint="weights", pooling="mean", expected=[claim])
    document = place.check(new, "published", "--expect-same")[1]
    assert document["outcome"] == "DRIFT"
    assert document["explain"].endswith(f"--on {place.collection} --published=nDCG@10=0.9876")


def test_a_name_with_digits_of_a_fingerprint_is_explained(place):
    assert place.run(place.card("mine", 16), "bm25").code != ExitCode.BAD_INPUT
    (place.bench.place / "again").mkdir()
    other = write_hashing_card(place.bench.place / "again" / "mine.toml", 32, similarity="cos")
    said = place.run(other, "bm25").stdout.split("\n\n")[1]
    assert " here, because other weights or settings have results named mine." in said


def test_missing_results_are_evaluated_and_stored(place):
    code, document, stderr = place.check("hashing", "bm25")
    assert code == ExitCode[document["outcome"]]
    assert place.bench.results(place.collection.name, "hashing").is_dir()
    said = stderr.index("hashing against the baseline, bm25, on tiny")
    assert said < stderr.index("60 queries: if scores differ with a standard deviation of 0.2")
    assert "No margin below 0.0487 can be passed, even if no score changes" in stderr
    assert "using the result in" in place.check("hashing", "bm25")[2]


def test_a_leaderboard_refuses_a_ranking_that_changed_after_it_was_verified(place):
    words = ("leaderboard", "--results", place.bench.out, "--cache-dir", place.bench.cache)
    assert [place.bench(*words).code for _ in range(2)] == [0, 0]
    file = load(place.bench.results(place.collection.name, "bm25")).run_file
    file.write_bytes(file.read_bytes()[:-1])
    done = place.bench(*words)
    assert (done.code, done.stdout) == (2, "")
    assert str(file) in done.stderr


def test_values_of_a_baseline_that_contradict_its_ranking_are_not_evidence(place):
    """Lowered with their mean and hash, so that the candidate would look better."""
    folder = place.bench.results(place.collection.name, "bm25")
    lower_scores(folder, place.bench.out)
    code, document, stderr = place.check("hashing", "bm25")
    assert (code, document["outcome"]) == (4, "MISSING")
    assert f"{folder} contradicts itself" in stderr
    assert place.bench("run", place.collection, "--model", "hashing").code == 0
    folders = ("--results", place.bench.out, "--cache-dir", place.bench.cache)
    done = place.bench("compare", "hashing", "bm25", *folders)
    assert (done.code, done.stdout) == (2, "")
    assert f"{folder} contradicts itself" in done.stderr


@pytest.mark.parametrize("model", ["bm25", "hashing"])
def test_stored_results_without_a_ranking_are_named_in_every_report(place, tmp_path, caplog, model):
    assert place.bench("run", place.collection, "--model", "hashing").code == 0
    file = load(place.bench.results(place.collection.name, model)).run_file
    file.unlink()
    warning = f"some scores are not compared with their rankings: {file} is missing"
    assert warning in place.check("hashing", "bm25")[1]["warnings"]
    assert caplog.messages.count(warning) == 1
    assert warning in place.run("hashing", "bm25", "--junit", tmp_path / "junit.xml").stdout
    assert warning in (tmp_path / "junit.xml").read_text()


def test_two_recipes_of_the_baseline_on_another_collection_do_not_affect_a_check(place, tmp_path):
    other = place.another("other")
    for words in ([place.collection, other], [other, "--set", "store_dtype=float16"]):
        done = place.bench("run", *words, "--model", "hashing")
        assert done.code == 0, done.stderr
    done = place.run("hashing", "hashing", "--expect-same")
    assert done.code == ExitCode.OK, done.stderr
    assert "Left out by --on: other" in done.stdout
    refused = place.run("hashing", "hashing", "--on", other)
    assert refused.code == ExitCode.BAD_INPUT
    baseline = "hashing@store_dtype=float32"
    assert f"'{baseline}'" in refused.stderr
    accepted = place.run("hashing", baseline, "--on", other, "--expect-same")
    assert accepted.code == ExitCode.OK


def test_a_collection_of_on_without_a_result_of_the_baseline_is_missing(place):
    second = place.another("second")
    shutil.rmtree(place.bench.results("second", "bm25"))
    done = place.run("hashing", "bm25", "--on", place.collection, second)
    assert done.code == ExitCode.MISSING
    assert "second: bm25 has no result" in done.stdout
    assert f"python -m bench run {second} --model bm25" in done.stdout


def test_without_on_the_collections_of_the_baseline_are_checked(place, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = place.anywhere("hashing", "bm25", "--floor", 0.2, "--json")
    assert [row["on"] for row in json.loads(done.stdout)["rows"]] == ["tiny"]
    assert done.code != ExitCode.MISSING, done.stderr


def test_every_warning_is_in_every_report(place, tmp_path):
    fields = {"trained_on": ("tiny",), "warning": "of another tokenizer"}
    seen = write_hashing_card(tmp_path / "seen.toml", 64, similarity="cos", **fields)
    plain, report = place.card("plain", 32), tmp_path / "report.xml"
    place.bench("run", place.collection, "--model", plain)
    done = place.run(seen, "plain", "--floor", 0.2, "--junit", report)
    assert "(in-domain)" in done.stdout
    assert "of another tokenizer" not in done.stderr  # the log has printed it
    warnings = place.check(seen, "plain", "--floor", 0.2)[1]["warnings"]
    for text in ("seen: of another tokenizer", "the candidate, seen, was trained on tiny"):
        assert f"warning: {text}" in done.stdout
        assert f"warning: {text}" in report.read_text(encoding="utf-8")
        assert any(text in warning for warning in warnings)
    assert "the baseline, seen, was trained on tiny" in place.run(plain, "seen").stdout


def test_two_folders_of_one_name_are_an_error_before_anything_is_encoded(place, tmp_path):
    other = write_collection(tmp_path / "elsewhere" / "tiny", *SIXTY)
    typed = [str(place.collection), str(other)]
    done = place.run("hashing", "bm25", "--on", *typed)
    assert done.code == ExitCode.BAD_INPUT
    assert "are both named tiny" in done.stderr
    assert all(folder in done.stderr for folder in typed)
    assert "dataset.toml" in done.stderr
    assert not (place.bench.out / "tiny" / "hashing").exists()
