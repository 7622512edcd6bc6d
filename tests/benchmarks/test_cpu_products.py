"""The benchmark of products, with the kernels of a processor that has AVX2 alone."""

import json
import sys

import pytest

from retrievers.encoders.packed import has_onednn
from tests.benchmarks.cpu_products import CANDIDATES, PRODUCTS
from tests.support.collections import finish, start


@pytest.mark.slow
@pytest.mark.skipif(not has_onednn(), reason="PyTorch offers no oneDNN operators here")
def test_with_avx2_alone_operators_follow_the_product_and_all_candidates_agree(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    command = [sys.executable, "-m", "tests.benchmarks.cpu_products", "--rounds", "1"]
    done = finish(start(command))
    assert done.code in (0, 1), done.stderr  # 1: a single round on a busy machine
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["capability"], report["chosen"]) == ("AVX2", "onednn")
    for candidates in report["ms"].values():
        assert list(candidates) == list(CANDIDATES)
        assert all(tuple(times) == PRODUCTS for times in candidates.values())
