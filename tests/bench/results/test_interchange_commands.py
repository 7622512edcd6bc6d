"""``export``, ``import`` and ``merge`` as they are typed."""

import json
from pathlib import Path

import pytest

from bench.exit_codes import ExitCode
from bench.results.load import load
from tests.support.collections import DOCUMENTS, QRELS, QUERIES, write_collection
from tests.support.leaderboards import store


@pytest.fixture
def tiny(bench, tmp_path):
    folder = write_collection(tmp_path / "tiny")
    assert bench("run", folder, "--model", "hashing", "bm25", "--quiet").code == 0
    return folder


@pytest.fixture
def results(tmp_path):
    """Stored results that were never measured."""
    place = tmp_path / "stored"
    laid(place, "beir/scifact", {"nDCG@10": [0.1, 0.7, 1 / 3], "R@100": [1.0, 0.0, 1.0]})
    laid(place, "mine", {"nDCG@10": [0.5, 0.25]})
    return place


def laid(place: Path, collection: str, scores: dict[str, list[float]]) -> None:
    """A result of the model ``words``, where a command would have put it."""
    made = store(place / "made", "words", collection, scores)
    folder = place / collection / "words"
    folder.mkdir(parents=True)
    made.rename(folder / made.name)
    made.parent.rmdir()


@pytest.mark.parametrize("exclude_self", [False, True])
def test_an_exported_run_scores_as_the_result_it_is_of(bench, tmp_path, exclude_self):
    facts = f"exclude_self = {str(exclude_self).lower()}\n"
    folder = write_collection(tmp_path / "tiny", facts=facts)
    assert bench("run", folder, "--model", "hashing", "--quiet").code == 0
    exported = bench(
        "export", "trec", "hashing", "--results", bench.out, "--out", tmp_path / "runs"
    )
    assert exported.stdout.strip() == str(tmp_path / "runs" / "hashing" / "tiny.trec.gz")
    run = tmp_path / "runs" / "hashing" / "tiny.trec.gz"
    assert bench("score", run, "--dataset", folder, "--name", "back").code == 0
    measured, back = (load(bench.results("tiny", name)).result for name in ("hashing", "back"))
    assert back.measures == measured.measures


def test_ids_with_spaces_are_evaluated_and_compared_and_only_a_trec_run_refuses_them(
    bench, tmp_path
):
    def named(id_):
        return f"{id_} of 100%"

    folder = write_collection(
        tmp_path / "tiny",
        {named(id_): text for id_, text in DOCUMENTS.items()},
        {named(id_): text for id_, text in QUERIES.items()},
        {(named(query), named(document)): grade for (query, document), grade in QRELS.items()},
    )
    plain = write_collection(tmp_path / "plain" / "tiny")
    for place, source in (("spaced", folder), ("unspaced", plain)):
        out = bench.out / place
        assert bench("run", source, "--model", "hashing", "bm25", "--out", out, "--quiet").code == 0
    for model in ("hashing", "bm25"):
        spaced, unspaced = (
            load(next((bench.out / place / "tiny" / model).iterdir())).result
            for place in ("spaced", "unspaced")
        )
        assert spaced.measures == unspaced.measures
    compared = bench(
        "compare", "hashing", "bm25", "--results", bench.out / "spaced", "--changed", 2
    )
    assert compared.code == 0, compared.stderr
    refused = bench(
        "export", "trec", "bm25", "--results", bench.out / "spaced", "--out", tmp_path / "runs"
    )
    assert refused.code == ExitCode.BAD_INPUT
    assert "'q1 of 100%' cannot be written to a TREC run file" in refused.stderr
    assert not list((tmp_path / "runs").rglob("*.gz"))


def test_what_is_exported_for_mteb_is_imported_as_claims_on_the_leaderboard(
    bench, results, tmp_path
):
    out = tmp_path / "mteb"
    exported = bench("export", "mteb", "words", "--results", results, "--out", out, "--as", "we/it")
    assert exported.code == 0, exported.stderr
    assert "left out: words on mine: mteb has no such task" in exported.stderr
    imported = bench("import", out, "--out", results)
    assert "we/it on beir/scifact" in imported.stdout
    board = bench("leaderboard", "--results", results, "--json", "--resamples", 199, "--quiet")
    document = json.loads(board.stdout)
    assert [row["model"] for row in document["rows"]] == ["words"]
    scores = document["rows"][0]["cells"]["beir/scifact"]["scores"]
    claims = {one["measure"]: one["value"] for one in document["claims"] if one["model"] == "we/it"}
    assert claims == {name: score["value"] for name, score in scores.items()}


def test_an_imported_score_is_never_compared(bench, results, tmp_path):
    card = tmp_path / "cards"
    assert bench("export", "model-index", "words", "--results", results, "--out", card).code == 0
    claimed = bench("import", card / "words" / "README.md", "--model", "x", "--out", results)
    assert claimed.code == 0, claimed.stderr
    done = bench("compare", "words", "x", "--results", results)
    assert done.code == ExitCode.BAD_INPUT
    assert "no result of 'x'" in done.stderr


def test_only_what_was_asked_for_is_exported(bench, results, tmp_path):
    out = tmp_path / "cards"
    options = ("--results", results, "--out", out, "--on", "mine")
    assert bench("export", "model-index", "words", *options).code == 0
    text = (out / "words" / "README.md").read_text()
    assert "mine" in text
    assert "scifact" not in text


