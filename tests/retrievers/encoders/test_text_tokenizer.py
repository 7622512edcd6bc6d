"""Token ids from a cache of words against those of the tokenizer itself."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.processors import BertProcessing

from retrievers.encoders import word_pieces
from retrievers.encoders.opening import open_encoder
from retrievers.encoders.text_tokenizer import TextTokenizer
from retrievers.encoders.tokenizer_processes import BLOCK, TokenizerProcesses, useful_processes
from retrievers.encoders.tokens import Tokens
from retrievers.encoders.word_pieces import splits_words
from retrievers.models.model import resolve_model
from tests.benchmarks.tokenise_speed import real_texts, segments_of
from tests.support import tiny_checkpoints as tiny

ROOT = Path(__file__).parents[3]
NORMALIZERS = [
    {"lowercase": lowercase, "strip_accents": accents, "handle_chinese_chars": chinese}
    for lowercase, accents, chinese in [
        (True, None, True),
        (True, False, True),
        (False, None, True),
        (False, True, False),
    ]
]
# What the rules of the tokenizer treat in a way of its own, and what Python splits otherwise.
ODD = [
    *("[SEP]", "[MASK]", "[CLS]", "[PAD]", "[UNK]", "[sep]", "[SE", "P]", "[", "]", "[[SEP]]"),
    *(" ", "\t", "\n", "\r", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u2028", "\u3000"),
    *("\0", "\x01", "\x08", "\x0e", "\x1b", "\x7f", "\xad", "\u200b", "\ufeff", "\ufffd", "\ue000"),
    *(
        "\u0301",
        "\u0338",
        "é",
        "É",
        "≯",
        "İ",
        "ß",
        "ﬁ",
        "Σ",
        "ς",
        "ǅ",
        "中",
        "文",
        "が",
        "각",
        "ᄀ",
    ),
    *("—", "“", "’", "…", "‿", "€", "½", "Ⅷ", "𝔄", "😀", "👩\u200d💻", "\U0001f1e9", "نص", "हिन्दी"),
    *("##ing", "unaffable", "word", "Word", "x" * 101, "don't", "3.14", "a-b", "U.S.", "don", "t"),
]
odd_texts = st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=4)), max_size=12).map("".join)
texts = st.one_of(odd_texts, st.text(max_size=30))
segments = st.lists(st.tuples(texts, st.one_of(st.none(), texts)), max_size=6)


def minilm() -> str:
    checkpoint = resolve_model("minilm").document
    assert checkpoint
    return (checkpoint.folder / "tokenizer.json").read_text(encoding="utf-8")


@cache
def both(choice: int, side: Any) -> tuple[TextTokenizer, TextTokenizer]:
    """From the cache of words, and by the tokenizer itself."""

    def tokenizer() -> Any:
        own = Tokenizer.from_str(minilm())
        own.normalizer = normalizers.BertNormalizer(**NORMALIZERS[choice])
        return own

    cached = TextTokenizer(tokenizer(), side, True)
    assert cached.cached
    return cached, TextTokenizer(tokenizer(), side, True, cached=False)


def assert_same(found: Tokens, expected: Tokens) -> None:
    assert found.lengths.tolist() == expected.lengths.tolist()
    assert found.ids.tolist() == expected.ids.tolist()
    assert (found.types is None) == (expected.types is None)
    if found.types is not None and expected.types is not None:
        assert found.types.tolist() == expected.types.tolist()


@settings(max_examples=400, deadline=None)
@given(segments, st.one_of(st.none(), st.integers(4, 20)), st.integers(0, 3), st.booleans())
@example([("a\0b \0 c", None), ("[S\x01EP]", "[S\vEP]"), ("ma[SEP]de", None)], None, 0, True)
@example([("\x01 \x02", None), ("", ""), ("", None), ("a b c d e f g", "h")], 6, 0, False)
def test_ids_from_words_are_those_of_the_tokenizer(
    pairs: list[tuple[str, str | None]], most: int | None, choice: int, right: bool
) -> None:
    found, expected = both(choice, "right" if right else "left")
    assert_same(found(pairs, most), expected(pairs, most))


def test_every_character_alone_and_between_letters_has_the_ids_of_the_tokenizer() -> None:
    found, expected = both(0, "right")
    characters = [
        chr(code) for code in (*range(0x3100), *range(0xA000, 0xD800, 7), *range(0xF900, 0x10000))
    ]
    pairs = [(f"a{character}b {character}", None) for character in characters]
    assert_same(found(pairs, None), expected(pairs, None))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 12), st.integers(0, 12), st.integers(4, 20), st.sampled_from(["left", "right"])
)
def test_pairs_are_cut_as_the_tokenizer_cuts_them(
    first: int, second: int, most: int, side: str
) -> None:
    found, expected = both(0, side)
    pairs = [(" ".join("abcdefghijkl"[:first]), " ".join("mnopqrstuvwx"[:second]))]
    assert_same(found(pairs, most), expected(pairs, most))


def test_a_cache_that_is_full_is_emptied_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_pieces, "MOST_WORDS", 40)
    monkeypatch.setattr(word_pieces, "CHARACTERS", 50)
    own = TextTokenizer(Tokenizer.from_str(minilm()), "right", False)
    _, expected = both(0, "right")
    pairs = [(f"word{n} and {n * 17} [SEP] others", None) for n in range(200)]
    found = own(pairs, None)
    assert_same(found, Tokens(expected(pairs, None).ids, expected(pairs, None).lengths))
    assert own._cache is not None
    assert len(own._cache) < 80


def test_half_a_surrogate_pair_is_what_the_tokenizer_makes_of_it() -> None:
    found, expected = both(0, "right")
    answers = []
    for tokenizer in (found, expected):
        with pytest.raises((TypeError, UnicodeEncodeError)) as caught:
            tokenizer([("a \ud800 b", None)], None)
        answers.append(caught.type)
    assert answers[0] == answers[1]


def variants() -> Iterator[tuple[str, Any]]:
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "##b": 4, "hello": 5}

    def bert() -> Any:
        own = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
        own.normalizer = normalizers.BertNormalizer()
        own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        own.post_processor = BertProcessing(("[SEP]", 2), ("[CLS]", 1))
        return own

    yield "plain", bert()
    other = bert()
    other.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.BertNormalizer()])
    yield "normalizer", other
    other = bert()
    other.normalizer = normalizers.BertNormalizer(clean_text=False)
    yield "clean_text", other
    other = bert()
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    yield "pre_tokenizer", other
    for name, token in {
        "word": AddedToken("hello", normalized=False),
        "normalized": AddedToken("[X]", normalized=True),
        "stripped": AddedToken("[X]", normalized=False, lstrip=True),
        "alone": AddedToken("[X]", normalized=False, single_word=True),
    }.items():
        other = bert()
        other.add_tokens([token])
        yield name, other


@pytest.mark.parametrize(
    ("name", "tokenizer"), list(variants()), ids=[name for name, _ in variants()]
)
def test_only_known_rules_are_read_from_the_cache(name: str, tokenizer: Any) -> None:
    assert splits_words(tokenizer) == (name == "plain")
    content = tokenizer.to_str()
    found = TextTokenizer(tokenizer, "right", True)
    expected = TextTokenizer(Tokenizer.from_str(content), "right", True, cached=False)
    assert found.cached == (name == "plain")
    pairs = [("Hello [X]a hello", None), ("AB a", " [X] b"), ("\vhello\f", None)]
    assert_same(found(pairs, 7), expected(pairs, 7))


@pytest.mark.parametrize("split", [False, True])
def test_special_tokens_in_a_text_are_read_as_text_where_asked(split: bool) -> None:
    found = TextTokenizer(Tokenizer.from_str(minilm()), "right", False, split_special_tokens=split)
    assert found.cached != split
    assert (102 in found([("a [SEP] b", None)], None).ids[1:-1]) != split


def folder() -> Path:
    return Path(os.environ.get("BENCH_DATA", "/nowhere"))


needs_data = pytest.mark.skipif("BENCH_DATA" not in os.environ, reason="needs BENCH_DATA")


@needs_data
def test_ids_of_some_real_texts_are_those_of_the_tokenizer() -> None:
    found, expected = both(0, "right")
    sample = list(real_texts(folder()))[::97]
    assert len(sample) > 500
    for rule in ("space", "sep", "pair"):
        pairs = segments_of(rule, sample)
        assert_same(found(pairs, 128), expected(pairs, 128))


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("rule", ["space", "sep", "pair"])
@pytest.mark.parametrize("most", [None, 32, 256])
def test_ids_of_all_real_texts_are_those_of_the_tokenizer(rule: str, most: int | None) -> None:
    found, expected = both(0, "right")
    pairs = segments_of(rule, list(real_texts(folder())))
    assert len(pairs) > 50_000
    for start in range(0, len(pairs), 4_096):
        some = pairs[start : start + 4_096]
        assert_same(found(some, most), expected(some, most))


@pytest.fixture
def processes() -> Iterator[TokenizerProcesses]:
    own = TokenizerProcesses(TextTokenizer(Tokenizer.from_str(minilm()), "left", True), 2)
    yield own
    own.close()


PAIRS: list[tuple[str, str | None]] = [
    (f"title {n}", f"text [SEP] {n} é" if n % 3 else None) for n in range(3 * BLOCK + 5)
]


def test_processes_give_the_ids_of_the_tokenizer_in_order(processes: TokenizerProcesses) -> None:
    _, expected = both(0, "left")
    for most in (None, 9):
        assert_same(processes(PAIRS, most), expected(PAIRS, most))
    assert len(processes.started) == 2


def test_few_texts_start_no_process(processes: TokenizerProcesses) -> None:
    _, expected = both(0, "left")
    assert_same(processes(PAIRS[:BLOCK], 9), expected(PAIRS[:BLOCK], 9))
    assert processes.started == []


@pytest.mark.parametrize(
    ("cores", "cached", "count"),
    [(1, True, 0), (2, True, 0), (4, True, 2), (64, True, 4), (12, False, 10), (64, False, 16)],
)
def test_processes_leave_cores_to_what_drives_the_gpu(
    cores: int, cached: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    assert useful_processes(both(0, "right")[not cached]) == count


def test_an_encoder_tokenises_in_processes_where_asked_and_gives_the_same_vectors(
    tmp_path: Path,
) -> None:
    tiny.write_bert(tmp_path / "bert")
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="bert", pooling="mean")
    texts = [f"the river of stone {'alpha ' * (n % 7)}{n}" for n in range(BLOCK + 100)]
    alone: Any = open_encoder(resolve_model(str(card)), "cpu")
    beside: Any = open_encoder(resolve_model(str(card)), "cpu", tokenizer_processes=1)
    found = beside.encode_documents([""] * len(texts), texts)
    assert found.tobytes() == alone.encode_documents([""] * len(texts), texts).tobytes()
    assert len(beside._towers.document._texts.started) == 1
    beside._towers.document._texts.close()


def test_a_process_that_was_killed_is_replaced_by_this_one(
    processes: TokenizerProcesses, caplog: pytest.LogCaptureFixture
) -> None:
    _, expected = both(0, "left")
    processes(PAIRS, 9)
    for process in processes.started:
        process.kill()
        process.wait()
    for _ in range(2):
        assert_same(processes(PAIRS, 9), expected(PAIRS, 9))
    assert [text[:35] for text in caplog.messages] == ["a process that tokenises has ended "]
    assert len(processes.started) == 2


def test_processes_run_this_code_also_where_the_folder_has_a_package_of_that_name(
    processes: TokenizerProcesses,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "retrievers").mkdir()
    (tmp_path / "retrievers" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    processes(PAIRS, 9)
    assert caplog.messages == []
    assert [process.poll() for process in processes.started] == [None, None]


def test_processes_end_with_their_owner() -> None:
    own = TokenizerProcesses(TextTokenizer(Tokenizer.from_str(minilm()), "left", True), 2)
    own(PAIRS, 9)
    started = own.started
    del own
    assert [process.wait(20) for process in started] == [-signal.SIGTERM] * 2


def test_processes_end_although_a_forked_process_holds_their_pipes(
    processes: TokenizerProcesses,
) -> None:
    processes(PAIRS, 9)
    holder = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    holder.start()
    closing = threading.Thread(target=processes.close)
    closing.start()
    closing.join(20)
    waits = closing.is_alive()
    holder.kill()  # without its copy of the pipes what waits goes on, here and in the fixture
    closing.join()
    holder.join()
    assert not waits


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_process_that_tokenises_has_one_thread(processes: TokenizerProcesses) -> None:
    processes(PAIRS, 9)
    for process in processes.started:
        assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 1


def test_a_script_without_a_guard_is_not_run_again_by_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    content = tmp_path / "tokenizer.json"
    content.write_text(minilm(), encoding="utf-8")
    script.write_text(
        "from tokenizers import Tokenizer\n"
        "from retrievers.encoders.text_tokenizer import TextTokenizer\n"
        "from retrievers.encoders.tokenizer_processes import TokenizerProcesses\n"
        f"own = TextTokenizer(Tokenizer.from_file({str(content)!r}), 'right', False)\n"
        "texts = [('a b', None)] * 3000\n"
        "print(len(TokenizerProcesses(own, 2)(texts, None).ids))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "12000\n"


def test_rows_are_taken_in_the_order_asked() -> None:
    tokens = Tokens.of([[1, 2], [], [3], [4, 5, 6]], [[0, 1], [], [1], [0, 0, 1]])
    taken = tokens.take(np.array([3, 1, 0]))
    assert (taken.ids.tolist(), taken.lengths.tolist()) == ([4, 5, 6, 1, 2], [3, 0, 2])
    assert taken.types is not None
    assert taken.types.tolist() == [0, 0, 1, 0, 1]
