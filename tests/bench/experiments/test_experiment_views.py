"""Evaluations that differ after the forward pass: one encoding, and the scores of plain runs."""

import pytest

from bench.experiments.evaluate_stage import RESULTS, EvaluateStage
from bench.result_store.find import find_results
from bench.runner.workspace import Workspace
from foundation.errors import BenchError
from tests.support.collections import write_collection
from tests.support.tiny_checkpoints import write_bert, write_card


@pytest.fixture
def evaluated(tmp_path):
    write_collection(tmp_path / "small")
    write_bert(tmp_path / "bert")
    fields = {"pooling": "mean", "normalize": True}
    model = str(write_card(tmp_path / "tiny.toml", checkpoint="bert", **fields))
    stage = EvaluateStage(Workspace(cache_dir=tmp_path / "cache", device="cpu"))

    def evaluate(name, **fields):
        settings = stage.resolve_settings({"on": [str(tmp_path / "small")], **fields})
        stage.run(settings, model, tmp_path / name)
        (stored,) = find_results(tmp_path / name / RESULTS)
        return stored.record

    return evaluate


MEAN = {"pooling": "mean", "normalize": True}


def test_the_view_of_the_model_itself_scores_like_a_plain_evaluation(evaluated):
    plain, viewed = evaluated("plain"), evaluated("viewed", view=MEAN)
    assert viewed.measures == plain.measures
    assert (viewed.recipe.pooling, viewed.recipe.dim) == ("mean", 32)
    assert viewed.recipe.similarity == "cos"


def test_bm25_is_not_multiplied_with_a_negative_similarity(evaluated):
    with pytest.raises(BenchError, match="euclidean ones are below 0"):
        evaluated("both", index="bm25", view={**MEAN, "similarity": "euclidean"})


def test_documents_are_encoded_once_for_all_views(evaluated):
    first = evaluated("first", view=MEAN)
    views = [
        {**MEAN, "pooling": "cls"},
        {**MEAN, "normalize": False, "similarity": "euclidean"},
        {**MEAN, "dimensions": 16},
        {**MEAN, "precision": "int8"},
        {**MEAN, "precision": "binary"},
    ]
    later = [evaluated(f"later {number}", view=view) for number, view in enumerate(views)]
    assert first.timings.encoded_documents > 0
    assert {one.timings.encoded_documents for one in later} == {0}
    fingerprints = {one.fingerprint for one in [first, *later]}
    assert len(fingerprints) == len(views) + 1


def test_more_dimensions_than_the_model_has_stop_before_anything_is_encoded(evaluated):
    with pytest.raises(BenchError, match="400 dimensions of vectors that have 32"):
        evaluated("wide", view={**MEAN, "dimensions": 400})