def test_a_mixture_of_recipes_is_not_exported(bench, tmp_path, tiny):
    other = write_collection(tmp_path / "other")
    short = ("--model", "hashing", "--max-document-tokens", "3", "--quiet")
    assert bench("run", other, *short).code == 0
    export = ("export", "model-index", "--results", bench.out, "--out", tmp_path / "cards")
    refused = bench(*export, "hashing")
    assert refused.code == ExitCode.BAD_INPUT
    assert not (tmp_path / "cards").exists()
    name = "hashing@max_document_tokens=3"
    assert f"'{name}'" in refused.stderr
    assert bench(*export, name).code == 0
    text = (tmp_path / "cards" / "hashing" / "README.md").read_text()
    assert "other" in text
    assert "tiny" not in text


def test_an_exported_file_is_not_written_over(bench, results, tmp_path):
    out = tmp_path / "cards"
    options = ("export", "model-index", "words", "--results", results, "--out", out)
    assert bench(*options).code == 0
    assert bench(*options).code == 0
    (out / "words" / "README.md").write_text("mine")
    done = bench(*options)
    assert done.code == ExitCode.BAD_INPUT
    assert "is there already, with other content" in done.stderr
    assert (out / "words" / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "mteb", "wrods"), "did you mean words"),
        (("export", "mteb", "words", "--on", "mine"), "no result to export as mteb"),
        (("export", "mteb", "words", "--on", "beir/scifcat"), "did you mean beir/scifact"),
        (("export", "trec", "words", "mine", "--as", "x"), "--as gives one name to 2 models"),
        (("export", "trec", "words", "--as", "../x"), "cannot name a folder"),
        (("export", "trec", "words"), "cannot read run"),
    ],
)
def test_bad_input_of_export_is_one_clear_error(arguments, message, bench, results, tmp_path):
    done = bench(*arguments, "--results", results, "--out", tmp_path / "out")
    assert done.code == ExitCode.BAD_INPUT
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert [path for path in tmp_path.glob("out/**/*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.trec", "q Q0 d 1 1 tag", "python -m bench score"),
        ("missing.json", None, "cannot read"),
        ("README.md", "no block", "has no model-index"),
        ("x.json", '{"task_name": "STS12", "scores": {}}', "no score in these files"),
    ],
)
def test_bad_input_of_import_is_one_clear_error(name, content, message, bench, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    done = bench("import", tmp_path / name, "--out", tmp_path / "results")
    assert done.code == ExitCode.BAD_INPUT
    assert message in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_damaged_file_among_good_ones_imports_nothing(bench, results, tmp_path):
    out = tmp_path / "mteb"
    assert bench("export", "mteb", "words", "--results", results, "--out", out).code == 0
    (out / "words" / "no_revision_available" / "Zzz.json").write_text("{")
    done = bench("import", out, "--model", "x", "--out", tmp_path / "results")
    assert done.code == ExitCode.BAD_INPUT
    assert "Zzz.json" in done.stderr
    assert not (tmp_path / "results").exists()


def test_merged_results_read_as_those_of_one_machine(bench, results, tmp_path, tiny):
    out = tmp_path / "merged"
    done = bench("merge", results, bench.out, "--out", out, "--json", "--quiet")
    assert done.code == ExitCode.OK, done.stderr
    assert json.loads(done.stdout) == {"found": 4, "copied": 4, "claims": 0, "conflicts": []}
    shown = bench("compare", "hashing", "bm25", "--results", out, "--resamples", 199, "--json")
    direct = bench(
        "compare", "hashing", "bm25", "--results", bench.out, "--resamples", 199, "--json"
    )
    assert shown.stdout == direct.stdout


def test_a_conflict_is_named_with_its_folders_and_has_an_exit_code(bench, results, tmp_path):
    other = tmp_path / "other"
    laid(other, "mine", {"nDCG@10": [0.5, 0.0]})
    done = bench("merge", results, other, "--out", tmp_path / "merged", "--json")
    assert done.code == ExitCode.DRIFT
    (conflict,) = json.loads(done.stdout)["conflicts"]
    assert (conflict["model"], conflict["collection"]) == ("words", "mine")
    assert "conflict: words on mine" in done.stderr
    assert all(folder in done.stderr for folder in conflict["folders"])
    assert "nDCG@10 0.250000" in done.stderr


@pytest.mark.parametrize("place", ["nothing", "empty"])
def test_a_folder_without_results_is_refused_and_nothing_is_written(
    place, bench, results, tmp_path
):
    (tmp_path / "empty").mkdir()
    done = bench("merge", results, tmp_path / place, "--out", tmp_path / "merged")
    assert done.code == ExitCode.BAD_INPUT
    assert "holds no results" in done.stderr
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("command", ["export", "import", "merge"])
def test_help_has_examples(command, bench):
    done = bench(command, "--help")
    assert done.code == 0
    assert f"python -m bench {command}" in done.stdout


def test_scores_that_disagree_are_never_chosen_among_in_silence(bench, results, tmp_path, caplog):
    other, out = tmp_path / "other", tmp_path / "merged"
    laid(other, "mine", {"nDCG@10": [0.5, 0.0]})
    assert bench("merge", results, other, "--out", out).code == ExitCode.DRIFT
    assert (
        bench("export", "model-index", "words", "--results", out, "--out", tmp_path / "c").code == 0
    )
    assert "words on mine was evaluated 2 times with different scores" in caplog.text
