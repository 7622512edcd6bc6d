"""``check`` as it is typed: exit codes, reports, and what is not run twice."""

import json
from xml.etree import ElementTree

import pytest

from bench.exit_codes import ExitCode
from tests.support.collections import Bench, write_collection


@pytest.fixture
def folder(bench, tmp_path):
    folder = write_collection(tmp_path / "tiny")
    assert bench("run", folder, "--model", "hashing").code == 0
    return folder


def check(bench: Bench, *arguments: object):
    places = ("--results", bench.out, "--cache-dir", bench.cache)
    return bench("check", *arguments, *places)


def test_a_model_that_ranks_as_its_baseline_may_ship(bench, folder, tmp_path):
    reports = ("--markdown", tmp_path / "check.md", "--junit", tmp_path / "check.xml")
    done = check(bench, "hashing", "--baseline", "hashing", "--on", folder, *reports)
    assert done.code == ExitCode.OK, done.stderr
    assert "every ranking is the same" in done.stdout
    assert "tiny" in (tmp_path / "check.md").read_text()
    cases = ElementTree.parse(tmp_path / "check.xml").iter("testcase")
    assert "tiny" in [case.get("name") for case in cases]


def test_a_few_changed_queries_say_nothing(bench, folder):
    done = check(bench, "bm25", "--baseline", "hashing", "--on", folder, "--floor", 1, "--json")
    assert done.code == ExitCode.INCONCLUSIVE, done.stderr
    assert json.loads(done.stdout)


def test_a_collection_without_a_baseline_is_missing(bench, folder, tmp_path):
    other = write_collection(tmp_path / "other")
    done = check(bench, "hashing", "--baseline", "hashing", "--on", folder, other)
    assert done.code == ExitCode.MISSING, done.stderr
    assert "other" in done.stdout


def test_another_model_in_its_name_is_drift(bench, folder):
    arguments = ("--baseline", "hashing", "--on", folder, "--expect-same")
    assert check(bench, "bm25", *arguments).code == ExitCode.DRIFT
    assert check(bench, "hashing", *arguments).code == ExitCode.OK


@pytest.mark.parametrize(
    "arguments",
    [
        ("--baseline", "nobody"),
        ("--baseline", "published"),
        ("--baseline", "hashing", "--margin", "2"),
    ],
)
def test_bad_input_is_refused(bench, folder, arguments):
    assert check(bench, "hashing", *arguments, "--on", folder).code == ExitCode.BAD_INPUT
