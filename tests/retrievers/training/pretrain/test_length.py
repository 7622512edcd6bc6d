"""As many tokens for every objective, whatever it makes of a text."""

import pytest

from bench.experiments.grid import merged
from retrievers.training.engine.curve import read_curve
from retrievers.training.pretrain.preset import changed
from retrievers.training.pretrain.pretrain import pretrain
from tests.support import small_starts as small
from tests.support.small_starts import on_cpu

# Of one to six sentences: coCondenser and CoT-MAE read two spans of each, of up to 14 tokens.
TEXTS = [" ".join(small.texts()[n : n + 1 + n % 6]) for n in range(34)]
OBJECTIVES = [
    {"name": "mlm"},
    {"name": "retromae"},
    {"name": "condenser"},
    {"name": "cocondenser"},
    {"name": "cotmae"},
    {"name": "simcse"},
]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return small.write_start(tmp_path_factory.mktemp("start") / "bert", small.texts())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective["name"])
def test_every_objective_reads_the_tokens_that_are_asked_for(start, tmp_path, objective):
    preset = small.preset(start, objective=objective, steps=None, tokens=4_000)
    trained = pretrain(preset, TEXTS, on_cpu(tmp_path))
    read = sum(point.tokens for point in read_curve(tmp_path / "losses.jsonl"))
    a_step = read / trained.steps
    assert abs(read - 4_000) < a_step + 0.03 * 4_000


def test_equal_steps_are_not_equal_tokens(start, tmp_path):
    """Why tokens are asked for: coCondenser reads two spans of a text where others read one."""
    read = {}
    for name in ("condenser", "cocondenser"):
        pretrain(small.preset(start, objective={"name": name}), TEXTS, on_cpu(tmp_path / name))
        curve = read_curve(tmp_path / name / "losses.jsonl")
        read[name] = sum(point.tokens for point in curve)
    assert read["cocondenser"] > 1.3 * read["condenser"]


def test_one_length_takes_the_place_of_the_others(start):
    preset = changed(small.preset(start), {"tokens": 500}, "test")
    assert (preset.steps, preset.epochs, preset.tokens) == (None, None, 500)
    assert changed(preset, {"epochs": 2}, "test").tokens is None
    table = merged({"steps": None, "epochs": 8.0, "tokens": None}, {"tokens": 500})
    assert table == {"steps": None, "epochs": None, "tokens": 500}
