"""What the README's table says of other programs, tried on runs that show it."""

import math
import warnings

import ir_measures
import pytest

import bench

pytestmark = pytest.mark.slow

JUDGED = {f"q{i}": {f"d{i}": 1} for i in range(10)}
UNANSWERED = {f"q{i}": {f"d{i}": 2.0, "other": 1.0} for i in range(9)}  # not q9
TIED = {query: {f"d{query[1:]}": 1.0, "other": 1.0} for query in JUDGED}


def ndcg_of_beir(run, judged):
    from beir.retrieval.evaluation import EvaluateRetrieval

    copies = {query: dict(documents) for query, documents in run.items()}  # it removes from them
    return EvaluateRetrieval.evaluate(judged, copies, [2])[0]["NDCG@2"]


def ndcg_of_mteb(run, judged):
    warnings.simplefilter("ignore")
    from mteb._evaluators.retrieval_metrics import calculate_retrieval_scores

    return calculate_retrieval_scores(run, judged, [2]).ndcg["NDCG@2"]


def ndcg_of_ir_measures(run, judged):
    measure = ir_measures.nDCG @ 2
    return ir_measures.calc_aggregate([measure], judged, run)[measure]


@pytest.mark.parametrize(
    ("ndcg", "mean"), [(ndcg_of_beir, 1.0), (ndcg_of_mteb, 1.0), (ndcg_of_ir_measures, 0.9)]
)
def test_beir_and_mteb_leave_a_query_without_results_out_of_the_mean(ndcg, mean):
    assert ndcg(UNANSWERED, JUDGED) == pytest.approx(mean)


@pytest.mark.parametrize(
    ("ndcg", "value"), [(ndcg_of_beir, 0.63093), (ndcg_of_mteb, 0), (ndcg_of_ir_measures, 0)]
)
def test_beir_drops_a_document_that_has_the_id_of_its_query(ndcg, value):
    run = {"d1": {"d1": 3.0, "other": 2.0, "d2": 1.0}}
    assert ndcg(run, {"d1": {"d2": 1}}) == pytest.approx(value, abs=1e-5)


def test_this_program_counts_all_judged_queries_and_shows_the_effect_of_ties():
    texts = {f"d{i}": f"text {i}" for i in range(10)} | {"other": "another text"}
    queries = {f"q{i}": f"query {i}" for i in range(10)}
    documents = {key: {"text": text} for key, text in texts.items()}
    dataset = bench.Dataset.from_dicts(documents, queries, JUDGED)
    result = bench.score(UNANSWERED, dataset, measure=["nDCG@2"])
    assert result.measures["nDCG@2"] == pytest.approx(0.9)
    tied = bench.score(TIED, dataset, measure=["nDCG@2"]).record
    assert (tied.tie_low, tied.tie_high) == (pytest.approx(1 / math.log2(3)), 1.0)
