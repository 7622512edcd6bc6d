"""Reports of ablations as Markdown."""

import re

import msgspec

from bench.experiments.experiment import Cost
from bench.experiments.report_record import (
    SequenceResult,
)
from reports.experiment import cost_table, markdown, score_table
from tests.support.experiment_reports import BETTER, FULL, REFERENCE, report, row
from tests.support.markdown import numbers, row_named, rows_of, tables_of


def warnings_of(text: str) -> list[str]:
    """Bold paragraphs before the first table."""
    return re.findall(r"^\*\*(.+)\*\*$", text.partition("\n## ")[0], re.MULTILINE)


def test_a_row_shows_its_mean_its_difference_with_intervals():
    found = row_named(score_table(FULL, "beir/nfcorpus"), "mask=0.15")
    one = BETTER.on_collection("beir/nfcorpus")
    half = one.score.high - one.score.mean
    assert found["mean ± 95 %"] == f"{one.score.mean:.4f} ± {half:.4f}"
    assert found["difference"] == f"{one.difference.mean:+.4f}"
    assert found["95 % interval"] == f"{one.difference.low:+.4f} to {one.difference.high:+.4f}"
    assert (found["verdict"], found["p (Holm)"]) == ("better", "1e-05")
    assert row_named(score_table(FULL, "mean"), "reference")["change"] == "mask reference"
    partly = row("mask=0.9", 0.3, "cannot tell", failed=(1,))
    assert (
        row_named(score_table(report(REFERENCE, partly), "mean"), "mask=0.9")["seeds"] == "2 of 3"
    )


def test_a_gap_is_a_gap_and_says_why():
    text = markdown(FULL)
    assert row_named(score_table(FULL, "mean"), "mask=1.0")["mean ± 95 %"] == "gap"
    assert {"9", "12"} <= set(numbers(text.split("\n\n")[1]))
    gaps = rows_of(text.partition("## Gaps")[2])
    assert [(row["row"], row["seed"], row["stage"], row["why"]) for row in gaps] == [
        ("mask=1.0", seed, "finetune", "loss is | not a number") for seed in "012"
    ]
    assert "## Gaps" not in markdown(report(REFERENCE, BETTER))


def test_one_seed_claims_only_these_checkpoints():
    rows = [row("reference", 0.3, seeds=1), row("mask=0.15", 0.4, "better", seeds=1)]
    text = markdown(report(*rows, seeds=1))
    (warning,) = warnings_of(text)
    assert {"checkpoints", "recipes"} <= set(re.findall(r"\w+", warning))
    found = row_named(score_table(report(*rows, seeds=1), "mean"), "mask=0.15")
    assert found["verdict"] == "these checkpoints: better"


def test_where_nothing_is_trained_nothing_is_said_of_seeds_and_checkpoints():
    rows = [row("reference", 0.3, seeds=1), row("mask=0.15", 0.4, "better", seeds=1)]
    used = {"evaluate": {"on": ["beir/nfcorpus"]}}
    text = markdown(msgspec.structs.replace(report(*rows, seeds=1), reference=used))
    assert len(warnings_of(text)) == 1
    assert numbers(text.split("\n\n")[1])[:4] == ["2", "2", "2", "1:01:40"]
    assert not any(word in text for word in ("checkpoint", "seed 0", "recipe", "trained on"))


def test_cost_is_a_mean_over_the_finished_seeds():
    found = row_named(cost_table(FULL), "reference")
    assert found == {
        "row": "reference",
        "parameters trained": "12,345",
        "tokens trained on": "1,000",
        "pretrain, s": "61",
        "evaluate, s": "9",
    }
    assert row_named(cost_table(FULL), "mask=1.0")["pretrain, s"] == ""


def test_cost_says_what_share_was_trained_and_what_was_written():
    sized = {
        **{stage: Cost(1.0, 700) for stage in ("base", "pretrain")},
        "finetune": Cost(1.0, 80, parameters=25, total_parameters=2_000, saved_bytes=4_096),
    }
    tuned = row("mask=0.9", 0.3, "cannot tell")
    adapted = [msgspec.structs.replace(cell, costs=sized) for cell in tuned.cells]
    tuned = msgspec.structs.replace(tuned, cells=tuple(adapted))
    found = report(REFERENCE, tuned)
    own = row_named(cost_table(found), "mask=0.9")
    assert (own["parameters trained"], own["trained %"], own["bytes saved"]) == (
        "25",
        "1.25",
        "4,096",
    )
    assert own["tokens trained on"] == "1,480"
    assert row_named(cost_table(found), "reference")["trained %"] == ""


def test_the_method_names_leaks_and_code():
    text = markdown(FULL, [("masks-mask.svg", "mask")])
    for words in (
        "2 queries read like one that is scored",
        "Code: 0123456789ab; numpy 2",
        "1:01:40 of work",
        "![mask](masks-mask.svg)",
        "`python -m bench ablate masks`",
    ):
        assert words in text


def test_other_collections_and_cells_of_different_code_are_named_at_the_top():
    line = "This is not the published beir/scifact: queries: 300 published, 299 found."
    commits = ("", "0123456789abcdef", "f" * 40)
    marked = msgspec.structs.replace(FULL, differing=(line,), commits=commits)
    first, mixed = warnings_of(markdown(marked))
    assert first == line
    assert all(commit in mixed for commit in ("no checkout", " 0123456789ab ", "f" * 12))
    assert warnings_of(markdown(FULL)) == []


def test_what_a_sequence_gained_and_forgot_stands_in_one_table():
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
    text = markdown(report(REFERENCE, *rows))
    after = text.partition("## Gains and forgetting")[2]
    (table,) = tables_of(after)
    difference = f"{gained.difference.mean:+.4f}"
    assert [(row["row"], row["gained"], row["forgotten"], row["MLM loss"]) for row in table] == [
        ("plain", difference, difference, "2.875"),
        ("adapter", difference, "separate models", "2.875"),
        ("unknown", difference, "", "2.875"),
    ]
