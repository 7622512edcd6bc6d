"""Factors of a grid: cells, effects against brute force and least squares, and what is refused."""

import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bench.experiments.experiment import plan_experiment, run_experiment
from bench.experiments.grid import FILES, REFERENCE, Axis, AxisResult, make_rows
from bench.experiments.report import CheckpointScores, estimate_effects, make_report
from bench.experiments.report_record import MEAN
from bench.experiments.seed_statistics import estimate_interval
from foundation.errors import BenchError
from reports.experiment import effect_table, report_markdown
from reports.latex import report_latex
from tests.support.examples import with_examples
from tests.support.experiments import FAKES, read_scores, run_stages_in_this_process
from tests.support.markdown import rows_of
from tests.support.results import CONDITIONS

FACTORS = """
name = "crossed"
seeds = [0, 1, 2]

[pretrain]
steps = 10

[finetune]
steps = 10

[evaluate]
on = ["a", "b"]

[factors]
pretrain.objective = ["mlm", "retromae"]
finetune.lr = [0.1, 0.2, 0.4]
"""


def make(text):
    return make_rows(
        FILES.parse(text.encode(), "grid.toml"),
        lambda name, table: FAKES[name].resolve_settings(table),
    )


def test_every_combination_of_levels_is_a_row_and_the_first_is_the_reference():
    rows, (cells,) = make(FACTORS)
    assert [row.name for row in rows] == [
        REFERENCE,
        "pretrain.objective=mlm, finetune.lr=0.2",
        "pretrain.objective=mlm, finetune.lr=0.4",
        "pretrain.objective=retromae, finetune.lr=0.1",
        "pretrain.objective=retromae, finetune.lr=0.2",
        "pretrain.objective=retromae, finetune.lr=0.4",
    ]
    levels = [
        (row.settings["pretrain"]["objective"]["name"], row.settings["finetune"]["lr"])
        for row in rows
    ]
    assert levels == list(itertools.product(["mlm", "retromae"], [0.1, 0.2, 0.4]))
    assert list(cells.points.values()) == [row.name for row in rows]
    assert rows[-1].change == "pretrain.objective: mlm -> retromae; finetune.lr: 0.1 -> 0.4"


def test_the_last_part_of_a_name_is_enough_where_one_field_has_it():
    tables = {
        "pretrain": {"objective": {"name": "mlm"}, "lr": 1},
        "finetune": {"optimizer": {"lr": 2}},
        "evaluate": {"on": ["c"]},
    }

    def factors(names):
        text = "name = 'n'\n" + "".join(f"[{stage}]\nx = 1\n" for stage in tables)
        grid = FILES.parse(f"{text}[factors]\n{names}".encode(), "")
        return make_rows(grid, lambda stage, table: tables[stage] | ({} if "x" in table else table))

    _, (cells,) = factors('objective = ["mlm", "retromae"]\noptimizer.lr = [1, 2]')
    assert [each.field for each in cells.factors] == [
        "pretrain.objective",
        "finetune.optimizer.lr",
    ]
    with pytest.raises(BenchError) as caught:
        factors("lr = [1, 2]")
    assert "lr is one of pretrain.lr, finetune.optimizer.lr" in str(caught.value)
    assert caught.value.hint == "Write pretrain.lr or finetune.optimizer.lr."


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("finetune.lr", "finetune.lrr", "finetune.lrr is not a field of this grid (Did you mean"),
        ("[0.1, 0.2, 0.4]", "[0.1]", "the factor finetune.lr has no levels to compare: 0.1"),
        ("[0.1, 0.2, 0.4]", "0.1", "the factor finetune.lr has no levels to compare: 0.1"),
        ("[0.1, 0.2, 0.4]", "[0.1, 0.1]", "finetune.lr has one of 0.1 twice"),
        ("[0.1, 0.2, 0.4]", "[1, 1.0]", "is the same recipe as"),
        ("[0.1, 0.2, 0.4]", '[0.1, "x"]', "finetune.lr=x: [finetune]: Expected `float`"),
        ("[finetune]\n", "[finetune]\nlr = 0.1\n", "also set in [finetune]: 0.1 (Remove it there"),
        ("finetune.lr", "finetune.seed", "finetune.seed is the same for all rows"),
        ("finetune.lr = [0.1, 0.2, 0.4]", 'evaluate.on = [["a", "b"], ["a"]]', "same for all rows"),
        ("finetune.lr", '"pretrain.objective.name"', "both change pretrain.objective.name"),
        ("[0.1, 0.2, 0.4]", str([each / 8 for each in range(129)]), "258 cells, and a grid has"),
        ("[factors]", "[factor]", "Did you mean factors"),
        (FACTORS.partition("[factors]")[2], "", "set [factors] or [[axes]]"),
    ],
)
def test_a_mistake_in_factors_is_refused(old, new, words):
    assert old in FACTORS
    with pytest.raises(BenchError) as caught:
        make(FACTORS.replace(old, new))
    assert words in f"{caught.value} ({caught.value.hint})"


