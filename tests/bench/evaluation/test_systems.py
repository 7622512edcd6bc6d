"""Search systems: what they return, what is told about it, and what is kept."""

import itertools
import threading
import time
from collections import Counter

import numpy as np
import pytest

import bench
from bench.__main__ import main
from bench.evaluation import asking
from bench.evaluation.asking import Response, open_responses
from bench.evaluation.runs import Run, merge_passages
from bench.requests.outcomes import ExitCode
from bench.result_store.find import find_results
from foundation.errors import BenchError, DriftError
from retrievers.encoders.search_system import SearchSystem, is_search
from tests.support.collections import SIXTY, SIXTY_DOCUMENTS, SIXTY_QUERIES, write_collection

DEPTH_10 = 'main_measure = "RR@10"\nmeasures = ["R@5"]\ndepth = 10\n'


class Words:
    """A system that ranks documents by shared words, and counts what it is asked."""

    version = "1"

    def __init__(self):
        self.asked = Counter()

    def search(self, queries, k):
        self.asked.update(queries)
        return [self.rank(query)[:k] for query in queries]

    def rank(self, query):
        shared = {
            name: len({*query.split()} & {*text.split()})
            for name, (_, text) in SIXTY_DOCUMENTS.items()
        }
        return sorted(shared.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)


@pytest.fixture
def sixty(tmp_path):
    return write_collection(tmp_path / "sixty", *SIXTY, metadata=DEPTH_10)


@pytest.fixture
def evaluate(sixty, tmp_path):
    def run(system, name="prod", **settings):
        folders = {"cache_dir": tmp_path / "cache", "results": tmp_path / "out"}
        return bench.evaluate(system, sixty, name=name, **folders, **settings)

    return run


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(asking, "PAUSES_S", (0.0, 0.0, 0.0))


def warnings(evaluation):
    return " ".join(evaluation.record.preflight["warnings"])


def changed(change, version="1"):
    """A `Words` whose ranking of each query is changed."""

    class Changed(Words):
        def rank(self, query):
            return change(super().rank(query))

    system = Changed()
    system.version = version
    return system


def test_objects_with_search_and_functions_of_two_arguments_are_systems():
    assert is_search(Words())
    assert is_search(Words().search)
    assert is_search(lambda queries, k: None)
    assert is_search(lambda queries, k=10: None)
    assert not is_search(lambda texts: None)
    assert not is_search(lambda texts, batch_size=8: None)
    assert not is_search(type("Encoder", (), {"encode_queries": None})())
    both = type("Both", (), {"encode_queries": None, "search": lambda *_: None})()
    with pytest.raises(BenchError, match="Both has search and encode_query"):
        is_search(both)


@pytest.mark.parametrize(
    ("returned", "ids", "scores"),
    [
        ([["a", "b"]], ["a", "b"], None),
        ([[("a", 2), ("b", 1.5)]], ["a", "b"], [2.0, 1.5]),
        (np.array([[7, 3]]), ["7", "3"], None),
        ([[(7, np.float32(0.5))]], ["7"], [0.5]),
        ([{"a": 1.0, "b": 2.0}], ["b", "a"], [2.0, 1.0]),
        ([[]], [], None),
        (iter([(name for name in "ab")]), ["a", "b"], None),
    ],
)
def test_pairs_ids_and_scores_by_id_are_read(returned, ids, scores):
    (ranking,) = SearchSystem(lambda queries, k: returned, "prod").search(["q"], 2)
    assert (ranking.ids, ranking.scores) == (ids, scores)


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("<html>busy</html>", "returned a str: '<html>busy</html>'"),
        (None, "returned a NoneType"),
        (["a", "b", "c"], "returned 3 rankings for 1 query"),
        (["a"], "returned a str as a ranking: 'a'"),
        ([("a", 0.5)], "neither text nor whole numbers"),
        ([[("a", "high")]], "not pairs of id and score"),
        ([[("a", 1, 2)]], "not pairs of id and score"),
        ([[[np.float32(0.5), "12"]]], "pairs of score and id instead of id and score"),
        ([[(1, "d1")]], "pairs of score and id instead of id and score"),
        ([[(0.5, 0.25)]], "neither text nor whole numbers"),
        ([[None]], "neither text nor whole numbers"),
    ],
)
def test_anything_else_is_refused_with_what_was_found(returned, problem):
    with pytest.raises(BenchError, match="prod returned") as refused:
        SearchSystem(lambda queries, k: returned, "prod").search(["q"], 2)
    assert problem in str(refused.value)
    assert "pairs of document id and score" in refused.value.hint


