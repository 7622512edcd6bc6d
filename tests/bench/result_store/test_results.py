"""Records of evaluations: what is written is what is read, or it is refused."""

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation import pipeline
from bench.evaluation.pipeline import current_conditions
from bench.evaluation.result_record import (
    RUN_FILE,
    SCHEMA,
    SCORES_FILE,
    Evaluation,
    Result,
    Timings,
)
from bench.evaluation.run_files import encode_columnar
from bench.evaluation.runs import Run
from bench.evaluation.scoring import Scores
from bench.result_store.find import choose_results
from bench.result_store.result import RESULT_FILE, load, save
from foundation.errors import BenchError
from retrievers.models.checkpoint import Parameters
from tests.support import results as records
from tests.support.examples import with_examples
from tests.support.results import CONDITIONS, PROTOCOL

VALUES = {"nDCG@10": np.array([1 / 3, 0.1 + 0.2]), "R@100": np.array([1.0, 0.1])}
RESULT = msgspec.structs.replace(
    records.RESULT,
    measures={name: float(values.mean()) for name, values in VALUES.items()},
    tie_low=0.25,
    tie_high=0.5,
    preflight={"warnings": ["é"]},
    timings=Timings(search_s=0.5),
    parameters=Parameters(12, 3),
)
RUN = Run.from_rows(["q1", "q1", "q2"], ["d1", "d2", "d1"], [0.1, 2.5, -1.0])
SCORES = Scores(("q1", "q2"), VALUES, 0, 0)


def changed(**fields) -> Result:
    return msgspec.structs.replace(RESULT, **fields)


def saved(result: Result, out: Path) -> Path:
    """Folder of the result, with these values of queries or one that fits."""
    return save(Evaluation(result, SCORES, RUN), out).folder


def with_protocol(**fields) -> Result:
    return changed(protocol=msgspec.structs.replace(PROTOCOL, **fields))


def test_a_result_is_read_as_it_was_saved(tmp_path):
    stored = save(Evaluation(RESULT, SCORES, RUN), tmp_path)
    folder, result = stored.folder, stored.record
    assert load(folder).record == load(folder / RESULT_FILE).record == result
    assert msgspec.structs.replace(result, per_query_sha256="", run_sha256="") == RESULT
    assert (
        result.per_query_sha256 == hashlib.sha256((folder / SCORES_FILE).read_bytes()).hexdigest()
    )
    assert result.run_sha256 == hashlib.sha256((folder / RUN_FILE).read_bytes()).hexdigest()
    assert folder == tmp_path / "beir" / "tiny" / "words" / RESULT.key
    assert {path.name for path in folder.iterdir()} == {RESULT_FILE, SCORES_FILE, RUN_FILE}


@with_examples(15)
@given(values=st.lists(st.floats(0, 1, width=64), min_size=1))
def test_values_of_queries_are_read_bit_for_bit(values, tmp_path_factory):
    written = np.array(values)
    ids = tuple(f"q{n} é" for n in range(len(values)))
    scores = Scores(ids, {"nDCG@10": written, "AP(rel=2)": written[::-1]}, 0, 0)
    means = {name: scores.mean(name) for name in scores.values}
    result = changed(measures=means, queries=len(ids), tie_low=None)
    stored = save(Evaluation(result, scores, RUN), tmp_path_factory.mktemp("out"))
    scores = load(stored.folder).scores
    read_ids, read = scores.query_ids, scores.values
    assert read_ids == ids
    assert list(read) == ["nDCG@10", "AP(rel=2)"]
    assert read["nDCG@10"].tobytes() == written.tobytes()
    assert read["AP(rel=2)"].tobytes() == written[::-1].tobytes()


