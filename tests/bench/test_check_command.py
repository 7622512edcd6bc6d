"""``check`` as CI meets it: evaluates, reuses, decides, and leaves its reports."""

import argparse
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
from collections_for_tests import Bench, write_collection

from bench.cli.commands.check import check
from foundation.errors import BenchError

WORDS = [f"word{chr(97 + i)}{chr(97 + j)}" for i in range(6) for j in range(10)]
DOCUMENTS = {f"d{i:02}": ("", f"{word} common text") for i, word in enumerate(WORDS)}
QUERIES = {f"q{i:02}": f"{word} text" for i, word in enumerate(WORDS)}
QRELS = {(f"q{i:02}", f"d{i:02}"): 1 for i in range(len(WORDS))}
DEFAULTS = {
    "anchor": None,
    "on": [],
    "rule": "loss",
    "margin": 0.01,
    "floor": 0.1,
    "expect_same": False,
    "tolerance": 0.0005,
    "markdown": None,
    "junit": None,
    "json": True,
    "measure": None,
    "depth": None,
    "split": None,
    "allow_mismatch": False,
    "resamples": 199,
    "seed": 0,
    "max_memory": None,
    "device": "cpu",
    "like": None,
    "adapter": None,
    "dtype": None,
    "backend": None,
    "store_dtype": None,
    "max_query_tokens": None,
    "max_document_tokens": None,
    "trust_code": False,
    "data_dir": None,
    "offline": True,
    "quick": False,
    "budget": 300.0,
    "speed": False,
    "slower": 1.1,
    "speed_time": 2.0,
    "baseline_model": None,
}


@dataclass(frozen=True)
class Place:
    """A collection, and the results of BM25 on it."""

    bench: Bench
    collection: Path

    def check(self, checkpoint: str, baseline: str, **options: object) -> tuple[int, dict, str]:
        """Exit code, the JSON document, and what went to stderr."""
        known = {**DEFAULTS, "results": self.bench.out, "on": [str(self.collection)], **options}
        words = argparse.Namespace(checkpoint=checkpoint, baseline=baseline, **known)
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = check(words, self.bench.cache)
        return code, json.loads(out.getvalue()), err.getvalue()


@pytest.fixture
def place(tmp_path) -> Place:
    collection = write_collection(tmp_path / "tiny", DOCUMENTS, QUERIES, QRELS)
    found = Place(Bench(tmp_path), collection)
    done = found.bench("run", collection, "--model", "bm25", "--quiet")
    assert done.code == 0, done.stderr
    return found


def test_a_model_is_not_worse_than_itself_and_nothing_runs_twice(place):
    code, document, stderr = place.check("bm25", "bm25")
    assert (code, document["outcome"]) == (0, "OK")
    assert "every ranking is the same" in document["reasons"][0]
    assert "stored in" in stderr


def test_what_is_missing_is_evaluated_and_kept(place):
    code, document, stderr = place.check("hashing", "bm25")
    assert code == document["exit_code"]
    assert place.bench.results(place.collection.name, "hashing").is_dir()
    assert "pessimistic" in stderr
    assert "stored in" in place.check("hashing", "bm25")[2]


def test_a_collection_without_a_baseline_is_missing_and_exits_4(place, tmp_path):
    other = write_collection(tmp_path / "other", DOCUMENTS, QUERIES, QRELS)
    code, document, _ = place.check("bm25", "bm25", on=[str(place.collection), str(other)])
    assert (code, document["outcome"]) == (4, "MISSING")


def test_two_folders_of_one_name_are_an_error_before_anything_is_encoded(place, tmp_path):
    other = write_collection(tmp_path / "elsewhere" / "tiny", DOCUMENTS, QUERIES, QRELS)
    typed = [str(place.collection), str(other)]
    with pytest.raises(BenchError, match="are both named tiny") as caught:
        place.check("hashing", "bm25", on=typed)
    assert all(one in str(caught.value) for one in typed)
    assert "dataset.toml" in caught.value.hint
    assert not (place.bench.out / "tiny" / "hashing").exists()


def test_a_folder_with_the_name_of_a_collection_beside_it_is_an_error(place):
    (place.collection / "dataset.toml").write_text('name = "beir/scifact"')
    with pytest.raises(BenchError, match="are both named beir/scifact"):
        place.check("bm25", "bm25", on=["beir/scifact", str(place.collection)])


def test_folders_of_one_name_are_told_apart_by_the_names_that_they_declare(place, tmp_path):
    other = write_collection(tmp_path / "elsewhere" / "tiny", DOCUMENTS, QUERIES, QRELS)
    (other / "dataset.toml").write_text('name = "other"')
    place.bench("run", other, "--model", "bm25", "--quiet")
    code, document, _ = place.check("bm25", "bm25", on=[str(place.collection), str(other)])
    assert code == 0
    assert [row["name"] for row in document["against"][0]["rows"]] == ["tiny", "other"]


def test_another_model_that_claims_to_be_the_same_drifts_or_scores_alike(place):
    code, document, _ = place.check("hashing", "bm25", expect_same=True)
    (row,) = document["against"][0]["rows"]
    differs = abs(row["paired"]["difference"]) > DEFAULTS["tolerance"]
    assert code == (5 if differs else 0)


def test_reports_are_written_in_folders_that_are_made(place, tmp_path):
    files = {"markdown": tmp_path / "new" / "a.md", "junit": tmp_path / "new" / "a.xml"}
    place.check("bm25", "bm25", **files)
    assert files["markdown"].read_text().startswith("## OK")
    assert ElementTree.parse(files["junit"]).getroot().find("testsuite").get("failures") == "0"


def test_an_anchor_is_a_second_comparison(place):
    _, document, _ = place.check("bm25", "bm25", anchor="bm25")
    assert [one["role"] for one in document["against"]] == ["baseline", "anchor"]


@pytest.mark.parametrize(
    ("baseline", "options", "message"),
    [
        ("nobody", {}, "holds no result of 'nobody'"),
        ("published", {}, "published scores have no queries"),
        ("bm25", {"anchor": "published"}, "no anchor"),
        ("bm25", {"anchor": "published", "expect_same": True}, "no anchor"),
    ],
)
def test_bad_input_is_an_error_before_anything_is_encoded(place, baseline, options, message):
    with pytest.raises(BenchError, match=message):
        place.check("hashing", baseline, **options)
    assert not (place.bench.out / place.collection.name / "hashing").exists()


def test_an_unknown_measure_is_bad_input_and_no_missing_evaluation(place):
    with pytest.raises(BenchError, match="nDCG@x"):
        place.check("bm25", "bm25", measure="nDCG@x")


def test_a_check_that_could_never_fail_for_want_of_resamples_is_refused(place):
    with pytest.raises(BenchError, match="38 resamples can find no difference"):
        place.check("hashing", "bm25", resamples=38)


@pytest.mark.parametrize("where", ["", "taken/report.md"])
def test_a_report_that_cannot_be_a_file_is_refused_before_anything_is_encoded(
    place, tmp_path, where
):
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "taken").touch()
    report = tmp_path / "reports" / where
    words = ("hashing", "--baseline", "bm25", "--on", place.collection)
    done = place.bench("check", *words, "--results", place.bench.out, "--markdown", report)
    assert done.code == 2
    assert "cannot be a file" in done.stderr
    assert not (place.bench.out / place.collection.name / "hashing").exists()
