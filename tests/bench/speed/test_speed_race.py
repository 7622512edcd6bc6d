"""What tools race on, how their processes are watched, and when there is no ratio."""

import sys

import msgspec
import numpy as np
import pytest

from bench.speed.race import TOLERANCE, Exported, RaceEvaluation, export, judged
from bench.speed.tools import FinishedProcess, last_line, run_process
from datasets_cfg.dataset import open_dataset
from foundation.errors import BenchError
from tests.support.collections import DOCUMENTS, QRELS, QUERIES, write_collection

JUDGED = {query: text for query, text in QUERIES.items() if query in {q for q, _ in QRELS}}


@pytest.fixture
def dataset(tmp_path):
    folder = write_collection(tmp_path / "tiny", facts="exclude_self = true\ndepth = 7\n")
    return open_dataset(str(folder), cache_dir=tmp_path / "cache")


def exported(dataset, tmp_path, limit=None):
    done = export(dataset, tmp_path / "exported", limit)
    return done, open_dataset(str(done.folder), cache_dir=tmp_path / "cache")


def documents_of(dataset):
    corpus = dataset.corpus
    columns = (corpus.ids, corpus.titles, corpus.texts)
    ids, titles, texts = (column.to_pylist() for column in columns)
    return dict(zip(ids, zip(titles, texts, strict=True), strict=True))


def test_an_exported_collection_has_the_same_content_and_says_that_it_is_a_copy(dataset, tmp_path):
    done, again = exported(dataset, tmp_path)
    assert documents_of(again) == DOCUMENTS
    assert dict(zip(again.queries.ids, again.queries.texts, strict=True)) == JUDGED
    assert {(query, doc): grade for query, doc, grade in again.qrels} == QRELS
    assert again.name == "copy-of-tiny"
    assert (again.facts.exclude_self, again.facts.depth) == (True, 7)
    assert (done.documents, done.queries) == (len(DOCUMENTS), len(JUDGED))


def test_a_limit_keeps_the_first_documents_and_what_they_answer(dataset, tmp_path):
    done, again = exported(dataset, tmp_path, limit=2)
    assert list(documents_of(again)) == list(DOCUMENTS)[:2]
    assert again.queries.ids == ("q1",)
    assert {(query, doc): grade for query, doc, grade in again.qrels} == {
        ("q1", "d1"): 2,
        ("q1", "d2"): 1,
    }
    assert (done.documents, done.queries) == (2, 1)


def test_a_limit_that_leaves_no_query_is_refused(tmp_path):
    folder = write_collection(tmp_path / "tiny", qrels={("q2", "d9"): 1})
    dataset = open_dataset(str(folder), cache_dir=tmp_path / "cache")
    with pytest.raises(BenchError, match="the first 1 documents of tiny answer no query"):
        export(dataset, tmp_path / "exported", limit=1)


def test_a_process_is_timed_and_its_memory_watched():
    code = "import time; x = bytearray(200_000_000); time.sleep(.3); print('{\"a\": 1}')"
    done = run_process([sys.executable, "-c", code], 1, "it")
    assert done.seconds > 0.3
    assert 200_000_000 < done.peak_bytes < 300_000_000
    assert last_line(done.stdout, "it") == {"a": 1}


def test_the_processor_time_of_a_process_is_its_own_and_its_childrens():
    work = "import time\nwhile time.process_time() < 0.4: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    for code in (work, child):
        assert 0.4 <= run_process([sys.executable, "-c", code], 1, "it").processor_s < 4
    idle = run_process([sys.executable, "-c", "import time; time.sleep(1)"], 1, "it")
    assert idle.processor_s < 0.5 < idle.seconds


def test_a_process_gets_its_threads_and_no_hub():
    code = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['HF_HUB_OFFLINE'])"
    assert run_process([sys.executable, "-c", code], 3, "it").stdout.split() == ["3", "1"]


def test_a_process_that_fails_is_an_error_with_its_last_words():
    code = "import sys; print('first', file=sys.stderr); sys.exit('it broke')"
    with pytest.raises(BenchError, match="beir failed: it broke") as caught:
        run_process([sys.executable, "-c", code], 1, "beir")
    assert "first" in caught.value.hint


@pytest.mark.parametrize("stdout", ["", "no JSON\n"])
def test_a_peer_without_a_result_is_an_error(stdout):
    with pytest.raises(BenchError, match="mteb gave no result"):
        last_line(stdout, "mteb")


def runs(tool, seconds, scores):
    return [
        RaceEvaluation(tool, "1", score, FinishedProcess(took, 2 * took, int(1e9 * took), ""))
        for took, score in zip(seconds, scores, strict=True)
    ]


def raced(*tools):
    return judged("x", Exported(None, 10, 2), None, {str(i): own for i, own in enumerate(tools)})


def test_the_ratio_is_that_of_the_fastest_other_tool():
    race = raced(
        runs("bench", [1, 2, 3], [0.5] * 3),
        runs("a", [4, 4, 4], [0.5003] * 3),
        runs("b", [8, 8, 8], [0.5] * 3),
    )
    assert race.agree
    assert [run.ratio for run in race.runs] == [None, 0.5, 0.25]
    assert race.ratio == 0.5
    assert race.runs[0].wall_s.median == 2
    assert race.runs[0].processor_s.median == 4
    assert [run.processor_ratio for run in race.runs] == [None, 0.5, 0.25]
    assert race.runs[0].peak_bytes == 3_000_000_000


@pytest.mark.parametrize("off", [TOLERANCE * 1.01, -TOLERANCE * 1.01, 0.1, np.nan])
def test_there_is_no_ratio_where_a_score_differs_in_any_round(off):
    race = raced(
        runs("bench", [1, 1], [0.5, 0.5]),
        runs("a", [2, 2], [0.5, 0.5]),
        runs("b", [2, 2], [0.5, 0.5 + off]),
    )
    assert not race.agree
    assert race.ratio is None
    assert [run.ratio for run in race.runs] == [None] * 3


def test_alone_there_is_nobody_to_compare_with():
    race = raced(runs("bench", [1], [0.5]))
    assert race.agree
    assert race.ratio is None
    assert msgspec.json.decode(msgspec.json.encode(race), type=type(race)) == race