@pytest.mark.parametrize(
    ("schema", "said", "hint"),
    [
        (SCHEMA + 1, f"has schema {SCHEMA + 1}, and this version reads {SCHEMA}", ""),
        (3, RESULT_FILE, "Run `python -m bench run beir/tiny --model words`, or"),
    ],
)
def test_another_schema_is_refused_whatever_its_fields_are(tmp_path, schema, said, hint):
    path = saved(RESULT, tmp_path) / RESULT_FILE
    record = json.loads(path.read_bytes())
    del record["run_sha256"], record["conditions"]["program"]
    path.write_text(json.dumps({**record, "schema": schema, "of_the_future": 1}))
    with pytest.raises(BenchError, match=re.escape(said)) as error:
        load(path)
    assert hint in error.value.hint


SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "a field too many": lambda content: content.replace(b'"schema"', b'"extra": 1, "schema"'),
    "a field too few": lambda content: content.replace(b'"main_measure": "nDCG@10",', b""),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_damaged_record_is_refused_by_name(how, tmp_path):
    path = saved(RESULT, tmp_path) / RESULT_FILE
    content = path.read_bytes()
    path.write_bytes(SPOILED[how](content))
    assert path.read_bytes() != content
    with pytest.raises(BenchError, match=re.escape(str(path))) as error:
        load(path)
    assert "Evaluate again" in error.value.hint


def test_the_same_evaluation_at_another_time_has_the_same_key():
    later = msgspec.structs.replace(CONDITIONS, time="2026-02-01T00:00:00+00:00", threads=64)
    again = changed(conditions=later, timings=Timings(search_s=9.0), measures={"nDCG@10": 0.3})
    assert again.key == RESULT.key
    assert len(RESULT.key) == 12
    assert int(RESULT.key, 16) >= 0


def test_fingerprint_index_and_each_part_of_the_protocol_change_the_key():
    def other(value):
        return {
            type(None): lambda: False,
            bool: lambda: not value,
            int: lambda: value + 1,
            str: lambda: value + "x",
        }[type(value)]()

    fields = msgspec.structs.asdict(PROTOCOL)
    variants = [with_protocol(**{name: other(value)}) for name, value in fields.items()]
    variants += [changed(fingerprint="0" * 64), changed(index="HNSW32"), RESULT]
    assert len({result.key for result in variants}) == len(variants) == len(fields) + 3


