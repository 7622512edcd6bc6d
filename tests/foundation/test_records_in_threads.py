"""Records that several threads decode at once."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A type that no thread has decoded yet, in each round. With msgspec 0.22 alone the process ended in
# the first rounds, with SIGSEGV.
DECODES = """
import json, sys, threading
import msgspec
from foundation.records import Record, decode_json

sys.setswitchinterval(1e-6)
DEPTH, THREADS = 12, 8


def nested():
    kind = int
    for level in range(DEPTH):
        others = [(f"other{number}", float | None, None) for number in range(8)]
        kind = msgspec.defstruct(
            f"Level{level}", [("inner", kind), *others], bases=(Record,), frozen=True, kw_only=True
        )
    return kind


value = 7
for _ in range(DEPTH):
    value = {"inner": value}
content = json.dumps(value).encode()
for _ in range(100):
    kind, together, read = nested(), threading.Barrier(THREADS), []

    def decode():
        together.wait()
        read.append(decode_json(content, kind, "it"))

    threads = [threading.Thread(target=decode) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [read[0]] * THREADS
"""


@pytest.mark.slow
def test_threads_that_decode_a_type_for_the_first_time_do_not_end_the_process() -> None:
    subprocess.run([sys.executable, "-c", DECODES], cwd=ROOT, check=True)
