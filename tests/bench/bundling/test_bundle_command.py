"""``bundle`` and ``replay`` as they are typed: moved to an empty folder, with another cache."""

import hashlib
import json
import shutil
import sys

import pytest

from bench.requests.outcomes import ExitCode
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import write_collection, write_hashing_card, write_words

SYSTEM = """
from words import split

class Search:
    version = "1"

    def search(self, queries, k):
        return [[(f"d{len(split(query)) % 3}", 1.0)] for query in queries]

prod = Search()
"""


@pytest.fixture
def project(bench, monkeypatch):
    """A folder with a collection, results of a card, BM25 and own code, and what made them."""
    folder = bench.place / "project"
    write_collection(folder / "data" / "wings")
    write_hashing_card(folder / "mine.toml", 16)
    (folder / "search.py").write_text(SYSTEM, encoding="utf-8")
    (folder / "words.py").write_text("split = str.split\n", encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])  # own code adds its folder
    monkeypatch.delitem(sys.modules, "words", raising=False)
    return folder


def run(bench, *words):
    done = bench("run", "wings", "--data-dir", "data", "--results", "results", "--model", *words)
    assert done.code == ExitCode.OK, done.stderr


def bundle(bench, *words):
    """The command, with the collections and the cache of the project."""
    return bench("bundle", *words, "--data-dir", "data", "--cache-dir", bench.cache)


@pytest.fixture
def moved(bench, project, monkeypatch):
    """A bundle that is all that is left, next to the collections."""
    run(bench, "mine.toml", "bm25")
    run(bench, "search.py:prod", "--trust-code")
    done = bundle(bench, "results", "--out", "paper")
    assert done.code == ExitCode.OK, done.stderr
    place = bench.place / "elsewhere"
    place.mkdir()
    shutil.move(project / "paper", place / "paper")
    shutil.move(project / "data", place / "data")
    shutil.rmtree(project)
    monkeypatch.chdir(place)
    return place / "paper"


def replay(bench, *words):
    places = ("--data-dir", "data", "--cache-dir", bench.place / "new-cache")
    return bench("replay", "paper", *places, *words)


@pytest.mark.slow
def test_a_moved_bundle_is_repeated_with_the_same_scores(bench, moved):
    planned = replay(bench, "--dry-run")
    assert planned.code == ExitCode.OK, planned.stdout + planned.stderr
    assert planned.stdout.count("would run") == 3
    assert not (moved.parent / "replayed").exists()
    refused = replay(bench)
    assert refused.code == ExitCode.BAD_INPUT
    assert "--trust-code" in refused.stderr
    done = replay(bench, "--trust-code", "--json")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert [each["state"] for each in report["commands"]] == ["repeated"] * 3
    rows = [row for each in report["commands"] for row in each["rows"]]
    assert [row["candidate"] for row in rows] == [row["baseline"] for row in rows]


def test_the_readme_has_the_commands_and_no_data_is_copied(bench, moved):
    readme = (moved / "README.md").read_text()
    assert "python -m bench run wings --model cards/mine.toml" in readme
    assert "code/" in readme
    files = {path.name for path in moved.rglob("*") if path.is_file()}
    known = {"README.md", "bundle.json", "requirements.txt", "mine.toml", "search.py", "words.py"}
    assert files == known | {"result.json", "per_query.parquet"}


@pytest.mark.slow
def test_a_changed_score_is_a_difference(bench, moved):
    """Another collection of the same name has other scores, or is said to be another."""
    qrels = moved.parent / "data" / "wings" / "qrels" / "test.tsv"
    lines = qrels.read_text().splitlines()
    qrels.write_text("\n".join(lines[:-1]) + "\n")
    planned = replay(bench, "--dry-run")
    assert planned.code == ExitCode.MISSING
    assert "other queries or judgements" in planned.stdout
    done = replay(bench, "--trust-code")
    assert done.code == ExitCode.DRIFT, done.stdout + done.stderr
    assert "differs" in done.stdout


@pytest.mark.slow
def test_missing_collections_are_named(bench, moved):
    shutil.rmtree(moved.parent / "data")
    (moved.parent / "data").mkdir()
    for words in (("--dry-run",), ("--trust-code",)):
        done = replay(bench, *words)
        assert done.code == ExitCode.MISSING, done.stderr
        assert done.stdout.count("**missing**") == 3
        assert "wings" in done.stdout


