"""The grid of an ablation: what is read, what is refused, and which rows it makes."""

import pytest

from bench.experiments.experiment import plan_experiment
from bench.experiments.grid import FILES, REFERENCE, make_rows
from foundation.errors import BenchError
from foundation.records import find_differing_keys
from tests.support.experiments import FAKES, GRID


def resolve_settings(name, table):
    return FAKES[name].resolve_settings(table)


def rows(text):
    return make_rows(FILES.parse(text.encode(), "grid.toml"), resolve_settings)


def changed(old, new):
    assert old in GRID
    return GRID.replace(old, new)


def refused(text):
    with pytest.raises(BenchError) as caught:
        rows(text)
    return f"{caught.value} ({caught.value.hint})"


def test_each_value_that_is_not_the_references_is_a_row_with_one_changed_field():
    found, (axis, _) = rows(GRID)
    assert [row.name for row in found] == [REFERENCE, "steps=5", "steps=20", "lr=0.2"]
    for row in found[1:]:
        assert len(find_differing_keys(found[0].settings, row.settings)) == 1
    assert axis.points == {"5": "steps=5", "10": REFERENCE, "20": "steps=20"}


@pytest.mark.parametrize(
    ("axis", "label"),
    [
        ('field = "finetune.lr"\nvalues = [0.2]', "0.1"),
        ('field = "finetune.lr"\nvalues = [0.2]\nlabels = ["high"]', REFERENCE),
        ('field = "pretrain.objective"\nvalues = [{ name = "retromae" }]', REFERENCE),
        ('field = "finetune"\nvalues = [{ steps = 3 }]\nlabels = ["long"]', REFERENCE),
    ],
)
def test_an_axis_begins_with_the_compared_row_if_no_value_is_its_own(axis, label):
    text = GRID.partition("[[axes]]")[0] + f'[[axes]]\nname = "one"\n{axis}\n'
    _, (found,) = rows(text)
    assert next(iter(found.points.items())) == (label, REFERENCE)
    assert len(found.points) == 2


def test_an_axis_can_change_a_field_of_another_row():
    extra = '[[axes]]\nfield = "pretrain.lr"\nname = "rate"\nagainst = "steps=5"\nvalues = [0.5]\n'
    found, _ = rows(GRID + extra)
    settings = next(row.settings for row in found if row.name == "rate=0.5")["pretrain"]
    assert (settings["steps"], settings["lr"]) == (5, 0.5)


def test_a_table_replaces_the_field_as_a_whole_and_is_called_by_its_name():
    text = GRID + '[[axes]]\nfield = "pretrain.objective"\nvalues = [{ name = "retromae" }]\n'
    found, _ = rows(text)
    assert found[-1].name == "objective=retromae"
    assert found[-1].settings["pretrain"]["objective"] == {"name": "retromae"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"pretrain.steps"', '"pretrain.stepz"', "has no field 'stepz' (Did you mean steps?"),
        ('"pretrain.steps"', '"pretrian.steps"', "names no stage"),
        ('"pretrain.steps"', '"pretrain.steps.x"', "which has no field 'x'"),
        ('"pretrain.steps"', '"pretrain"', "names no stage"),
        ("values = [5, 10, 20]", "value = [5]", "Did you mean values"),
        ("values = [5, 10, 20]", "values = [5, 5]", "steps has one of 5 twice"),
        ("values = [5, 10, 20]", 'values = [5, 10, "x"]', "steps=x: [pretrain]: Expected `int`"),
        ('[evaluate]\non = ["c"]', "", "the field 'evaluate' is missing"),
        ("seeds = [0, 1, 2]", "seeds = [0, 0]", "the same seed twice"),
        ("seeds = [0, 1, 2]", "seeds = []", "seeds is []"),
        ("[finetune]\nsteps = 1", "[finetune]\nstep = 1", "unknown field `step`"),
        ("values = [0.2]", "values = [0.1]", "the axis lr does not change"),
        ('name = "steps"', 'name = "../steps"', "name is '../steps': expected text matching"),
        ("seeds =", "model = 'x'\nseeds =", "set either model or [pretrain]"),
        ('title = "How long"', "title =", "is not TOML"),
    ],
)
def test_a_mistake_in_a_grid_is_reported_before_anything_starts(old, new, words):
    assert words in refused(changed(old, new))


def test_two_rows_that_are_the_same_recipe_are_refused():
    back = '[[axes]]\nfield = "finetune.steps"\nvalues = [9]\nname = "a"\n'
    same = '[[axes]]\nfield = "finetune.lr"\nvalues = [0.1]\nname = "b"\nagainst = "lr=0.2"\n'
    assert "b=0.1 is the same recipe as reference" in refused(GRID + back + same)


def test_an_axis_against_an_unknown_row_lists_the_rows():
    text = (
        GRID
        + '[[axes]]\nfield = "pretrain.lr"\nname = "rate"\nagainst = "step=5"\nvalues = [1.0]\n'
    )
    assert "Did you mean steps=5" in refused(text)


def test_rows_share_the_stages_that_they_have_in_common():
    plan = plan_experiment(FILES.parse(GRID.encode(), ""), FAKES)
    stages = [task.stage for task in plan.tasks()]
    # steps 5, 10, 20 are pre-trained; the row with another lr goes on from the reference
    assert [stages.count(one) for one in ("pretrain", "finetune", "evaluate")] == [9, 12, 12]
    assert len(plan.cells) == 12
    assert [cell.seed for cell in plan.cells] == sorted(cell.seed for cell in plan.cells)


@pytest.mark.parametrize(
    ("old", "new"),
    [("steps = 10", "steps = 11"), ('on = ["c"]', 'on = ["d"]'), ("steps = 1\n", "steps = 2\n")],
)
def test_the_key_of_a_cell_changes_with_what_changes_its_scores(old, new):
    before = plan_experiment(FILES.parse(GRID.encode(), ""), FAKES)
    after = plan_experiment(FILES.parse(changed(old, new).encode(), ""), FAKES)
    assert before.cells[0].task.key != after.cells[0].task.key


def test_the_key_of_a_cell_changes_with_seed_and_libraries_and_not_with_titles():
    grid = FILES.parse(GRID.encode(), "")
    keys = [plan_experiment(grid, FAKES, here).cells[0].task.key for here in ({}, {"torch": "3"})]
    assert len({*keys, plan_experiment(grid, FAKES).cells[4].task.key}) == 3
    titled = FILES.parse(changed("How long", "Otherwise").encode(), "")
    assert plan_experiment(titled, FAKES).cells[0].task.key == keys[0]
