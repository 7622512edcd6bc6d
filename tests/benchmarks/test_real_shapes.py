"""The measurement of MS MARCO's shape, at a small size."""

import json
import sys

import pytest

from tests.support.collections import finish, start


@pytest.mark.slow
def test_a_small_collection_is_run_twice_and_checked(tmp_path):
    sizes = ["--rows", "3000", "--queries", "20", "--depth", "50", "--check", "20", "--dim", "16"]
    module = [sys.executable, "-m", "tests.benchmarks.real_shapes", *sizes]
    others = ["--max-memory", "1GB", "--folder", str(tmp_path), "--against-faiss"]
    done = finish(start([*module, *others, "--rounds", "1"]))
    assert done.code == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["rankings_that_differ"] == 0
    assert figures["first"]["encoding_s"] > 0
    assert figures["second"]["encoding_s"] == 0
    assert 0 < figures["second"]["peak_bytes"] < 10**9
    assert figures["race"]["share_of_the_same_documents"] > 0.9
    assert not list(tmp_path.iterdir())
