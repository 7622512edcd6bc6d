"""Tables in LaTeX: escapes, marks of significance, and what pdflatex makes of them."""

import itertools
import re
import shutil
import string
import subprocess

import numpy as np
import pytest
from attrs import evolve

from bench.boards.leaderboard import build_leaderboard
from bench.boards.rows import find_distinct_results
from bench.comparing.pairs import ComparedModel, ComparisonSettings, compare_models
from bench.comparing.statistics import Resampling
from bench.requests.deciding import LeaderboardRequest
from foundation.errors import BenchError
from reports.latex import (
    board_latex,
    comparison_latex,
    escape_latex,
    report_latex,
    table_of_scores,
)
from reports.leaderboard import markdown
from tests.support.experiment_reports import FULL
from tests.support.leaderboards import MEASURE, store

QUERIES = 10
REQUEST = LeaderboardRequest(resamples=1_999)


def lines_of(text: str) -> dict[str, list[str]]:
    """Cells of each row of a table in LaTeX, by its first cell."""
    rows = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if " & " in line]
    return {first: cells for first, *cells in rows}


def board_of(place, *baselines, **changes):
    request = evolve(REQUEST, baseline=baselines, **changes)
    return build_leaderboard(find_distinct_results(place), {}, request)


def test_the_best_is_bold_the_second_underlined_and_equal_as_printed_is_equal():
    cells = [(0.5, ""), (0.50004, "†"), (0.25, "*"), (None, "–")]
    latexed = lines_of(table_of_scores("abcd", {"x": cells}, "", ""))
    assert latexed["a"] == [r"\textbf{0.500}"]
    assert latexed["b"] == [r"\textbf{0.500}\rlap{$^\dagger$}"]
    assert latexed["c"] == [r"\underline{0.250}\rlap{$^*$}"]
    assert latexed["d"] == ["--"]


def holm(values: dict[str, float]) -> dict[str, float]:
    adjusted, largest = {}, 0.0
    for number, (name, p) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(values) - number) * p))
        adjusted[name] = largest
    return adjusted


def exact_p(a: np.ndarray, b: np.ndarray) -> float:
    """Two-sided p of the paired randomisation test, over all sign flips."""
    signs = np.array(list(itertools.product([1, -1], repeat=len(a))))
    flipped = np.abs((signs * (a - b)).mean(axis=1))
    return float((flipped >= abs((a - b).mean()) - 1e-12).mean())


def test_daggers_mark_what_is_significantly_better_by_the_exact_test_with_holms_correction(
    tmp_path,
):
    rng = np.random.default_rng(3)
    names = ("one", "two", "three")
    better = {"weak": 0.0, "middle": 0.12, "strong": 0.3}
    values = {
        model: {on: np.clip(rng.random(QUERIES) * 0.5 + gain, 0, 1).round(3) for on in names}
        for model, gain in better.items()
    }
    for model, on in itertools.product(better, names):
        store(tmp_path, model, on, values[model][on])
    board = board_of(tmp_path, "weak", "middle")
    shown = lines_of(board_latex(board, ""))
    headers = shown[""]
    expected = {model: dict.fromkeys(names, "") for model in better}
    for mark, baseline in (("†", "weak"), ("‡", "middle")):
        for model in better.keys() - {baseline}:
            of, base = values[model], values[baseline]
            adjusted = holm({on: exact_p(of[on], base[on]) for on in names})
            for on in names:
                if adjusted[on] <= 0.05 and of[on].mean() > base[on].mean():
                    expected[model][on] += mark
    assert "" in expected["strong"].values() or "" in expected["middle"].values()
    assert any("†" in mark for mark in expected["strong"].values())
    for model in better:
        marks = [cell.count("dagger") for cell in shown[model]]
        assert marks == [len(expected[model][on]) for on in headers]
    row = next(one for one in markdown(board, "").splitlines() if one.startswith("| 1       | s"))
    assert "†" in row


def test_caption_names_measure_baselines_test_and_correction(tmp_path):
    for model, on in itertools.product(("a", "b"), ("one", "two")):
        store(tmp_path, model, on, [0.5, 0.25], in_domain=model == "b")
    text = board_latex(board_of(tmp_path, "a"), "")
    caption = re.search(r"\\caption\{(.*)\}", text)[1]
    assert f"{MEASURE} of 2 models" in caption
    assert r"Significantly better than $^\dagger$ a: paired randomisation test" in caption
    assert "1,999 sign flips" in caption
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
        board_of(tmp_path, "minilm")
    assert "m0, m1" in error.value.hint
    with pytest.raises(BenchError, match="5 models, at most 4 are possible"):
        board_of(tmp_path, *(f"m{number}" for number in range(5)))


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
    text = compiled(
        table_of_scores(names, {"{x}": [(None, name) for name in names]}, "50 % & more", "t"),
        board_latex(board_of(tmp_path, "a_b"), ""),
        comparison_latex(comparison, resampling),
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
