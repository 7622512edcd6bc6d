"""The ledger: whole after every write, the same after a restart, for one process at a time."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.monitor.ledger import Broken, Evaluated, Ledger, Line, has_result, read_ledger
from foundation.errors import BenchError
from tests.support.leaderboards import protocol_of

PROTOCOL = protocol_of("tiny")


def line(checkpoint: str = "checkpoint-5", **changes) -> Evaluated:
    fields = {
        "step": 5,
        "files_sha256": "f" * 64,
        "settings": "s" * 64,
        "fingerprint": "a" * 64,
        "protocol": PROTOCOL,
        "measure": "nDCG@10",
        "value": 0.1 + 0.2,
        "result": "/nowhere",
        "time": "2026-01-01T00:00:00+00:00",
    }
    return Evaluated(checkpoint=checkpoint, **{**fields, **changes})


def broken(checkpoint: str = "checkpoint-5", why: str = "cut off", step: int = 5) -> Broken:
    return Broken(checkpoint=checkpoint, step=step, why=why, time="2026-01-01T00:00:00+00:00")


def test_lines_are_there_after_a_restart_nothing_rounded(tmp_path):
    path = tmp_path / "new" / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.add(line())
        ledger.add(broken("checkpoint-10"))
    assert len(path.read_text().splitlines()) == 2
    with Ledger(path) as ledger:
        assert ledger.lines == (line(), broken("checkpoint-10"))


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
lines = st.lists(
    st.one_of(
        st.builds(line, names, value=st.floats(0, 1), step=st.integers(0, 10**9)),
        st.builds(broken, names, names, st.integers(0, 10**9)),
    ),
    max_size=8,
)


@given(lines)
def test_any_name_is_read_as_it_was_written(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    path.write_bytes(msgspec.json.Encoder().encode_lines(written))
    assert read_ledger(path) == tuple(written)


def test_two_processes_do_not_write_one_ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path), pytest.raises(BenchError, match="another watch"):
        Ledger(path)
    with Ledger(path):
        pass


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"kind": "evaluated"}', '{"kind": "other"}', "[" * 99_999]
)
def test_a_damaged_line_is_named(tmp_path, damage):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(msgspec.json.encode(broken()) + b"\n" + damage.encode() + b"\n")
    with pytest.raises(BenchError, match=r"ledger\.jsonl, line 2") as error:
        Ledger(path)
    assert "remove that line" in error.value.hint


def test_the_same_trouble_is_written_once_and_again_after_something_else(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        for one in (broken(), broken(), broken("other"), broken(), broken(why="no tokenizer")):
            ledger.add(one)
        ledger.add(broken())
        told = [(one.checkpoint, one.why) for one in ledger.lines if isinstance(one, Line)]
    assert told == [
        ("checkpoint-5", "cut off"),
        ("other", "cut off"),
        ("checkpoint-5", "no tokenizer"),
        ("checkpoint-5", "cut off"),
    ]


def test_an_evaluation_is_known_only_while_its_result_is_there(tmp_path):
    kept = line(result=str(tmp_path))
    asked = (kept.checkpoint, kept.fingerprint, kept.protocol, kept.measure)
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.add(kept)
        assert not has_result(kept)
        assert ledger.find(*asked) is None
        (tmp_path / "result.json").write_text("{}")
        assert ledger.find(*asked) == kept
        assert ledger.find("checkpoint-6", *asked[1:]) is None
        assert ledger.find(asked[0], "b" * 64, *asked[2:]) is None
        assert ledger.find(*asked[:3], "R@100") is None


def test_the_files_of_a_checkpoint_are_those_evaluated_last(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        assert ledger.files_of("checkpoint-5") == ""
        ledger.add(line(files_sha256="1" * 64))
        ledger.add(line(files_sha256="2" * 64))
        ledger.add(broken())
        assert ledger.files_of("checkpoint-5") == "2" * 64