def test_a_cell_that_an_axis_gives_again_is_refused():
    again = '[[axes]]\nfield = "finetune.lr"\nvalues = [0.2]\n'
    with pytest.raises(BenchError, match=r"lr=0.2 is the same recipe as pretrain.objective=mlm"):
        make(FACTORS + again)


def cells_of(values):
    """Return a design and its scores from ``(levels of each factor, seeds, queries)``."""
    counts = values.shape[:-2]
    factors = tuple(
        Axis(field=f"finetune.f{number}", values=tuple(range(count)))
        for number, count in enumerate(counts)
    )
    names = {", ".join(map(str, at)): f"row {at}" for at in itertools.product(*map(range, counts))}
    scores = {
        f"row {at}": {
            seed: {"c": CheckpointScores("nDCG@10", row)} for seed, row in enumerate(values[at])
        }
        for at in itertools.product(*map(range, counts))
    }
    return AxisResult(title="f", field="f", points=names, factors=factors), scores


@with_examples(20)
@given(
    st.lists(st.integers(2, 3), min_size=1, max_size=3), st.integers(2, 4), st.integers(0, 2**31)
)
def test_effects_are_differences_of_means_and_differences_of_differences(counts, seeds, number):
    values = np.random.default_rng(number).random((*counts, seeds, 12))
    effects = {each.change: each for each in estimate_effects(*cells_of(values), {})}
    expected = {}
    for one, count in enumerate(counts):
        of_levels = np.moveaxis(values, one, 0).reshape(count, -1, seeds, 12).mean(axis=1)
        for level in range(1, count):
            expected[f"f{one}: 0 -> {level}"] = of_levels[level] - of_levels[0]
    for one, other in itertools.combinations(range(len(counts)), 2):
        crossed = np.moveaxis(values, (one, other), (0, 1))
        crossed = crossed.reshape(counts[one], counts[other], -1, seeds, 12).mean(axis=2)
        for a, b in itertools.product(range(1, counts[one]), range(1, counts[other])):
            difference = (crossed[a, b] - crossed[0, b]) - (crossed[a, 0] - crossed[0, 0])
            expected[f"f{one}: 0 -> {a} x f{other}: 0 -> {b}"] = difference
    assert list(effects) == list(expected)
    for change, part in expected.items():
        found, by_hand = effects[change].on[0].difference, estimate_interval([part])
        for name in ("value", "low", "high", "p", "p_seeds", "detectable"):
            assert getattr(found, name) == pytest.approx(
                getattr(by_hand, name), rel=1e-9, abs=1e-12
            )
        assert found.p_seeds == pytest.approx(stats.ttest_1samp(part.mean(axis=1), 0).pvalue)


