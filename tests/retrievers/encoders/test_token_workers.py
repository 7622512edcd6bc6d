"""Token ids from processes against those of this process, and how the processes end."""

import os
import signal
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from retrievers.encoders import token_workers
from retrievers.encoders.token_workers import TokenWorkers
from retrievers.encoders.tokens import TextTokenizer, Tokens, probe_texts
from retrievers.models.card import TruncationSide
from tests.support.collections import start
from tests.support.processes import wait_until

TEXTS = [*probe_texts(), "", "[SEP] a [MASK]", "İß ﬁ 😀 中が", "long " * 20]
SEGMENTS = [(text, None) for text in TEXTS] + [(text, text[:60]) for text in TEXTS]
SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]

pytestmark = pytest.mark.slow


def trained(kind: str) -> Tokenizer:
    """A tokenizer of each kind of model, with special tokens around texts and pairs."""
    if kind == "unigram":
        tokenizer, trainer = Tokenizer(models.Unigram()), trainers.UnigramTrainer
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    elif kind == "bpe":
        tokenizer, trainer = Tokenizer(models.BPE()), trainers.BpeTrainer
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer, trainer = (
            Tokenizer(models.WordPiece(unk_token="[UNK]")),
            trainers.WordPieceTrainer,
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    options: Any = {"vocab_size": 300, "special_tokens": SPECIAL, "show_progress": False}
    options |= {"unk_token": "[UNK]"} if kind == "unigram" else {}
    tokenizer.train_from_iterator(probe_texts(), trainer(**options))
    around = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
    )
    return tokenizer


@pytest.fixture(autouse=True)
def short_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_workers, "TEXTS_PER_REQUEST", 10)


def living(process: psutil.Process | None = None) -> list[psutil.Process]:
    """Workers of this or another process that have not ended; other tests have children, too."""
    found = []
    for child in (process or psutil.Process()).children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if token_workers.__name__ in " ".join(child.cmdline()):
                found.append(child)
    return found


def assert_equal(found: Tokens, expected: Tokens) -> None:
    for name in ("ids", "lengths", "types"):
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_array_equal(one, other)
        assert one is other is None or one.dtype == other.dtype


@pytest.mark.parametrize(
    ("kind", "side", "typed", "split"),
    [
        ("wordpiece", "right", True, False),
        ("bpe", "left", False, True),
        ("unigram", "right", False, False),
    ],
)
def test_workers_give_the_tokens_of_the_tokenizer_and_end_with_it(
    kind: str, side: TruncationSide, typed: bool, split: bool
) -> None:
    tokenizer = TextTokenizer(trained(kind), side, typed, split_special_tokens=split)
    workers = TokenWorkers(tokenizer, 1)
    for most in (None, 12):
        expected = tokenizer(SEGMENTS, most)
        assert_equal(workers(SEGMENTS, most), expected)
        assert len(expected) == len(SEGMENTS)
    assert len(living()) == 1
    del workers
    assert not living()


def test_this_process_does_the_work_of_workers_that_die(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = TextTokenizer(trained("wordpiece"), "right", True)
    workers, expected = TokenWorkers(tokenizer, 2), tokenizer(SEGMENTS, None)
    assert_equal(workers(SEGMENTS, None), expected)
    for left in (1, 0):
        living()[0].kill()
        wait_until(lambda left=left: len(living()) == left)
        for _ in range(2):
            assert_equal(workers(SEGMENTS, None), expected)
    assert [text for text in caplog.messages if "has died" in text] == caplog.messages
    assert 0 < len(caplog.messages) <= 2


class Words:
    """A part of a tokenizer that is written in Python, and cannot be sent to a process."""

    def pre_tokenize(self, text: Any) -> None:
        text.split(lambda number, part: part.split(" ", "removed"))


def test_a_tokenizer_that_cannot_be_sent_is_used_in_this_process() -> None:
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Words())
    workers = TokenWorkers(TextTokenizer(backend, "right", False), 2)
    assert workers([("a b a", None)] * 30, None).ids.tolist() == [1, 0, 1] * 30
    assert not living()


WITHOUT_GUARD = """
    import multiprocessing, time
    from tokenizers import Tokenizer, models, pre_tokenizers
    from retrievers.encoders.token_workers import TokenWorkers
    from retrievers.encoders.tokens import TextTokenizer

    print("run", flush=True)

    def tokenize():
        backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        workers = TokenWorkers(TextTokenizer(backend, "right", False), 2)
        print(workers([("a b", None)] * 300, None).ids.sum(), flush=True)
        return workers

    child = multiprocessing.get_context("fork").Process(target=tokenize, daemon=True)
    child.start()
    child.join()
    workers = tokenize()
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_scripts_without_a_guard_and_daemonic_processes_have_workers_which_end_silently(
    sent: int, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(WITHOUT_GUARD))
    with start([sys.executable, str(script)], process_group=0) as parent:
        assert parent.stdout
        assert parent.stderr
        lines = [parent.stdout.readline().strip() for _ in range(4)]
        assert lines == ["run", "300", "300", "ready"], "the main module ran once"
        workers = living(psutil.Process(parent.pid))
        assert len(workers) == 2
        os.killpg(parent.pid, sent)  # as Ctrl-C does, to all of a terminal's foreground
        wait_until(lambda: not any(map(psutil.Process.is_running, workers)))
        assert parent.stderr.read().count("Traceback") == (sent == signal.SIGINT)