def test_a_system_gives_the_run_of_its_rows_whatever_its_batches_and_threads(
    evaluate, sixty, tmp_path
):
    rows = {query: dict(Words().rank(text)[:10]) for query, text in SIXTY_QUERIES.items()}
    scored = bench.score(rows, sixty, cache_dir=tmp_path / "cache")
    batched = Words()
    batched.batch = 7
    for system, name, threads in (
        (Words(), "alone", None),
        (batched, "batched", None),
        (Words(), "threads", 4),
    ):
        found = evaluate(system, name, concurrency=threads)
        assert found.measures == scored.measures
        assert list(map(str, found.run.rankings())) == list(map(str, scored.run.rankings()))


UNORDERED = "rise, or are not finite, for 60 of 60 queries"
RANKED_ALIKE = {
    "ids alone": (lambda rows: [name for name, _ in rows], ""),
    "rising scores": (lambda rows: [(name, -score) for name, score in rows], UNORDERED),
    "no numbers": (lambda rows: [(name, float("nan")) for name, _ in rows], UNORDERED),
    "beyond float32": (lambda rows: [(name, 1e39) for name, _ in rows], UNORDERED),
    "an id twice": (
        lambda rows: [name for name, _ in rows[:4] + rows[:2] + rows[4:]],
        "an id twice for 60 of 60 queries, such as 'q00'",
    ),
}


@pytest.mark.parametrize("case", RANKED_ALIKE)
def test_the_order_of_a_response_counts_and_what_is_wrong_with_its_scores_is_told(case, evaluate):
    change, told = RANKED_ALIKE[case]
    expected, found = evaluate(Words(), "plain"), evaluate(changed(change), "changed")
    assert found.measures == expected.measures
    ranked = [[ids[:8] for _, ids, _ in each.run.rankings()] for each in (found, expected)]
    assert ranked[0] == ranked[1]
    assert told in warnings(found)


def test_measures_beyond_the_returned_documents_are_marked(evaluate):
    short = evaluate(changed(lambda rows: rows[:4]))
    assert "fewer than 10 documents for 60 of 60 queries, at fewest 4" in warnings(short)
    assert short.record.preflight["short"] == {"R@5": 4, "RR@10": 4}
    complete = evaluate(Words(), "complete")
    assert "short" not in complete.record.preflight
    row = bench.compare(short, complete, measure="R@5", resamples=99).record.collections[0]
    assert (row.fewest_a, row.fewest_b) == (4, None)


def test_a_system_is_the_candidate_or_the_baseline_of_a_check(sixty, tmp_path):
    class Named(Words):
        name = "prod"

    class Worse(Named):
        def rank(self, query):
            return super().rank(query)[::-1]

    places = {"on": sixty, "cache_dir": tmp_path / "cache", "results": tmp_path / "out"}
    folders = {name: places[name] for name in ("cache_dir", "results")}
    places["margin"] = 0.1  # which 60 queries can prove
    stored = bench.evaluate("bm25", sixty, **folders)
    assert bench.check(Named(), baseline="bm25", **places).outcome == "OK"
    assert bench.check(Worse(), baseline=Named(), **places).outcome == "REGRESSION"
    against = bench.check(stored, baseline=Worse(), **places)
    assert (against.outcome, against.baseline) == ("OK", "prod")
    with pytest.raises(BenchError, match="which has no stored name"):
        bench.check("bm25", baseline=Named(), **folders)
    with pytest.raises(BenchError, match="needs a name for its results"):
        bench.check(Words(), baseline="bm25", **places)


