"""The measurement of the real shapes, at a small size."""

import json
import sys

import pytest

from tests.support.collections import finish, start


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["msmarco", "wikipedia"])
def test_a_small_shape_is_run_twice_checked_and_extrapolated(shape, tmp_path):
    sizes = ["--rows", "3000", "--queries", "20", "--depth", "50", "--check", "20"]
    module = [sys.executable, "-m", "tests.benchmarks.real_shapes", "--shape", shape]
    command = [*module, *sizes, "--dim", "8", "16", "--max-memory", "1GB", "--folder", tmp_path]
    done = finish(start([str(word) for word in command]))
    assert done.code == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    for figures in report["dimensions"].values():
        assert figures["rankings_that_differ"] == 0
        assert figures["first"]["encoding_s"] > 0
        assert figures["second"]["encoding_s"] == 0
        assert 0 < figures["second"]["peak_bytes"] < 10**9
    line = report["extrapolated"]["second search_s"]
    assert line["value"] == pytest.approx(line["a"] + 768 * line["b"])
    assert not list(tmp_path.iterdir())