def test_results_with_token_ids_of_different_library_versions_are_not_mixed():
    results = [
        Evaluation(
            changed(
                protocol=msgspec.structs.replace(PROTOCOL, collection=name),
                tokens_sha256=digit * 64,
            ),
            SCORES,
            folder=Path(name),
        )
        for name, digit in (("one", "1"), ("two", "2"))
    ]
    with pytest.raises(BenchError, match="which differ in tokens:") as refused:
        choose_results("words", results)
    assert f"'words@tokens={'1' * 12}' or 'words@tokens={'2' * 12}'" in refused.value.hint
    assert choose_results("words", results, on=["two"]) == {"two": results[1]}


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_ranking_that_is_not_the_one_written_with_its_result_is_refused(damage, tmp_path):
    folder = saved(RESULT, tmp_path)
    other = encode_columnar(Run.from_rows(["q1"], ["d2"], [1.0]))
    (folder / RUN_FILE).write_bytes(other) if damage == "changed" else (folder / RUN_FILE).unlink()
    with pytest.raises(BenchError, match=r"run\.arrow") as error:
        _ = load(folder).run
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        *((name, "cannot name a folder") for name in ("../x", "x/../../y", "/dev/null/x", "..")),
        *((name, "cannot name a folder") for name in ("", ".", "a//b", "a/./b", "a/", "a\x00b")),
        ("two words", "cannot be written to a TREC run file"),
    ],
)
def test_a_name_that_no_folder_or_run_file_may_have_is_refused_before_any_file_is_written(
    name, problem, tmp_path
):
    out = tmp_path / "a" / "b" / "out"
    with pytest.raises(BenchError, match=problem):
        save(Evaluation(changed(model=name), SCORES, RUN), out)
    if name != "two words":
        with pytest.raises(BenchError, match=problem):
            save(Evaluation(with_protocol(collection=name), SCORES, RUN), out)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_write_that_fails_leaves_the_earlier_evaluation_whole(failing, tmp_path, monkeypatch):
    content = {path.name: path.read_bytes() for path in saved(RESULT, tmp_path).iterdir()}
    real, calls = os.fsync, []

    def fails_once(handle):
        calls.append(handle)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr("foundation.files.os.fsync", fails_once)
    with pytest.raises((OSError, BenchError), match="No space left"):
        save(Evaluation(changed(preflight={}), SCORES, Run.from_rows("q", "d", [0.0])), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*.*")} == content


def test_conditions_record_machine_and_versions():
    found = current_conditions("cpu")
    assert (found.device, found.search_device) == ("cpu", "cpu")
    assert found.time.endswith("+00:00")
    assert found.libraries["numpy"] == np.__version__
    assert all(found.libraries.values())
    assert found.python.startswith("3.")
    assert found.machine
    assert found.bench


THREADS = """
import sys
from bench.evaluation.pipeline import current_conditions
threads = current_conditions("cpu").threads
assert not {"torch", "faiss"} & {*threads, *sys.modules}, threads
assert (threads["search"], threads["openblas"]) == (3, 1), threads
"""


@pytest.mark.slow
def test_threads_are_those_of_each_loaded_library(monkeypatch):
    """A library that is not needed is not imported for it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    subprocess.run([sys.executable, "-c", THREADS], check=True)
    threads = current_conditions("cpu").threads
    assert threads["search"] == 3
    assert threads["torch"] == torch.get_num_threads()
    assert threads["faiss"] == faiss.omp_get_max_threads()


def test_threads_of_older_records_are_cores():
    assert CONDITIONS.shown_threads == "2 cores available"
    one, several = {"search": 1, "torch": 1}, {"search": 4, "torch": 1}
    shown = [msgspec.structs.replace(CONDITIONS, threads=each) for each in (one, several)]
    assert [each.shown_threads for each in shown] == ["1 thread", "threads: search 4, torch 1"]


def test_conditions_name_the_commit_and_whether_code_differs_from_it(tmp_path, monkeypatch):
    """A git repository that the code believes to be its own; other new files do not matter."""

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, "-c", "commit.gpgsign=false", *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    (tmp_path / "file").write_text("as committed")
    for words in (["init"], ["add", "file"], ["commit", "-m", "first"]):
        git(*words)
    monkeypatch.setattr(pipeline, "ROOT", tmp_path)
    monkeypatch.setattr(pipeline, "loaded_files", lambda: ("mine.py",))
    folder = tmp_path / "retrievers" / "training" / "objectives"
    folder.mkdir(parents=True)
    (tmp_path / "bench").mkdir()
    (tmp_path / "untracked").write_text("")
    for is_new in (False, True):
        pipeline._run_git.cache_clear()
        found = current_conditions("cpu")
        assert (found.commit, found.dirty) == (git("rev-parse", "HEAD"), is_new)
        assert found.own_code == ("mine.py",)
        (folder / "mine.py").write_text("")
    pipeline._run_git.cache_clear()


def test_a_concurrent_reader_sees_the_old_result_or_the_new_one(tmp_path):
    fewer = changed(measures={"nDCG@10": RESULT.measures["nDCG@10"]})
    variants = [
        (RESULT, SCORES),
        (fewer, Scores(SCORES.query_ids, {"nDCG@10": VALUES["nDCG@10"]}, 0, 0)),
    ]
    folder = saved(RESULT, tmp_path)
    with ThreadPoolExecutor(1) as writer:
        for turn in range(15):
            result, scores = variants[turn % 2]
            writing = writer.submit(save, Evaluation(result, scores, RUN), tmp_path)
            while not writing.done():
                stored = load(folder)
                assert set(stored.scores.values) == set(stored.record.measures)