def test_a_golden_set_without_documents_is_scored_by_ids_alone(tmp_path, capsys):
    golden = tmp_path / "golden"
    golden.mkdir()
    rows = "question,expected_doc_ids\nfirst,d1;d3\nsecond,d2\n"
    (golden / "golden.csv").write_text(rows, encoding="utf-8")
    found = {"first": ["d9", "d1", "d3"], "second": ["d2", "d7"]}
    places = {"cache_dir": tmp_path / "cache", "results": tmp_path / "out"}

    def prod(queries, k):
        return [found[query] for query in queries]

    done = bench.evaluate(prod, golden, name="prod", measure=["RR@10", "P@1"], **places)
    assert done.measures["RR@10"] == pytest.approx((1 / 2 + 1) / 2)
    assert done.measures["P@1"] == pytest.approx(1 / 2)
    assert not any("not in golden" in told for told in done.record.preflight["warnings"])
    run_file = tmp_path / "run.trec"
    lines = ["1 Q0 d9 1 3 t", "1 Q0 d1 2 2 t", "1 Q0 d3 3 1 t", "2 Q0 d2 1 2 t", "2 Q0 d7 2 1 t"]
    run_file.write_text("\n".join(lines), encoding="utf-8")
    scored = bench.score(run_file, golden, **places)
    assert done.record.protocol == scored.record.protocol
    assert done.measures["nDCG@10"] == scored.measures["nDCG@10"]
    with pytest.raises(BenchError, match="no document of other is judged in golden: other has 'x'"):
        bench.evaluate(lambda queries, k: [["x"]] * len(queries), golden, name="other", **places)
    run_file.write_text("1 Q0 x 1 3 t\n", encoding="utf-8")
    with pytest.raises(
        BenchError, match=r"no document of the run run.trec is judged .* 'd1', 'd3'"
    ):
        bench.score(run_file, golden, name="run.trec", **places)
    with pytest.raises(BenchError, match="golden has no documents") as refused:
        bench.evaluate("bm25", golden, **places)
    assert "Ids alone suffice for a search system" in refused.value.hint


SYSTEMS = """
class One:
    name = "first"
    version = "1"
    def search(self, queries, k):
        return [["d1", "d2"] for _ in queries]

class Two(One):
    name = "second"
    def search(self, queries, k):
        return [["d2", "d3"] for _ in queries]
"""


def test_a_golden_set_is_named_by_its_table_and_systems_are_fused_without_documents(
    tmp_path, capsys
):
    golden = tmp_path / "golden/golden.csv"
    golden.parent.mkdir()
    golden.write_text("question,expected_doc_ids\nfirst,d1;d3\nsecond,d2\n", encoding="utf-8")
    systems = tmp_path / "systems.py"
    systems.write_text(SYSTEMS, encoding="utf-8")
    one, two = (f"{systems}:{name}" for name in ("One", "Two"))
    places = ["--results", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "cache")]
    places += ["--trust-code"]
    assert main(["run", str(golden), "--model", f"{one}+{two}", one, *places]) == ExitCode.OK
    fused, alone = find_results(tmp_path / "out")
    assert {fused.dataset, alone.dataset} == {"golden"}
    # d2 is first: 1/62 + 1/61 exceeds 1/61 and 1/62.
    by_model = {each.model: each.measures["nDCG@10"] for each in (fused, alone)}
    gains = 1 / np.log2([2, 3, 4])
    assert by_model["first"] == pytest.approx((gains[0] / (gains[0] + gains[1]) + gains[1]) / 2)
    (name,) = by_model.keys() - {"first"}
    assert by_model[name] == pytest.approx(
        ((gains[1] + gains[2]) / (gains[0] + gains[1]) + gains[0]) / 2
    )
    checked = ["check", two, "--baseline", "first", "--on", str(golden)]
    assert main([*checked, *places]) == ExitCode.INCONCLUSIVE
    assert main(["run", str(golden), "--model", f"{one}+bm25", *places]) == ExitCode.BAD_INPUT
    assert "has no documents" in capsys.readouterr().err


def test_documents_of_a_golden_set_come_from_the_system_itself(tmp_path):
    golden = tmp_path / "golden"
    golden.mkdir()
    _, queries, qrels = SIXTY
    asked = "".join(f"{queries[query]},{document}\n" for query, document in qrels)
    (golden / "golden.csv").write_text("question,doc_id\n" + asked, encoding="utf-8")
    places = {"cache_dir": tmp_path / "cache", "results": tmp_path / "out"}

    (tmp_path / "held.py").write_text(
        "from tests.bench.evaluation import test_systems\n"
        "from tests.support.collections import SIXTY\n"
        "class Held(test_systems.Words):\n"
        "    def documents(self):\n"
        "        return [{'_id': name, 'text': text} for name, (_, text) in SIXTY[0].items()]\n"
        "prod = Held()\n",
        encoding="utf-8",
    )
    words = ["run", str(golden), "--model", f"{tmp_path / 'held.py'}:prod", "bm25", "--trust-code"]
    folders = ["--results", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "cache")]
    assert main([*words, *folders]) == ExitCode.OK
    whole = write_collection(tmp_path / "sixty", *SIXTY)
    expected = bench.evaluate("bm25", whole, **places).measures["nDCG@10"]
    (found,) = [one for one in find_results(tmp_path / "out", "bm25") if one.dataset == "golden"]
    assert found.measures["nDCG@10"] == pytest.approx(expected)

    class Failing(Words):
        def documents(self):
            return ["d1"]

    with pytest.raises(BenchError, match=r"documents\(\) of prod failed"):
        bench.evaluate(Failing(), golden, name="prod", **places)