@pytest.mark.parametrize("planted", [0.0, 0.15])
def test_a_planted_interaction_is_found_and_an_additive_design_has_none(planted):
    rng = np.random.default_rng(3)
    values = 0.4 + rng.normal(0, 0.1, 200) + rng.normal(0, 0.01, (2, 2, 4, 200))
    values[1] += 0.05
    values[:, 1] += 0.1
    values[1, 1] += planted
    a, b, both = estimate_effects(*cells_of(values), {})
    # least squares with effect coding: half of each effect, a quarter of the interaction
    codes = np.array([[1, x, y, x * y] for x in (-1, 1) for y in (-1, 1)])
    fitted = np.linalg.lstsq(codes, values.mean(axis=(2, 3)).ravel(), rcond=None)[0]
    estimates = [each.on[0].difference.value for each in (a, b, both)]
    assert estimates == pytest.approx([2 * fitted[1], 2 * fitted[2], 4 * fitted[3]])
    assert estimates == pytest.approx([0.05 + planted / 2, 0.1 + planted / 2, planted], abs=0.005)
    assert [each.on[0].verdict for each in (a, b)] == ["better", "better"]
    assert both.on[0].verdict == ("better" if planted else "cannot tell")
    assert (a.on[0].score is None, both.on[0].score is None) == (False, True)


@pytest.fixture
def report_of(tmp_path: Path, monkeypatch):
    run_stages_in_this_process(monkeypatch)

    def run(seeds):
        grid = msgspec.structs.replace(FILES.parse(FACTORS.encode(), ""), seeds=seeds)
        plan = plan_experiment(grid, FAKES)
        outcome = run_experiment(plan, tmp_path, lambda _: None)
        return make_report(plan, outcome, read_scores(tmp_path), "", CONDITIONS)

    return run


def test_the_report_has_a_table_of_effects_for_each_collection_and_their_mean(report_of):
    report = report_of((0, 1, 2))
    for name in ("a", "b", MEAN):
        rows = rows_of(effect_table(report, name))
        assert [row["effect"] for row in rows] == ["main"] * 3 + ["interaction"] * 2
        # FakeStage adds 10 steps x lr for fine-tuning, whatever the objective
        assert [row["difference"] for row in rows[:3]] == ["+0.0000", "+1.0000", "+3.0000"]
        assert [row["difference"] for row in rows[3:]] == ["+0.0000", "+0.0000"]
    assert r"\label{tab:crossed-effects}" in report_latex(report)
    decoded = msgspec.json.decode(msgspec.json.encode(report), type=type(report))
    assert decoded.effects == report.effects


@pytest.mark.parametrize(
    ("seeds", "words"),
    [((0,), "One seed"), ((0, 1), "Two seeds cannot show"), ((0, 1, 2), "4.3 of their standard")],
)
def test_the_report_says_what_few_seeds_cannot_show(report_of, seeds, words):
    text = report_markdown(report_of(seeds))
    assert words in text
    assert ("Two seeds cannot show" in text) == (len(seeds) == 2)


def test_the_report_says_that_an_interaction_of_three_factors_is_not_shown(report_of):
    two = report_of((0, 1))
    third = msgspec.structs.replace(two.axes[0].factors[0], name="third")
    (axis,) = two.axes
    three = msgspec.structs.replace(axis, factors=(*axis.factors, third))
    report = msgspec.structs.replace(two, axes=(three,))
    for write in (report_markdown, report_latex):
        assert "three or more factors" in write(report)
        assert "three or more factors" not in write(two)


def test_effects_wait_for_a_seed_that_all_cells_have(tmp_path, monkeypatch):
    run_stages_in_this_process(monkeypatch)
    plan = plan_experiment(
        FILES.parse(FACTORS.encode(), ""),
        FAKES | {"finetune": type(FAKES["finetune"])("finetune", fails_at=0.4)},
    )
    outcome = run_experiment(plan, tmp_path, lambda _: None)
    report = make_report(plan, outcome, read_scores(tmp_path), "", CONDITIONS)
    assert {each.on for each in report.effects} == {()}
    assert {row["difference"] for row in rows_of(effect_table(report, MEAN))} == {"gap"}
