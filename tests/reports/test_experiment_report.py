"""Reports of ablations as Markdown."""

import re

import msgspec
import pytest

from bench.experiments.experiment import Cost
from bench.experiments.report_record import SequenceResult
from reports.experiment import cost_table, report_markdown, score_table
from tests.support.experiment_reports import BETTER, FULL, OPEN, REFERENCE, report, row
from tests.support.markdown import notes_of, numbers, row_named, rows_of, tables_of


def warnings_of(text: str) -> list[str]:
    """Bold paragraphs before the first table."""
    return re.findall(r"^\*\*(.+)\*\*$", text.partition("\n## ")[0], re.MULTILINE)


def test_a_row_shows_its_mean_its_difference_with_intervals():
    found = row_named(score_table(FULL, "beir/nfcorpus"), "mask=0.15")
    one = BETTER.on_collection("beir/nfcorpus")
    half = one.score.high - one.score.value
    assert found["mean ± 95 %"] == f"{one.score.value:.4f} ± {half:.4f}"
    assert found["difference"] == f"{one.difference.value:+.4f}"
    assert found["95 % interval"] == f"{one.difference.low:+.4f} to {one.difference.high:+.4f}"
    assert (found["verdict"], found["p (Holm)"]) == ("better", "< .001")
    assert row_named(score_table(FULL, "mean"), "reference")["change"] == ""
    partly = row("mask=0.9", 0.3, "cannot tell", failed=(1,))
    assert (
        row_named(score_table(report(REFERENCE, partly), "mean"), "mask=0.9")["seeds"] == "2 of 3"
    )


def test_a_gap_is_reported_with_its_reason():
    text = report_markdown(FULL)
    assert row_named(score_table(FULL, "mean"), "mask=1.0")["mean ± 95 %"] == "gap"
    assert {"9", "12"} <= set(numbers(text.split("\n\n")[1]))
    gaps = notes_of(text.partition("## Gaps")[2].partition("\n## ")[0])
    error = "finetune: loss is \\| not a number"
    assert gaps == [f"mask=1.0, seed {seed}, {error}" for seed in (0, 1, 2)]
    assert "## Gaps" not in report_markdown(report(REFERENCE, BETTER))


def test_one_seed_claims_only_these_checkpoints():
    rows = [row("reference", 0.3, seeds=1), row("mask=0.15", 0.4, "better", seeds=1)]
    text = report_markdown(report(*rows, seeds=1))
    (warning,) = warnings_of(text)
    assert {"checkpoints", "recipes"} <= set(re.findall(r"\w+", warning))
    found = row_named(score_table(report(*rows, seeds=1), "mean"), "mask=0.15")
    assert found["verdict"] == "these checkpoints: better"


def test_reports_without_training_do_not_mention_seeds_or_checkpoints():
    rows = [row("reference", 0.3, seeds=1), row("mask=0.15", 0.4, "better", seeds=1)]
    used = {"evaluate": {"on": ["beir/nfcorpus"]}}
    text = report_markdown(msgspec.structs.replace(report(*rows, seeds=1), reference=used))
    assert len(warnings_of(text)) == 1
    assert numbers(text.split("\n\n")[1])[:4] == ["2", "2", "2", "1:01:40"]
    assert not any(word in text for word in ("checkpoint", "seed 0", "recipe", "trained on"))


def cost_lines(found):
    return {(line["row"], line["stage"]): line for line in rows_of(cost_table(found))}


def test_cost_is_a_mean_over_the_finished_seeds():
    found = cost_lines(FULL)["reference", "pretrain"]
    assert (found["wall-clock, s"], found["tokens"], found["parameters"]) == (
        "61",
        "1,000",
        "12,345",
    )
    assert cost_lines(FULL)["mask=1.0", "pretrain"]["wall-clock, s"] == ""
    same = cost_lines(report(REFERENCE, BETTER))
    assert set(same) == {("all rows", "pretrain"), ("all rows", "evaluate")}


TRAINED = {
    "base": {
        "steps": 3,
        "batch_size": 8,
        "accumulate": 1,
        "max_tokens": 64,
        "optimizer": {"lr": 0.001},
    },
    "finetune": {
        "batch_size": 4,
        "accumulate": 2,
        "max_query_tokens": 24,
        "max_document_tokens": 48,
        "optimizer": {"lr": 0.5},
    },
}


def trained(one, steps):
    costs = {
        "base": Cost(1.0, 700, steps=3, cpu_seconds=2.0),
        "finetune": Cost(
            1.0,
            80,
            parameters=25,
            saved_bytes=4_096,
            steps=steps,
            cpu_seconds=3.0,
        ),
    }
    cells = [msgspec.structs.replace(cell, costs=costs) for cell in one.cells]
    return msgspec.structs.replace(one, cells=tuple(cells), settings=TRAINED)


