"""The measurement of MS MARCO's shape, at a small size."""

import json
import sys

import pytest

from tests.benchmarks.real_shapes import main


@pytest.mark.slow
def test_a_small_collection_is_run_twice_and_checked(tmp_path, monkeypatch, capsys):
    sizes = ["--rows", "3000", "--queries", "20", "--depth", "50", "--check", "20", "--dim", "16"]
    others = ["--max-memory", "1GB", "--folder", str(tmp_path), "--against-faiss", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["real_shapes", *sizes, *others])
    assert main() == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["rankings_that_differ"] == 0
    assert figures["first"]["encoding_s"] > 0
    assert figures["second"]["encoding_s"] == 0
    assert 0 < figures["second"]["peak_bytes"] < 10**9
    assert figures["race"]["share_of_the_same_documents"] > 0.9
    assert not list(tmp_path.iterdir())
