"""Values equal those of trec_eval (its own code, through pytrec_eval), query by query.

trec_eval reads scores as float32 and orders ties by falling document id; pytrec_eval does the
same with the float64 scores it is given, so both get the scores as float32.
"""

import numpy as np
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation.runs import Run
from bench.evaluation.scoring import score
from datasets_cfg.readers.reader import Qrels
from tests.support.examples import with_examples

QUERIES = ["1", "q2", "é", "中文", "\U0001f600"]
DOCUMENTS = ["a", "A", "10", "9", "é", "e\u0301", "ÿ", "\u0100", "\uffee", "\U0001f600", "zz", "z"]
# The middle three are one float32; so are the last two.
SCORES = [-3.5, 0.0, 1.0, 1.00000001, 1.00000002, 2.0, 7.25, 16777216.0, 16777217.0]

Table = dict[str, dict[str, float]]

RUNS = st.dictionaries(
    st.sampled_from(QUERIES),
    st.dictionaries(st.sampled_from(DOCUMENTS), st.sampled_from(SCORES), min_size=1),
)
QRELS = st.dictionaries(
    st.sampled_from(QUERIES[:4]),
    st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(-2, 4), min_size=1),
    min_size=1,
)
# Name here, trec_eval's name, its relevance level.
PAIRS = [
    ("nDCG@10", "ndcg_cut_10", 1),
    ("nDCG@3", "ndcg_cut_3", 1),
    ("nDCG", "ndcg", 1),
    ("R@1", "recall_1", 1),
    ("R@100", "recall_100", 1),
    ("R(rel=2)@5", "recall_5", 2),
    ("P@1", "P_1", 1),
    ("P@5", "P_5", 1),
    ("P(rel=3)@20", "P_20", 3),
    ("RR", "recip_rank", 1),
    ("RR(rel=2)", "recip_rank", 2),
    ("AP", "map", 1),
    ("AP(rel=2)", "map", 2),
    ("AP@3", "map_cut_3", 1),
    ("AP(rel=2)@100", "map_cut_100", 2),
    ("Success@1", "success_1", 1),
    ("Success(rel=4)@5", "success_5", 4),
    ("Rprec", "Rprec", 1),
    ("Bpref", "bpref", 1),
    ("infAP", "infAP", 1),
]


def run_of(table: Table) -> Run:
    rows = [(query, doc, value) for query, docs in table.items() for doc, value in docs.items()]
    return Run.from_rows(*([row[i] for row in rows] for i in range(3)))


def qrels_of(table: dict[str, dict[str, int]]) -> Qrels:
    rows = [(query, doc, grade) for query, docs in table.items() for doc, grade in docs.items()]
    queries, documents, grades = zip(*rows, strict=True)
    return Qrels(queries, documents, np.array(grades, dtype=np.int32))


def trec_eval(
    run: Table, qrels: dict[str, dict[str, int]], names: set[str], level: int
) -> dict[str, list[float]]:
    """Values of trec_eval; 0 where it has none, and where it would read outside its memory.

    It does that for a query whose grades are all negative, and which so has nothing relevant.
    """
    narrow = {q: {doc: float(np.float32(s)) for doc, s in docs.items()} for q, docs in run.items()}
    sound = {query: judged for query, judged in qrels.items() if max(judged.values()) >= 0}
    evaluator = pytrec_eval.RelevanceEvaluator(sound, names, relevance_level=level)
    found = evaluator.evaluate(narrow)
    return {
        name: [found[query][name] if query in found else 0.0 for query in qrels] for name in names
    }


@with_examples(150)
@given(run=RUNS, qrels=QRELS)
def test_values_equal_trec_eval(run, qrels):
    scores = score(run_of(run), qrels_of(qrels), [name for name, _, _ in PAIRS])
    assert scores.query_ids == tuple(qrels)
    for level in {level for _, _, level in PAIRS}:
        pairs = [(name, theirs) for name, theirs, its_level in PAIRS if its_level == level]
        expected = trec_eval(run, qrels, {theirs for _, theirs in pairs}, level)
        for name, theirs in pairs:
            np.testing.assert_allclose(
                scores.values[name], expected[theirs], rtol=0, atol=1e-9, err_msg=name
            )


def judged_share(ranked: list[str], judged: dict[str, int], cutoff: int) -> float:
    """Judged@k as ir_measures defines it: over what was retrieved, if that is less than k."""
    top = ranked[:cutoff]
    return sum(doc in judged for doc in top) / len(top) if top else 0.0


def official_reciprocal_rank(ranked: list[str], relevant: set[str]) -> float:
    """MS MARCO's MRR@10 for one query: the first hit among ten, by position."""
    for position, doc in enumerate(ranked[:10], start=1):
        if doc in relevant:
            return 1 / position
    return 0.0


def canonical(docs: dict[str, float]) -> list[str]:
    return sorted(docs, key=lambda doc: (np.float32(docs[doc]), doc.encode()), reverse=True)


@given(run=RUNS, qrels=QRELS)
def test_measures_that_trec_eval_lacks_equal_their_definition(run, qrels):
    scores = score(run_of(run), qrels_of(qrels), ["Judged@3", "RR@10"])
    ranked = [canonical(run.get(query, {})) for query in qrels]
    shares = [judged_share(docs, qrels[q], 3) for docs, q in zip(ranked, qrels, strict=True)]
    relevant = [{doc for doc, grade in qrels[query].items() if grade >= 1} for query in qrels]
    official = [
        official_reciprocal_rank(docs, good) for docs, good in zip(ranked, relevant, strict=True)
    ]
    np.testing.assert_allclose(scores.values["Judged@3"], shares, rtol=0, atol=1e-12)
    np.testing.assert_allclose(scores.values["RR@10"], official, rtol=0, atol=1e-12)