def test_settings_and_costs_are_listed_by_row():
    longer = trained(row("mask=0.9", 0.3, "cannot tell"), 20)
    training = report(trained(REFERENCE, 10), longer)
    training = msgspec.structs.replace(training, reference=TRAINED)
    lines = cost_lines(training)
    base, own = lines["all rows", "base"], lines["mask=0.9", "finetune"]
    names = ("learning rate", "steps", "batch", "length", "tokens", "wall-clock, s", "CPU, s")
    assert [base[name] for name in names] == ["0.001", "3", "8", "64", "700", "1", "2"]
    chosen = ["0.5", "20", "8", "24 / 48", "80", "1", "3"]
    assert [own[name] for name in names] == chosen
    assert (own["parameters"], own["bytes saved"]) == ("25", "4,096")


@pytest.mark.parametrize("trained_part", ["adapter", "part"])
def test_the_learning_rate_of_an_adapter_or_part_is_printed(trained_part):
    tuned = {"optimizer": {"lr": 2e-5}, "adapter": None, "part": None}
    rates = []
    for lr in (1e-3, None):
        settings = {"finetune": tuned | {trained_part: {"lr": lr}}}
        rows = [
            msgspec.structs.replace(one, settings=settings)
            for one in (trained(REFERENCE, 10), OPEN)
        ]
        training = msgspec.structs.replace(report(*rows), reference=settings)
        rates.append(cost_lines(training)["reference", "finetune"]["learning rate"])
    assert rates == ["0.001", "2e-05"]


@pytest.mark.parametrize(
    ("p", "of_seeds", "printed"),
    [
        (5e-48, 2e-4, "< .001"),
        (5e-48, 0.003, "< .01"),
        (1e-6, 0.2, "< .05"),
        (0.03, 0.2, "< .05"),
        (0.03, 0.0002, "0.0300"),
        (0.4, 0.6, "0.4000"),
        (1e-4, None, "0.0001"),
    ],
)
def test_p_is_not_printed_below_what_the_seeds_support(p, of_seeds, printed):
    difference = msgspec.structs.replace(BETTER.on[0].difference, p=p, p_seeds=of_seeds)
    on = msgspec.structs.replace(BETTER.on[0], difference=difference, p_holm=p)
    found = report(REFERENCE, msgspec.structs.replace(BETTER, on=(on,)))
    assert row_named(score_table(found, on.collection), "mask=0.15")["p (Holm)"] == printed


def test_the_method_states_what_the_seeds_cover():
    reference = {"base": {}, **FULL.reference}
    once = report_markdown(msgspec.structs.replace(FULL, reference=reference))
    assert "Number of seeds by stage: base 1, pretrain 3." in once
    assert "All seeds continue from one base. Intervals do not cover other bases." in once
    each = report_markdown(msgspec.structs.replace(FULL, reference=reference, base_per_seed=True))
    assert "Number of seeds by stage: base 3, pretrain 3." in each
    assert "continue from one base" not in each


def test_modified_code_is_marked():
    conditions = msgspec.structs.replace(FULL.conditions, dirty=True)
    for change in ({"commits": ("c" * 40 + " modified",)}, {"conditions": conditions}):
        (mark,) = warnings_of(report_markdown(msgspec.structs.replace(FULL, **change)))
        assert mark.startswith("Modified code:")


def test_other_collections_and_cells_of_different_code_are_named_at_the_top():
    line = "This is not the published beir/scifact: queries: 300 published, 299 found."
    commits = ("", "0123456789abcdef", "f" * 40)
    marked = msgspec.structs.replace(FULL, differing=(line,), commits=commits)
    first, mixed = warnings_of(report_markdown(marked))
    assert first == line
    assert all(commit in mixed for commit in ("unknown", " 0123456789ab ", "f" * 12))
    assert warnings_of(report_markdown(FULL)) == []


def test_gain_and_forgetting_of_a_sequence_are_in_one_table():
    gained, apart = BETTER.on_collection("mean"), REFERENCE.on_collection("mean")
    losses = {"bio": 2.5, "law": 3.25}

    def learnt(name, forgotten):
        found = SequenceResult(
            start="bert|base",
            gained=gained,
            forgotten=forgotten,
            losses=losses,
        )
        return msgspec.structs.replace(BETTER, name=name, change="", sequence=found)

    rows = (learnt("plain", gained), learnt("adapter", None), learnt("unknown", apart))
    text = report_markdown(report(REFERENCE, *rows))
    after = text.partition("## Gains and forgetting")[2]
    (table,) = tables_of(after)
    difference = f"{gained.difference.value:+.4f}"
    assert [(row["row"], row["gained"], row["forgotten"], row["MLM loss"]) for row in table] == [
        ("plain", difference, difference, "2.875"),
        ("adapter", difference, "separate models", "2.875"),
        ("unknown", difference, "", "2.875"),
    ]
