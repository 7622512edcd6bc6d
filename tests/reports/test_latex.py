"""Tables in LaTeX: escapes, marks of significance, and what pdflatex makes of them."""

import itertools
import re
import shutil
import string
import subprocess

import msgspec
import numpy as np
import pytest

from bench.boards.rows import find_distinct_results
from bench.comparing.pairs import ComparedModel, ComparisonSettings, compare_models
from bench.comparing.statistics import Resampling
from bench.experiments.seed_statistics import SeedEstimate
from foundation.errors import BenchError
from reports.format import NOTHING_VARIES
from reports.latex import (
    LatexCell,
    board_latex,
    comparison_latex,
    comparisons_latex,
    escape_latex,
    report_latex,
    table_of_scores,
)
from reports.leaderboard import markdown
from tests.support.experiment_reports import BETTER, FULL, OPEN, REFERENCE, report, row
from tests.support.leaderboards import MEASURE, board_of, store

QUERIES = 10


def lines_of(text: str) -> dict[str, list[str]]:
    """Cells of each row of a table in LaTeX, by its first cell."""
    rows = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if " & " in line]
    return {first: cells for first, *cells in rows}


def test_a_leaderboard_marks_only_a_best_score_that_is_distinguished_from_the_next(tmp_path):
    rng = np.random.default_rng(5)
    noise = rng.random(40) * 0.2
    same = {"strong": noise + 0.7, "weak": noise, "weaker": noise - 0.001 * (np.arange(40) < 1)}
    near = {"strong": noise, "weak": rng.permutation(noise), "weaker": rng.permutation(noise)}
    for on, of_models in {"apart": same, "close": near, "alone": {"weak": noise}}.items():
        for model, values in of_models.items():
            store(tmp_path, model, on, np.clip(values, 0, 1).round(4))
    latex = board_latex(board_of(tmp_path), "")
    assert "underline" not in latex
    shown = lines_of(latex)
    bold = {
        (model, on)
        for model in same
        for on, cell in zip(shown[""], shown[model], strict=True)
        if "textbf" in cell
    }
    assert bold == {("strong", "apart")}
    assert "significantly better than the next best (paired randomisation test" in latex


def test_a_leaderboard_without_a_bold_score_explains_none(tmp_path):
    for model in ("one", "two"):
        store(tmp_path, model, "x", [0.5, 0.25, 0.1])
    latex = board_latex(board_of(tmp_path), "")
    assert "textbf" not in latex
    assert "bold" not in latex


def test_daggers_mark_what_compare_calls_significantly_better(tmp_path):
    rng = np.random.default_rng(3)
    names, better = ("one", "two", "three"), {"weak": 0.0, "middle": 0.12, "strong": 0.3}
    for model, on in itertools.product(better, names):
        values = np.clip(rng.random(QUERIES) * 0.5 + better[model], 0, 1)
        store(tmp_path, model, on, values.round(3))
    board = board_of(tmp_path, baseline=("weak", "middle"))
    shown = lines_of(board_latex(board, ""))
    marks = {model: [cell.count("dagger") for cell in shown[model]] for model in better}
    for model in better:
        contrasts = board.contrasts_of(model).values()
        found = [[one.on(on, MEASURE).verdict for one in contrasts] for on in shown[""]]
        assert marks[model] == [verdicts.count("a") for verdicts in found]
    assert 0 < sum(marks["strong"]) < 6
    row = next(one for one in markdown(board, "").splitlines() if one.startswith("| 1       | s"))
    assert "†" in row


def test_caption_names_measure_baselines_test_and_correction(tmp_path):
    for model, on in itertools.product(("a", "b"), ("one", "two")):
        store(tmp_path, model, on, [0.5, 0.25], in_domain=model == "b")
    text = board_latex(board_of(tmp_path, baseline=("a",)), "")
    caption = re.search(r"\\caption\{(.*)\}", text)[1]
    assert f"{MEASURE} of 2 models" in caption
    assert r"Significantly better than $^\dagger$ a: paired randomisation test" in caption
    assert "Holm's correction" in caption
    assert "trained on" in caption
    assert lines_of(text)[""] == ["one", "two"]
    assert "Significantly" not in board_latex(board_of(tmp_path), "")


def test_families_are_left_out_of_headers_unless_two_names_would_be_equal(tmp_path):
    store(tmp_path, "a", "beir/scifact", [0.5])
    store(tmp_path, "a", "beir/nfcorpus", {"RR@10": [0.5]})
    text = board_latex(board_of(tmp_path), "")
    assert r" & nfcorpus & scifact \\" in text
    assert r" & RR@10 & nDCG@10 \\" in text
    store(tmp_path, "a", "mine/scifact", [0.5])
    assert r" & beir/nfcorpus & beir/scifact & mine/scifact \\" in board_latex(
        board_of(tmp_path), ""
    )


