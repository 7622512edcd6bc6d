"""A record that contradicts itself is refused by name, by every command that reads results."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.__main__ import main as command_line
from bench.evaluation.result_record import SCORES_FILE
from bench.requests.outcomes import ExitCode
from bench.result_store.result import RESULT_FILE, load, load_all
from foundation.errors import BenchError
from tests.support.leaderboards import rehash_values, store

IDS = ["q0", "q1", "q2", "q3"]
SCORES = {"nDCG@10": [0.25, 0.5, 0.75, 1.0], "R@100": [1.0, 0.0, 1.0, 0.0]}


@pytest.fixture
def folder(tmp_path):
    return store(tmp_path / "results", "minilm", "beir/scifact", SCORES)


def edit(folder: Path, name: str, value: object) -> None:
    """Change a field of the record, such as ``protocol depth``."""
    *parts, last = name.split()
    record = within = json.loads((folder / RESULT_FILE).read_bytes())
    for part in parts:
        within = within[part]
    within[last] = value
    (folder / RESULT_FILE).write_text(json.dumps(record))


def write_values(folder: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns), folder / SCORES_FILE)


def refusal(folder: Path) -> str:
    with pytest.raises(BenchError) as error:
        load(folder)
    assert str(folder / RESULT_FILE) in str(error.value)
    assert "Evaluate again" in error.value.hint
    return str(error.value)


def test_values_of_queries_that_were_lowered_are_refused(folder):
    write_values(folder, {"query_id": IDS, **SCORES, "nDCG@10": [0.0] * 4})
    assert "per_query.parquet is not the file that was written with it" in refusal(folder)
    rehash_values(folder)
    assert "the mean of nDCG@10 is 0.000000" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("fingerprint", "0" * 64, "fingerprint differs from its recipe's"),
        ("recipe dtype", "float16", "differs from its recipe's"),
        ("protocol depth", 7, "unlike its folder's"),
        ("index", "HNSW32", "unlike its folder's"),
    ],
)
def test_a_record_of_another_recipe_protocol_or_index_than_it_says_is_refused(
    folder, name, value, said
):
    kept = folder.rename(folder.with_name(load(folder).record.key))
    edit(kept, name, value)
    assert said in refusal(kept)


OTHER_QUERIES = {"query_id": IDS[:3], **{name: values[:3] for name, values in SCORES.items()}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"AP": [0.5] * 4}, "has values of"), (OTHER_QUERIES, "3 queries instead of 4")],
)
def test_values_of_other_measures_or_queries_are_refused(folder, changed, said):
    write_values(folder, {"query_id": IDS, **SCORES, **changed})
    rehash_values(folder)
    assert said in refusal(folder)
    (folder / SCORES_FILE).unlink()
    assert "per_query.parquet: No such file" in refusal(folder)


WRONG_MEAN = "the mean of nDCG@10 is 0.625000, and 0.990000 in the record"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("conditions time", "2026-not a time", "time"),
        ("conditions time", "2026-01-01T00:00:00+02:00", "time"),
        ("conditions time", "2026-01-01T00:00:00", "time"),
        ("conditions time", "2999-01-01T00:00:00+00:00", "is in the future"),
        ("measures nDCG@10", 0.99, WRONG_MEAN),
        ("main_measure", "AP", "the main measure AP has no value"),
        ("model", "a\x1b[31mb", "'a\\x1b[31mb' cannot name"),
        ("model", "m" * 300, "cannot name a folder"),
        ("protocol collection", "../up", "'../up' cannot name"),
        ("per_query_sha256", "", "is not the file that was written"),
    ],
)
def test_impossible_values_of_a_record_are_refused(folder, name, value, said):
    edit(folder, name, value)
    assert said in refusal(folder)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"schema": ' + b"9" * 400 + b"}", b"\xff"])
def test_a_file_that_is_not_a_record_is_refused(folder, content):
    (folder / RESULT_FILE).write_bytes(content)
    with pytest.raises(BenchError, match=str(folder)):
        load(folder)


COMMANDS = {
    "leaderboard": ["--results", "{results}"],
    "compare": ["minilm", "bm25", "--results", "{results}"],
    "check": ["hashing", "--baseline", "minilm", "--on", "beir/scifact", "--results", "{results}"],
    "export": ["minilm", "--results", "{results}", "--out", "{new}"],
    "show": ["{folder}"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_such_a_record_by_name_and_writes_nothing(
    command, folder, tmp_path, capsys
):
    edit(folder, "measures nDCG@10", 0.99)
    names = {"{results}": tmp_path / "results", "{new}": tmp_path / "new", "{folder}": folder}
    words = [str(names.get(word, word)) for word in COMMANDS[command]]
    assert command_line([command, *words]) == ExitCode.BAD_INPUT
    said = capsys.readouterr()
    assert said.out == ""
    assert f"error: {folder / RESULT_FILE} contradicts itself" in said.err
    assert not (tmp_path / "new").exists()


def test_equal_ids_of_queries_are_held_once(tmp_path):
    folders = [store(tmp_path, model, "beir/scifact", SCORES) for model in ("minilm", "bm25")]
    ids = [stored.scores.query_ids for stored in load_all([one / RESULT_FILE for one in folders])]
    assert ids[0] is ids[1]