def test_a_bundle_that_was_cut_or_edited_is_refused(bench, moved):
    manifest, card = moved / "bundle.json", moved / "cards" / "mine.toml"
    content = manifest.read_text()
    for damaged, about in (
        (content[: len(content) // 2], "bundle.json"),
        (content.replace("--model", "--modle"), "was changed"),
    ):
        manifest.write_text(damaged)
        done = replay(bench, "--dry-run")
        assert done.code == ExitCode.BAD_INPUT
        assert about in done.stderr
    manifest.write_text(content)
    card.write_text(card.read_text().replace("16", "17"))
    done = replay(bench, "--dry-run")
    assert done.code == ExitCode.BAD_INPUT
    assert "mine.toml was changed" in done.stderr
    card.unlink()
    done = replay(bench, "--dry-run")
    assert done.code == ExitCode.BAD_INPUT
    assert "mine.toml is missing" in done.stderr
    done = bench("replay", moved.parent)
    assert done.code == ExitCode.BAD_INPUT
    assert "is not a bundle" in done.stderr


@pytest.mark.parametrize("added", [["--trust-code"], ["--like", "cards/evil.py:made"]])
def test_code_that_commands_name_is_not_run_without_consent(bench, project, added):
    """Somebody who writes a bundle by hand could hide code elsewhere than in code/."""
    run(bench, "bm25")
    assert bundle(bench, "results", "--out", "paper").code == ExitCode.OK
    manifest, readme = project / "paper" / "bundle.json", project / "paper" / "README.md"
    content = json.loads(manifest.read_text())
    content["commands"][0]["words"] += added
    text = readme.read_text().replace("--model bm25", f"--model bm25 {' '.join(added)}")
    readme.write_text(text)
    content["files"]["README.md"] = hashlib.sha256(text.encode()).hexdigest()
    manifest.write_text(json.dumps(content))
    done = bench("replay", "paper", "--out", "again")
    assert done.code == ExitCode.BAD_INPUT
    assert f"the bundle runs code: {added[-1]}" in done.stderr
    assert not (project / "again").exists()


def test_bad_input_of_bundle_is_one_message(bench, project):
    run(bench, "bm25")
    nothing = bundle(bench, "no-such-model", "--out", "paper")
    assert nothing.code == ExitCode.BAD_INPUT
    assert "no-such-model" in nothing.stderr
    (project / "full").mkdir()
    (project / "full" / "kept").write_text("")
    full = bundle(bench, "results", "--out", "full")
    assert full.code == ExitCode.BAD_INPUT
    assert "not empty" in full.stderr
    empty = bundle(bench, "data", "--out", "paper")
    assert empty.code == ExitCode.BAD_INPUT
    assert "holds no results" in empty.stderr
    assert not (project / "paper").exists()


def test_the_result_of_an_object_is_listed_with_the_reason(bench, project):
    import bench as python

    def letters(texts):
        return [[text.count(letter) + 0.1 for letter in "abcdef"] for text in texts]

    places = {"results": "results", "cache_dir": bench.cache}
    python.evaluate(letters, "data/wings", name="letters", **places)
    done = bundle(bench, "results", "--out", "paper", "--json")
    assert done.code == ExitCode.OK, done.stderr
    (reason,) = json.loads(done.stdout)["unrepeated"].values()
    assert "Python object" in reason


@pytest.mark.slow
def test_weights_are_trained_again_or_found_by_their_hashes(bench, project):
    school = write_words(project / "data" / "school")
    (school / "qrels" / "test.tsv").rename(school / "qrels" / "train.tsv")
    tiny.write_bert(project / "start", max_position_embeddings=512)
    words = ("--set", "batch_size=2", "--set", "max_document_tokens=16", "--steps", "2")
    places = ("--data-dir", "data", "--cache-dir", bench.cache)
    trained = bench(
        *("finetune", "in-batch-small", "--model", "start", "--like", "retromae", "--on", "school"),
        *("--out", "models/tuned", *words, *places),
    )
    assert trained.code == ExitCode.OK, trained.stderr
    run(bench, "models/tuned", "--set", "allow_unknown_tokens=true", "--set", "query_prompt=q: ")
    done = bundle(bench, "tuned", "--out", "paper")
    assert done.code == ExitCode.OK, done.stderr
    (again, evaluated) = json.loads((project / "paper" / "bundle.json").read_text())["commands"]
    assert again["words"][0] == "finetune"
    assert evaluated["words"][:4] == ["run", "wings", "--model", "models/tuned"]
    shutil.move(project / "models" / "tuned", project / "kept")
    lacking = replay(bench, "--dry-run")
    assert lacking.code == ExitCode.MISSING
    assert "start" in lacking.stdout
    found = replay(bench, "--search", "kept", "--out", "one")
    assert found.code == ExitCode.OK, found.stdout + found.stderr
    assert "**found**" in found.stdout
    repeated = replay(bench, "--search", "start", "--out", "two")
    assert repeated.code == ExitCode.OK, repeated.stdout + repeated.stderr
    assert repeated.stdout.count("**repeated**") == 2