def test_a_few_unknown_documents_are_told_and_many_are_refused(evaluate):
    left_over = evaluate(changed(lambda rows: [("old", 99.0), *rows]))
    assert "1 of the 61 documents" in warnings(left_over)
    assert "'old'; they keep their ranks" in warnings(left_over)
    assert left_over.measures["RR@10"] == pytest.approx(
        evaluate(Words(), "w").measures["RR@10"] / 2
    )
    with pytest.raises(
        BenchError, match=r"not in sixty: many has 'x-d0.', .*, the collection 'd00'"
    ):
        evaluate(changed(lambda rows: [(f"x-{name}", s) for name, s in rows]), "many")
    with pytest.raises(BenchError) as refused:
        evaluate(changed(lambda rows: [(f"{name}#0", score) for name, score in rows]), "passages")
    assert refused.value.hint == "Add --passages '#' if they are passages of documents."


def test_a_document_has_the_score_of_its_best_passage(evaluate):
    def cut(rows):
        return [(f"{name}#{n}", score - n / 8) for name, score in rows for n in (0, 1, 2)]

    chunks = changed(lambda rows: sorted(cut(rows), key=lambda pair: -pair[1]))
    found, expected = evaluate(chunks, passages="#"), evaluate(Words(), "whole")
    assert found.measures == expected.measures
    assert "'#' in their ids" in warnings(found)
    assert np.diff(found.run.offsets).min() >= 10
    assert max(chunks.asked.values()) > 2  # ten passages are of fewer documents: it asks for more


def test_passages_agree_with_a_loop():
    rng = np.random.default_rng(0)
    names = [f"d{d}#{p}" if p else f"d{d}" for d in range(9) for p in range(4)]
    rows = [(f"q{q}", name, float(rng.integers(20))) for q in range(5) for name in names]
    run = merge_passages(Run.from_rows(*zip(*rows, strict=True)), "#")
    best: dict[tuple[str, str], float] = {}
    for query, name, score in rows:
        key = (query, name.split("#")[0])
        best[key] = max(best.get(key, -1.0), score)
    found = {
        (q, d): s for q, ids, scores in run.rankings() for d, s in zip(ids, scores, strict=True)
    }
    assert found == best


def test_a_system_without_documents_is_refused_not_scored_zero(evaluate):
    with pytest.raises(BenchError, match="prod returned no document for 10 queries"):
        evaluate(changed(lambda rows: []))


def test_a_stored_result_is_reused_while_version_and_ten_responses_are_equal(evaluate):
    system = Words()
    first = evaluate(system)
    assert system.asked.total() == 70  # all queries, and ten again at the end
    assert evaluate(system).folder == first.folder
    assert system.asked.total() == 80
    other = evaluate(changed(lambda rows: rows[::-1]))
    assert other.folder != first.folder
    assert other.measures != first.measures
    assert first.folder.exists()
    assert evaluate(changed(lambda rows: rows, version="2")).folder not in (
        first.folder,
        other.folder,
    )


def test_an_object_with_other_code_is_asked_anew_even_if_its_version_is_the_same(evaluate):
    class Cautious(Words):
        version = "1"

        def rank(self, query):
            return super().rank(query)[:10]

    class Plain(Words):
        version = "1"

    plain, other = evaluate(Plain()), evaluate(Cautious())
    assert plain.record.recipe.options["code"] != other.record.recipe.options["code"]
    assert evaluate(Plain()).record.key == plain.record.key != other.record.key


def test_a_system_without_version_is_told_so(evaluate):
    system = Words()
    system.version = None
    assert "states no version" in warnings(evaluate(system))
    assert "states no version" not in warnings(evaluate(Words(), "with-version"))


