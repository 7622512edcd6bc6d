"""stdout and stderr never decide how a command ends, and never obey what comes from a file."""

import csv
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
from tqdm import tqdm

from bench.cli.terminal import TerminalStream, as_typed, fit_tables, format_columns, run_guarded
from bench.result_store.result import RESULT_FILE
from foundation.errors import BenchError, make_printable, to_one_line
from tests.support.collections import (
    ROOT,
    SIXTY,
    SIXTY_DOCUMENTS,
    SIXTY_QUERIES,
    Bench,
    Finished,
    finish,
    start,
    write_collection,
    write_hashing_card,
)
from tests.support.leaderboards import store

OUTPUTS = ("| true", "> /dev/full", ">&- 2>&-")


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a good model and of one that cannot tell texts apart; two others conflict."""
    place = tmp_path_factory.mktemp("decided")
    bench = Bench(place)
    collection = write_collection(place / "tiny", *SIXTY)
    blind = write_hashing_card(place / "blind.toml", 1)
    done = bench("run", collection, "--model", "hashing", blind)
    assert done.code == 0, done.stderr
    for name, scores in (("here", [0.5, 0.25]), ("there", [0.5, 0.0])):
        store(place / name, "words", "mine", scores)
    return place


def shell(command: str, place: Path) -> Finished:
    """The first command of a pipe line."""
    words = f"{sys.executable} -m bench {command}; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return finish(start(["bash", "-c", words], cwd=place, env=environment))


CHECK = "check blind.toml --baseline hashing --on ./tiny --results out --cache-dir cache"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"),
    [
        *((f"{CHECK} --resamples 199 {output}", 1) for output in OUTPUTS),
        ("list models | head -1", 0),
        ("list models > /dev/full", 2),
        ("list datasets --json | true", 0),
        ("list models --json > /dev/full", 2),
    ],
)
def test_a_reader_that_left_is_no_failure_a_full_disk_is_one_and_a_verdict_stays(
    decided, command, code
):
    done = shell(command, decided)
    assert done.code == code, done.stderr
    assert code < 2 or "the output is incomplete" in done.stderr


ABORTS_AT_THE_END = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.abort, None, None)
sys.argv = ["bench", *sys.argv[1:]]
from bench.__main__ import command_line
command_line()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("words", "code"), [(["list", "models"], 0), (["show", "nothing"], 2)])
def test_a_library_that_aborts_at_exit_does_not_change_the_exit_code(words, code):
    done = finish(start([sys.executable, "-c", ABORTS_AT_THE_END, *words]))
    assert done.code == code, done.stderr
    assert done.stdout if code == 0 else "error: " in done.stderr


@pytest.mark.slow
def test_no_file_is_written_in_place_of_a_closed_stdout(tmp_path):
    write_collection(tmp_path / "one")
    run = "run ./one --model hashing --results out --cache-dir cache >&- 2>&-"
    assert shell(run, tmp_path).code == 0
    assert shell("compare hashing hashing@depth=1 --results out >&-", tmp_path).code == 2
    (record,) = (tmp_path / "out").rglob(RESULT_FILE)
    json.loads(record.read_bytes())


OBEYED = {
    "red\x1b[31m": r"red\u001b[31m",
    "title\x1b]0;x\x07": r"title\u001b]0;x\u0007",
    "one\x9b2J": r"one\u009b2J",
    "back\x08\r": r"back\u0008\u000d",
    "txt\u202egpj": r"txt\u202egpj",
    "raw\udcff": r"raw\udcff",
    "hidden\U000e0041": r"hidden\udb40\udc41",
}


@pytest.mark.parametrize("text", OBEYED)
def test_control_characters_are_shown_as_escapes(text):
    stream = io.StringIO()
    print(text, file=TerminalStream(stream, shows_bars=False))
    assert stream.getvalue() == OBEYED[text] + "\n"
    assert to_one_line(f"a\n\t{text} ").isprintable()


def test_ordinary_unicode_text_is_printed_unchanged():
    text = "Flügel\t東京 – «ª» 👩‍🔬\n"
    assert make_printable(text) == text
    assert make_printable("é 👩", "ascii") == r"\u00e9 \ud83d\udc69"


URLS = ("https://me:secret@host/x", "s3://me:secret@bucket/x", "https://secret@host/x")


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "command",
    [["show", "{}"], ["run", "{}", "--model", "bm25"], ["compare", "a", "b", "--results", "{}"]],
)
def test_a_password_in_a_url_is_not_printed(tmp_path, url, command):
    finished = Bench(tmp_path)(*(word.format(url) for word in command))
    assert finished.code == 2
    assert "secret" not in finished.stderr + finished.stdout
    assert make_printable(f"kept in {url} for a@b") == f"kept in {url.split('://')[0]}://***@" + (
        f"{url.split('@')[1]} for a@b"
    )


def test_json_stays_json_of_the_same_content():
    document = {"name": 'a"\\\x1b\x9b\u202eé👩'}
    text = json.dumps(document, ensure_ascii=False)
    assert json.loads(make_printable(text)) == document
    assert json.loads(make_printable(text, "ascii")) == document


def test_progress_bars_move_the_cursor_and_names_in_them_do_not():
    stream = io.StringIO()
    output = TerminalStream(stream, shows_bars=True)
    with (
        tqdm(total=2, desc="outer", file=output, mininterval=0) as outer,
        tqdm(total=2, desc="evil\x1b[2J\rgone", file=output, leave=False, mininterval=0) as inner,
    ):
        for bar in (outer, inner):
            bar.update()
            bar.refresh()
    written = stream.getvalue()
    assert "\x1b[A" in written
    assert r"evil\u001b[2J\u000dgone" in written
    assert "\x1b[2J" not in written


HOSTILE = "=1+[click](evil)"
ESCAPES = "\x1b[31m\x9b2J"


def test_names_from_files_reach_terminal_and_reports_as_text(tmp_path):
    bench = Bench(tmp_path)
    queries = {f"{HOSTILE}{ESCAPES}{name}": text + ESCAPES for name, text in SIXTY_QUERIES.items()}
    qrels = {(query, f"d{row:02}"): 1 for row, query in enumerate(queries)}
    metadata = f"name = {json.dumps(f'own{HOSTILE}'.replace('//', '|'))}\n"
    collection = write_collection(tmp_path / "tiny", SIXTY_DOCUMENTS, queries, qrels, metadata)
    models = [f"{HOSTILE}{dim}" for dim in (8, 64)]
    cards = [
        write_hashing_card(tmp_path / f"{name}.toml", dim, title="\x1b[31m")
        for name, dim in zip(models, (8, 64), strict=True)
    ]
    where = ("--results", bench.out, "--resamples", 199)
    outputs = {
        "run": bench("run", collection, "--model", *cards),
        "compare": bench("compare", *models, *where, "--changed", 3),
        "check": bench(
            *("check", cards[0], "--baseline", models[1], "--on", collection, *where),
            *("--cache-dir", bench.cache),
            *("--junit", tmp_path / "check.xml"),
        ),
        "html": bench("leaderboard", *where, "--format", "html"),
        "csv": bench("leaderboard", *where, "--format", "csv"),
        "markdown": bench("leaderboard", *where),
        "verify": bench("verify", collection),
    }
    assert {name: done.stderr for name, done in outputs.items() if done.code > 1} == {}
    texts = {name: done.stdout + done.stderr for name, done in outputs.items()}
    texts["check.xml"] = (tmp_path / "check.xml").read_text(encoding="utf-8")
    obeyed = {name for name, text in texts.items() if "\x1b" in text or "\x9b" in text}
    assert obeyed == set()
    tables = {name: outputs[name].stdout for name in ("run", "compare", "check", "markdown")}
    assert {name for name, text in tables.items() if re.search(r"[^\\]\]\(evil", text)} == set()
    cells = [cell for row in csv.reader(outputs["csv"].stdout.splitlines()) for cell in row]
    assert [cell for cell in cells if cell.startswith("=")] == []


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("/env/bin/bench", "bench"),
        ("/site/bench/__main__.py", "python -m bench"),
        ("pytest", "python -m bench"),
    ],
)
def test_the_next_command_is_shown_as_the_program_was_called(monkeypatch, called, name):
    monkeypatch.setattr("sys.argv", [called, "pretrain"])
    assert (
        as_typed("python -m bench run stdlib-code --model out")
        == f"{name} run stdlib-code --model out"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_and_messages_keep_to_the_width_of_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, Terminal())
    lines = format_columns([("a", "1e3"), ("long/name", "a word " * 20)]).splitlines()
    assert lines[0] == "a          1e3"
    assert max(map(len, lines)) <= 40
    assert " ".join(lines[1:]).split() == ["long/name", *(["a", "word"] * 20)]

    def fail() -> int:
        raise BenchError("a long message " * 9, f"Run `python -m bench run {'collection ' * 9}`.")

    assert run_guarded(fail) == 2
    *message, hint = sys.stderr.getvalue().splitlines()
    assert max(map(len, message)) <= 40
    assert hint.startswith("  Run `python -m bench run collection")


@pytest.mark.parametrize("width", [20, 34, 80])
def test_a_table_fits_the_terminal(width):
    table = "before\n\n| name | one |  two | three |\n|------|-----|------|-------|\n"
    table += "| a\\|b |   1 |    2 |     3 |\n\nafter\n"
    fitted = fit_tables(table, width)
    assert max(map(len, fitted.splitlines())) <= width
    assert fitted.startswith("before\n\n| name | one |")
    assert fitted.endswith("|\n\nafter\n")
    parts = fitted.count("| name |")
    assert fitted.count("| a\\|b |") == parts == {20: 3, 34: 1, 80: 1}[width]
    assert {"1", "2", "3"} <= set(fitted.replace("|", " ").split())
    wide = f"{'wide ' * 20}|\n"
    for unchanged in (f"| ragged | {wide}|---|---|---|\n", f"| {wide}|---|\n"):
        assert fit_tables(unchanged, width) == unchanged


NOISY = """
import ctypes, os, sys
print("a line of Python")
os.write(1, b"a line of the descriptor\\n")
ctypes.CDLL(None).puts(b"a line of C")


class Noisy:
    def encode_queries(self, texts):
        print("a line of a model")
        ctypes.CDLL(None).puts(b"a line of C, held back")
        os.system("echo a line of a child")
        return [[float(len(text)), 1.0] for text in texts]

    def encode_documents(self, titles, texts):
        return self.encode_queries(texts)
"""
NOISE = ["of Python", "of the descriptor", "of C", "of a model", "of C, held back", "of a child"]


@pytest.mark.slow
def test_with_json_nothing_but_the_document_reaches_stdout(bench, tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY)
    words = ("--model", f"{tmp_path / 'noisy.py'}:Noisy", "--trust-code", "--limit", 3)
    done = bench.process("run", "stdlib-code", *words, "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["model"] == "Noisy"
    for line in NOISE:
        assert f"a line {line}" in done.stderr
    plain = bench.process("run", "stdlib-code", *words, "--recompute")
    assert "a line of a model" in plain.stdout