def test_unknown_ambiguous_and_too_many_baselines_are_refused(tmp_path):
    for number in range(5):
        store(tmp_path, f"m{number}", "one", [0.5, 0.1 * number])
    with pytest.raises(BenchError, match="no row is called minilm") as error:
        board_of(tmp_path, baseline=("minilm",))
    assert "m0, m1" in error.value.hint
    with pytest.raises(BenchError, match="5 models, at most 4 are possible"):
        board_of(tmp_path, baseline=tuple(f"m{number}" for number in range(5)))


def compiled(*tables: str, tmp_path) -> str:
    """Text of the PDF that pdflatex makes of ``tables``."""
    for program in ("pdflatex", "pdftotext"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (texlive-latex-recommended, poppler-utils)")
    document = "\n".join(
        [
            r"\documentclass{article}\usepackage{booktabs}",
            *(r"\begin{document}", *tables, r"\end{document}"),
        ]
    )
    (tmp_path / "paper.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    words = ["pdftotext", "-layout", "paper.pdf", "-"]
    read = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    return read.stdout


def test_several_comparisons_are_one_table_of_differences(tmp_path):
    scores = {"good": [0.9] * QUERIES, "fair": [0.4] * QUERIES, "alike": [0.4] * QUERIES}
    for model, values in scores.items():
        store(tmp_path, model, "one", values)
    found = {stored.model: stored for stored in find_distinct_results(tmp_path)}
    models = [ComparedModel(name, {"one": found[name]}) for name in scores]
    pairs = compare_models(models, ComparisonSettings(resampling=Resampling(999)))
    latex = comparisons_latex(pairs)
    assert latex.count(r"\begin{tabular}") == 1
    shown = {name: cells[0] for name, cells in lines_of(latex).items()}
    assert shown["good $-$ fair"].startswith("+0.500")
    assert "dagger" in shown["good $-$ fair"]
    assert "dagger" not in shown["fair $-$ alike"]
    assert comparisons_latex(pairs[:1]) == comparison_latex(pairs[0])


@pytest.mark.slow
def test_tables_compile_and_names_are_printed_as_they_are(tmp_path):
    special = [f"a{letter}{letter}b{letter}c" for letter in string.punctuation]
    names = [*special, "[optional]", "*", r"\input{x}", "100%", "~/a_b^c"]
    for model, on in itertools.product(("a_b", "c&d"), ("one", "two")):
        store(tmp_path, model, on, [0.5, 0.25, 0.1] if model == "a_b" else [0.9, 0.8, 0.7])
    models = [
        ComparedModel(name, {"one": stored})
        for name in ("a_b", "c&d")
        for stored in find_distinct_results(tmp_path)
        if (stored.model, stored.dataset) == (name, "one")
    ]
    resampling = Resampling(999)
    (comparison,) = compare_models(models, ComparisonSettings(resampling=resampling))
    gaps = [LatexCell(after=name) for name in names]
    text = compiled(
        table_of_scores(names, {"{x}": gaps}, "50 % & more", "t"),
        board_latex(board_of(tmp_path, baseline=("a_b",)), ""),
        comparison_latex(comparison),
        report_latex(FULL),
        tmp_path=tmp_path,
    )
    # pdflatex's glyphs; it draws an underscore as a line, which is no text
    printed = "".join(text.split()).translate(str.maketrans("”’‘∗−ˆ˜", "\"'`*-^~"))
    for name in names:
        assert printed.count(name.replace("_", "")) >= 2, name
    assert "50 % & more" in text


def test_every_special_character_is_escaped():
    assert escape_latex("&%$#_{}") == r"\&\%\$\#\_\{\}"
    assert escape_latex("a--b") == "a-{}-b"
    assert escape_latex("\\^~") == r"\textbackslash{}\textasciicircum{}\textasciitilde{}"
    assert escape_latex("[x]\ny") == "{[}x] y"


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ((REFERENCE, BETTER), "mask=0.15"),
        ((REFERENCE, row("mask=0.9", 0.1, "worse")), "reference"),
        ((REFERENCE, OPEN), ""),
        ((REFERENCE, BETTER, OPEN), ""),  # the two changed rows were not compared
    ],
)
def test_an_ablation_marks_only_a_row_that_is_distinguished_from_all_others(rows, best):
    latex = report_latex(report(*rows))
    marked = {name for name, cells in lines_of(latex).items() if "textbf" in "".join(cells)}
    assert marked == ({best} - {""})
    assert "underline" not in latex
    assert ("A bold score is significantly better than all others" in latex) == bool(best)


def test_a_score_without_an_interval_is_explained():
    same = msgspec.structs.replace(REFERENCE.on[0], score=SeedEstimate(value=0.0, seeds_sd=0.0))
    latex = report_latex(report(msgspec.structs.replace(REFERENCE, on=(same,))))
    assert NOTHING_VARIES in latex.replace(r"$\pm$", "±")