def test_two_states_are_told_apart_by_name(evaluate, tmp_path):
    evaluate(changed(lambda rows: rows))
    evaluate(changed(lambda rows: rows[::-1]))
    evaluate(changed(lambda rows: rows[1:]), name="other")
    places = {"results": tmp_path / "out", "cache_dir": tmp_path / "cache", "resamples": 99}
    with pytest.raises(
        BenchError, match=r"prod has 2 results, which differ in options.state"
    ) as told:
        bench.compare("prod", "other", **places)
    chosen = told.value.hint.split("'")[1]
    assert bench.compare(chosen, "other", **places).record.a == chosen


def test_a_system_that_changes_meanwhile_is_refused_and_its_responses_are_removed(evaluate):
    calls = itertools.count()
    system = changed(lambda rows: rows if next(calls) < 30 else rows[::-1])
    with pytest.raises(DriftError, match="prod changed while it was asked"):
        evaluate(system)
    again = Words()
    evaluate(again)
    assert len(again.asked) == 60  # nothing of the mixture is used


def test_a_version_that_changes_meanwhile_is_refused(evaluate):
    class Deployed(Words):
        def version(self):
            return "1" if len(self.asked) < 30 else "2"

    with pytest.raises(DriftError, match="changed while it was asked: its version is '2' now"):
        evaluate(Deployed())


def test_a_system_that_answers_differently_each_time_has_a_warning(evaluate):
    rng = np.random.default_rng(0)
    found = evaluate(changed(lambda rows: [rows[row] for row in rng.permutation(60)]))
    assert "its responses to 10 queries differ each time" in warnings(found)


def test_an_answer_that_cannot_be_read_is_not_asked_for_again(evaluate):
    class Html(Words):
        calls = 0

        def search(self, queries, k):
            self.calls += 1
            return "<html>502 Bad Gateway</html>"

    system = Html()
    with pytest.raises(BenchError, match=r"prod failed on query '.*': prod returned a str"):
        evaluate(system)
    assert system.calls == 1


def test_after_an_error_only_the_other_queries_are_asked(evaluate):
    class Fails(Words):
        broken = True

        def search(self, queries, k):
            if self.broken and len(self.asked) > 30:
                raise ConnectionError("shard 3 is gone")
            return super().search(queries, k)

    system = Fails()
    with pytest.raises(
        BenchError, match=r"failed 3 times on query 'q2.': ConnectionError"
    ) as failed:
        evaluate(system)
    assert "shard 3 is gone" in str(failed.value)
    assert "31 responses are kept" in failed.value.hint
    system.broken = False
    found = evaluate(system)
    probed = {text for text, times in system.asked.items() if times > 1}
    assert len(system.asked) == 60
    assert len(probed) == 10
    assert found.measures == evaluate(Words(), "sound").measures


def test_a_query_that_fails_twice_is_answered_at_the_third_attempt(evaluate):
    class Shaky(Words):
        calls = itertools.count()

        def search(self, queries, k):
            if next(self.calls) % 3 < 2:
                raise TimeoutError("busy")
            return super().search(queries, k)

    assert evaluate(Shaky()).measures == evaluate(Words(), "sound").measures


def test_so_many_queries_are_asked_at_once_and_latencies_are_theirs(evaluate):
    lock, running, seen = threading.Lock(), [], []

    class Slow(Words):
        def search(self, queries, k):
            with lock:
                running.append(queries)
                seen.append(len(running))
            time.sleep(0.02)
            with lock:
                running.remove(queries)
            return super().search(queries, k)

    latency = evaluate(Slow(), concurrency=8).record.latency
    assert max(seen) == 8
    assert (latency.concurrency, latency.queries) == (8, 60)
    assert 20 <= latency.median_ms <= latency.p95_ms <= latency.p99_ms


def test_other_latencies_need_another_evaluation(evaluate):
    system = Words()
    first = evaluate(system)
    assert evaluate(system, concurrency=2).record.latency.concurrency == 2
    assert first.record.latency.concurrency == 1


def test_a_torn_or_damaged_line_is_asked_again(tmp_path):
    path = tmp_path / "responses.jsonl"
    with open_responses(path) as kept:
        for query in ("q1", "q2", "q3"):
            kept.add(Response(query, 2, 0.1, ["a"], None))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"query": \n' + lines[1] + lines[2][:20])
    with open_responses(path) as kept:
        assert list(kept.responses) == ["q1", "q2"]
        kept.add(Response("q3", 2, 0.1, ["b"], [1.0]))
    with open_responses(path) as kept:
        assert kept.responses["q3"].ids == ["b"]
