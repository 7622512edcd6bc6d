"""Wrong tables and records are described in words, with the value that was found."""

from typing import Annotated, Literal

import msgspec
import pytest

from foundation.errors import BenchError
from foundation.records import Name, Record, convert_table, decode_json, decode_toml

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
    by_name: dict[str, Optimizer] = {}


@pytest.mark.parametrize(
    ("table", "message", "hint"),
    [
        ({"stepz": 1}, "unknown field 'stepz'", "did you mean steps?"),
        ({"lr": 1.0}, "unknown field 'lr'", "did you mean optimizer.lr?"),
        ({"zzz": 1}, "unknown field 'zzz'", "known fields: by_name, flag, items, name"),
        ({"optimizer": {"lrr": 1}}, "unknown field 'lrr' in optimizer", "did you mean lr?"),
        ({"items": [{"field": "f", "value": []}]}, "'value' in items.0", "did you mean values?"),
        ({"items": [{}]}, "the field 'field' is missing in items.0", ""),
        ({"items": [{"field": "bad"}]}, "items.0: bad is not a field", ""),
        ({"items": {"field": "f"}}, "items is a table: expected list", "[[items]]"),
        (
            {"items": [{"field": "f", "values": []}]},
            "items.0.values is []: expected list of length >= 1",
            "",
        ),
        ({"steps": "x"}, "steps is 'x': expected int", ""),
        ({"flag": 1}, "flag is 1: expected bool", ""),
        ({"steps": True}, "steps is true: expected int", ""),
        ({"steps": "9" * 99}, "99…: expected int", ""),
        ({"optimizer": {"lr": 2}}, "optimizer.lr is 2: expected float <= 1.0", ""),
        ({"optimizer": {"lr": 0}}, "optimizer.lr is 0: expected float > 0.0", ""),
        ({"optimizer": {"algorithm": "adm"}}, "optimizer.algorithm is 'adm'", "did you mean adam"),
        ({"optimizer": {"algorithm": "x"}}, "algorithm is 'x'", "use one of 'adam', 'adamw'"),
        ({"schedule": {"kind": "cosine", "bias": True}}, "'bias' in schedule", "fields: cycles"),
        ({"schedule": {"kind": "cosin"}}, "schedule.kind is 'cosin'", "did you mean cosine?"),
        ({"by_name": {"a": {"lrr": 1}}}, "unknown field 'lrr' in by_name.a", "did you mean lr?"),
        (
            {"by_name": {"a": {"lr": 9}, "b": {}}},
            "by_name.NAME.lr: expected float <= 1.0",
            "",
        ),
        ({"name": "a b"}, "name is 'a b': expected str matching regex", ""),
    ],
)
def test_a_wrong_table_is_described_in_words(table, message, hint):
    for read in (
        lambda: convert_table(table, Settings, "mine.toml"),
        lambda: decode_json(msgspec.json.encode(table), Settings, "mine.toml"),
    ):
        with pytest.raises(BenchError) as caught:
            read()
        assert str(caught.value).startswith("mine.toml: ")
        assert message in str(caught.value)
        assert hint in caught.value.hint
        assert "Expected" not in str(caught.value)
        assert "`" not in str(caught.value)


def test_content_that_is_not_a_table_at_all_is_described():
    with pytest.raises(BenchError, match=r"the content is \[\]: expected table"):
        decode_json(b"[]", Settings, "mine.json")
    with pytest.raises(BenchError, match="the content is 3: expected table"):
        decode_json(b"3", Settings, "mine.json")
    with pytest.raises(BenchError, match="the content: expected table"):
        decode_json(b"[" * 5_000 + b"]" * 5_000, Settings, "mine.json")
    with pytest.raises(BenchError, match="steps is 'x': expected int"):
        decode_toml(b"steps = 'x'", Settings, "mine.toml")
