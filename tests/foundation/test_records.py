"""Strict records: what an invalid one is refused with, named TOML files, and threads."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from foundation.errors import BenchError
from foundation.records import Name, Record, TomlFiles, convert_table, decode_json, decode_toml

ROOT = Path(__file__).parents[2]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Optimizer(Record, kw_only=True):
    lr: Rate = 0.1
    algorithm: Literal["adam", "adamw"] = "adam"


class Linear(Record, tag_field="kind", tag="linear"):
    bias: bool = True


class Cosine(Record, tag_field="kind", tag="cosine"):
    cycles: int = 1


class Item(Record, kw_only=True):
    field: str
    values: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)] = (1,)

    def __post_init__(self) -> None:
        if self.field == "bad":
            raise ValueError("bad is not a field")


class Settings(Record, kw_only=True):
    name: Name = "x"
    steps: int | None = None
    flag: bool = False
    optimizer: Optimizer = Optimizer()
    schedule: Linear | Cosine = Linear()
    items: tuple[Item, ...] = ()
    values: tuple[int, ...] = ()
    by_name: dict[str, Optimizer] = {}
    by_key: dict[Literal["alpha", "beta"], int] = {}

    def __post_init__(self) -> None:
        if self.name == "all":
            raise ValueError("set one of steps and epochs")


@pytest.mark.parametrize(
    ("table", "message", "hint"),
    [
        ({"stepz": 1}, "unknown field 'stepz'", "Did you mean steps?"),
        ({"zzz": 1}, "unknown field 'zzz'", "Use one of the fields by_key, by_name, flag"),
        ({"items": [{"field": "f", "value": []}]}, "'value' in items.0", "Did you mean values?"),
        ({"items": [{}]}, "the field 'field' is missing in items.0", ""),
        ({"items": [{"field": "bad"}]}, "items.0: bad is not a field", ""),
        ({"items": {"field": "f"}}, "items is a table: expected a list", ""),
        ({"steps": "x"}, "steps is 'x': expected a whole number", ""),
        ({"flag": 1}, "flag is 1: expected true or false", ""),
        ({"steps": "9" * 99}, "steps is '999", ""),
        ({"optimizer": {"lr": 2}}, "optimizer.lr is 2: expected a number <= 1.0", ""),
        ({"optimizer": {"algorithm": "adm"}}, "optimizer.algorithm is 'adm'", "Did you mean adam"),
        (
            {"optimizer": {"algorithm": "x"}},
            "algorithm is 'x': unknown value",
            "Use one of 'adam', 'adamw'",
        ),
        ({"schedule": {"kind": "cosine", "bias": True}}, "'bias' in schedule", "the fields cycles"),
        ({"schedule": {"kind": "cosin"}}, "schedule.kind is 'cosin'", "Did you mean cosine?"),
        ({"by_name": {"a": {"lrr": 1}}}, "unknown field 'lrr' in by_name.a", "Did you mean lr?"),
        ({"by_key": {"bta": 1}}, "a key of by_key is 'bta': ", "Did you mean beta?"),
        ({"name": "a b"}, "name is 'a b': expected text matching", ""),
    ],
)
def test_an_invalid_table_is_refused_with_the_field_and_its_value(table, message, hint):
    for read in (
        lambda: convert_table(table, Settings, "mine.toml"),
        lambda: decode_json(msgspec.json.encode(table), Settings, "mine.toml"),
    ):
        with pytest.raises(BenchError) as caught:
            read()
        assert str(caught.value).startswith("mine.toml: ")
        assert message in str(caught.value)
        assert hint in caught.value.hint
        assert "`" not in str(caught.value)
        assert len(str(caught.value)) < 150


def test_a_check_of_a_whole_record_is_reported_in_its_own_words():
    with pytest.raises(BenchError, match=r"^--set: set one of steps and epochs$"):
        convert_table({"name": "all"}, Settings, "--set")


def test_content_that_is_not_a_table_is_refused():
    with pytest.raises(BenchError, match=r"the content is \[\]: expected a table"):
        decode_json(b"[]", Settings, "mine.json")
    with pytest.raises(BenchError, match=r"mine\.json is nested too deeply"):
        decode_json(b"[" * 100_000 + b"]" * 100_000, Settings, "mine.json")
    with pytest.raises(BenchError, match="steps is 'x': expected a whole number"):
        decode_toml(b"steps = 'x'", Settings, "mine.toml")


class Inner(Record, kw_only=True):
    name: str = "a"
    lr: float = 0.1


class Outer(Record, kw_only=True):
    title: str
    inner: Inner = Inner()
    rounds: tuple[Inner, ...] = ()
    steps: int | None = None
    epochs: int | None = None


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "shipped"
    folder.mkdir()
    for name in ("fast", "slow"):
        (folder / f"{name}.toml").write_text(f'title = "{name}"\nsteps = 1\n')
    instead_of = {"steps": ("epochs",), "epochs": ("steps",)}
    return TomlFiles("recipe", folder, Outer, instead_of=instead_of)


def test_a_name_finds_a_shipped_file_and_a_path_a_user_file(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert files.names() == ("fast", "slow")
    assert files.load("fast") == files.load("fast.toml") == Outer(title="fast", steps=1)
    (tmp_path / "fast.toml").write_text('title = "mine"')
    (tmp_path / "fast").write_text('title = "not asked for"')
    (tmp_path / "other.toml").write_text('title = "also mine"')
    assert files.load("fast").title == "fast"
    assert files.load("fast.toml").title == files.load(tmp_path / "fast.toml").title == "mine"
    assert files.load("other.toml").title == "also mine"
    with pytest.raises(BenchError, match=r"there is no recipe or file 'fast\.txt'"):
        files.load((tmp_path / "fast").rename(tmp_path / "fast.txt").name)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("fats", "there is no recipe or file 'fats'", "Did you mean fast?"),
        ("xyz", "there is no recipe or file 'xyz'", "Use one of fast, slow, or a .toml file"),
        ("a/fast", "there is no recipe or file 'a/fast'", "Did you mean fast?"),
        (".", "there is no recipe or file '.'", "Use one of fast"),
    ],
)
def test_an_unknown_name_suggests_what_was_meant(files, name, message, hint):
    with pytest.raises(BenchError, match=message) as caught:
        files.load(name)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    "content",
    [b"= 3", b"\xff", b"title = 3", b"title = 'a'\nrounds = [[[]]]", b"x = " + b"[" * 9999],
)
def test_a_malformed_record_is_refused_with_its_source(files, content):
    with pytest.raises(BenchError, match=r"mine\.toml"):
        files.parse(content, "mine.toml")


def test_fields_are_changed_by_dotted_names(files):
    record = Outer(title="t", rounds=(Inner(), Inner(lr=0.5)), steps=3)
    changes = {"rounds.1.lr": 0.7, "inner.lr": 0.2, "inner.name": "b", "epochs": 2}
    changed = files.changed(record, changes, "typed")
    assert msgspec.to_builtins(changed)["rounds"][1] == {"name": "a", "lr": 0.7}
    assert (changed.inner, changed.steps, changed.epochs) == (Inner(name="b", lr=0.2), None, 2)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("iner.lr", "typed: unknown field 'iner'", "Did you mean inner?"),
        ("rounds.3.lr", "typed: rounds is a table: expected a list", ""),
        ("steps.lr", "typed: steps is a table: expected a whole number", ""),
    ],
)
def test_changing_an_unknown_field_is_refused(files, name, message, hint):
    with pytest.raises(BenchError, match=message) as caught:
        files.changed(Outer(title="t", rounds=(Inner(),)), {name: 1}, "typed")
    assert hint in caught.value.hint


def test_no_change_is_dropped_for_another(files):
    record = Outer(title="t", steps=3)
    both = files.changed(record, {"steps": 1, "epochs": 2}, "typed")
    assert (both.steps, both.epochs) == (1, 2)
    with pytest.raises(BenchError, match=r"both inner and inner\.lr, a field of it, are set"):
        files.changed(record, {"inner.lr": 1.0, "inner": {"name": "b"}}, "typed")


def test_a_table_is_changed_field_by_field_unless_its_name_is_another(files):
    record = Outer(title="t", inner=Inner(name="b", lr=0.2))
    assert files.changed(record, {"inner": {"lr": 0.3}}, "typed").inner == Inner(name="b", lr=0.3)
    assert files.changed(record, {"inner": {"name": "c"}}, "typed").inner == Inner(name="c")


# A type that no thread has decoded yet, in each round. With msgspec 0.22 alone the process ended in
# the first rounds, with SIGSEGV.
DECODES = """
import json, sys, threading
import msgspec
from foundation.records import Record, decode_json

sys.setswitchinterval(1e-6)
DEPTH, THREADS = 12, 8


def nested():
    kind = int
    for level in range(DEPTH):
        others = [(f"other{number}", float | None, None) for number in range(8)]
        kind = msgspec.defstruct(
            f"Level{level}", [("inner", kind), *others], bases=(Record,), frozen=True, kw_only=True
        )
    return kind


value = 7
for _ in range(DEPTH):
    value = {"inner": value}
content = json.dumps(value).encode()
for _ in range(100):
    kind, together, read = nested(), threading.Barrier(THREADS), []

    def decode():
        together.wait()
        read.append(decode_json(content, kind, "it"))

    threads = [threading.Thread(target=decode) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [read[0]] * THREADS
"""


@pytest.mark.slow
def test_threads_that_decode_a_type_for_the_first_time_do_not_end_the_process() -> None:
    subprocess.run([sys.executable, "-c", DECODES], cwd=ROOT, check=True)
