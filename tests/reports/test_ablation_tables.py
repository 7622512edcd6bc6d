"""Reports of ablations as Markdown and CSV."""

import csv
import io
import re

import msgspec
import pytest

from bench.experiments.report_record import Report, read_report
from foundation.errors import BenchError
from reports.ablation_tables import comma_separated, cost_table, markdown, plan_table, score_table
from tests.support.ablation_report import BETTER, FULL, OPEN, REFERENCE, report, row


def cells(table, name):
    """Cells of the row of that name, by header."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    found = next(line for line in lines if line[0] == name)
    return dict(zip(lines[0], found, strict=True))


def test_a_row_shows_its_mean_its_difference_with_intervals_and_the_published_figure():
    found = cells(score_table(FULL, "beir/nfcorpus"), "mask=0.15")
    one = BETTER.at("beir/nfcorpus")
    half = one.score.high - one.score.mean
    assert found["mean ± 95 %"] == f"{one.score.mean:.4f} ± {half:.4f}"
    assert found["difference"] == f"{one.recipes.mean:+.4f}"
    assert found["95 % interval"] == f"{one.recipes.low:+.4f} to {one.recipes.high:+.4f}"
    assert (found["verdict"], found["p (Holm)"]) == ("better", "1e-05")
    assert found["RR@10, published"] == "0.3496"
    assert cells(score_table(FULL, "mean"), "mask=0.9")["RR@10, published"] == ""


def test_the_reference_says_which_values_it_has():
    assert cells(score_table(FULL, "mean"), "reference")["change"] == "mask reference"


def test_a_gap_is_a_gap_and_says_why():
    text = markdown(FULL)
    assert cells(score_table(FULL, "mean"), "mask=1.0")["mean ± 95 %"] == "gap"
    assert "9 of 12 cells finished" in text
    assert text.count(r"loss is \| not a number") == 3
    assert "mask=1.0: no cell is finished." in text
    assert "## Gaps" not in markdown(report(REFERENCE, BETTER))


def test_what_could_and_could_not_be_separated_is_said():
    text = markdown(FULL)
    assert "- mask=0.15 is better than reference." in text
    assert re.search(
        r"Could not be separated from the row they are against: mask=0.9; found 80 times in 100 "
        r"would be a true difference of \d\.\d{4}\.\n",
        text,
    )


def test_the_report_says_whether_rows_read_equally_many_tokens():
    assert "Every row was pre-trained on equally many tokens, 1,000." in markdown(FULL)
    cells = tuple(
        msgspec.structs.replace(cell, tokens={"pretrain": 1_400}) for cell in BETTER.cells
    )
    longer = msgspec.structs.replace(BETTER, cells=cells)
    text = markdown(report(REFERENCE, longer))
    assert "**Rows were pre-trained on 1,000 to 1,400 tokens: a difference may be the" in text


def test_one_seed_claims_only_these_checkpoints():
    rows = [row("reference", 0.3, seeds=1), row("mask=0.15", 0.4, "better", seeds=1)]
    text = markdown(report(*rows, seeds=1))
    assert "between these checkpoints. Whether the recipes differ, it cannot say" in text
    assert "better than reference (the checkpoints of seed 0, not the recipes)" in text
    assert "these checkpoints: better" in score_table(report(*rows, seeds=1), "mean")


def test_where_nothing_is_trained_nothing_is_said_of_seeds_and_checkpoints():
    rows = [row("reference", 0.3, seeds=1), row("mask=0.15", 0.4, "better", seeds=1)]
    used = {"evaluate": {"on": ["beir/nfcorpus"]}}
    text = markdown(msgspec.structs.replace(report(*rows, seeds=1), reference=used))
    assert "Nothing is trained" in text
    assert "- mask=0.15 is better than reference.\n" in text
    assert "2 rows: 2 of 2 cells finished, 1:01:40 of work" in text
    assert not any(word in text for word in ("checkpoint", "seed 0", "recipe", "trained on"))


def test_a_partly_finished_row_says_how_many_seeds_it_has():
    partly = row("mask=0.9", 0.3, "cannot tell", failed=(1,))
    table = score_table(report(REFERENCE, partly), "mean")
    assert cells(table, "mask=0.9")["seeds"] == "2 of 3"


def test_cost_is_a_mean_over_the_finished_seeds():
    found = cells(cost_table(FULL), "reference")
    assert found == {
        "row": "reference",
        "parameters trained": "12,345",
        "tokens trained on": "1,000",
        "pretrain, s": "61",
        "evaluate, s": "9",
    }
    assert cells(cost_table(FULL), "mask=1.0")["pretrain, s"] == ""


def test_cost_says_what_share_was_trained_and_what_was_written():
    sized = {
        "parameters": {"finetune": 25, "evaluate": 1},
        "of_parameters": {"finetune": 2_000},
        "saved_bytes": {"finetune": 4_096},
    }
    tuned = row("mask=0.9", 0.3, "cannot tell")
    adapted = [msgspec.structs.replace(cell, **sized) for cell in tuned.cells]
    tuned = msgspec.structs.replace(tuned, cells=tuple(adapted))
    found = report(REFERENCE, tuned)
    own = cells(cost_table(found), "mask=0.9")
    assert (own["parameters trained"], own["trained %"], own["bytes saved"]) == (
        "25",
        "1.25",
        "4,096",
    )
    assert cells(cost_table(found), "reference")["trained %"] == ""
    line = list(csv.DictReader(io.StringIO(comma_separated(found))))[-1]
    assert (line["of_parameters"], line["saved_bytes"]) == ("2000", "4096")


def test_the_method_names_source_leaks_and_code():
    text = markdown(FULL, [("masks-mask.svg", "mask")])
    for words in (
        "Somebody et al., Table 1, on msmarco/dev",
        "2 queries read like one that is scored",
        "Code: 0123456789ab; numpy 2",
        "1:01:40 of work",
        "![mask](masks-mask.svg)",
        "`python -m bench ablate masks`",
    ):
        assert words in text


def test_cells_of_different_code_are_marked_at_the_top():
    mixed = msgspec.structs.replace(FULL, commits=("", "0123456789abcdef", "f" * 40))
    opening = markdown(mixed).partition("\n## ")[0]
    assert "**The cells were made by different code, no checkout and 0123456789ab and " in opening
    assert "different code" not in markdown(FULL)


def test_a_collection_that_is_not_the_published_one_is_named_at_the_top():
    line = "This is not the published beir/scifact: queries: 300 published, 299 found."
    marked = msgspec.structs.replace(FULL, differing=(line,))
    assert f"**{line}**" in markdown(marked).partition("\n## ")[0]


def test_a_mean_in_which_collections_weigh_differently_says_so():
    weighed = msgspec.structs.replace(FULL, weights={"beir/nfcorpus": 0.9, "beir/scifact": 0.1})
    heading = "## Mean of 2 collections"
    assert f"{heading}, a suite within a suite counting once\n" in markdown(weighed)
    assert f"{heading}\n" in markdown(FULL)


def test_csv_has_a_line_for_each_row_and_collection_unrounded():
    lines = list(csv.DictReader(io.StringIO(comma_separated(FULL))))
    assert len(lines) == 9  # three rows with scores, on two collections and their mean
    found = next(one for one in lines if one["row"] == "mask=0.9" and one["collection"] == "mean")
    assert float(found["difference"]) == OPEN.at("mean").recipes.mean
    assert found["verdict"] == "cannot tell"


def test_a_report_survives_its_file_and_another_file_is_refused(tmp_path):
    path = tmp_path / "report.json"
    path.write_bytes(msgspec.json.encode(FULL))
    assert read_report(path) == msgspec.json.decode(msgspec.json.encode(FULL), type=Report)
    path.write_text("{}")
    with pytest.raises(BenchError, match=r"report\.json: Object missing required field"):
        read_report(path)
    with pytest.raises(BenchError, match="cannot read"):
        read_report(tmp_path / "none.json")


def test_a_plan_counts_what_is_left():
    text = plan_table([("reference", "", "")], [("pretrain", 12, 5)])
    assert cells(text.split("\n\n")[1], "pretrain")["to do"] == "7"
