"""Evaluates a collection many times, each time after one bit of its cached corpus was flipped.

Started as a process of its own, since a damaged file may crash it. Each flip is a line of JSON on
stdout, flushed: `place` before the evaluation, then its `codes` and `scores`.

    python -m tests.support.bit_flips COLLECTION CACHE FLIPS SEED CHECKED_AT_OPEN
"""

import io
import json
import logging
import random
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from bench.__main__ import main
from datasets_cfg import corpus as corpus_checksums


def evaluate(collection: Path, cache: Path) -> tuple[int, list[object], str]:
    """Exit code, everything in the results that damage could change, and the messages."""
    stdout, stderr = io.StringIO(), io.StringIO()
    out = cache.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = ["run", str(collection), "--model", "hashing", "bm25", "--json"]
    logging.getLogger().addHandler(warnings := logging.StreamHandler(stderr))
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = main([*command, "--cache-dir", str(cache), "--results", str(out)])
    logging.getLogger().removeHandler(warnings)
    results = json.loads(stdout.getvalue())["results"] if code == 0 else []
    kept = ("model", "measures", "documents", "protocol", "tie_low", "tie_high", "judged_at_10")
    return code, [{name: result[name] for name in kept} for result in results], stderr.getvalue()


def flip(path: Path, offset: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def flip_all(collection: Path, cache: Path, flips: int, seed: int) -> None:
    """Flip ``flips`` bits of every file of the cached corpus, one at a time."""
    draw = random.Random(seed)
    (corpus,) = (cache / "corpora").iterdir()
    for name in sorted(path.name for path in corpus.iterdir()):
        for _ in range(flips):
            shutil.rmtree(damaged := cache.parent / "damaged", ignore_errors=True)
            shutil.copytree(cache, damaged)
            path = damaged / "corpora" / corpus.name / name
            offset, bit = draw.randrange(path.stat().st_size), draw.randrange(8)
            print(json.dumps({"place": [name, offset, bit]}), flush=True)
            flip(path, offset, bit)
            runs = [evaluate(collection, damaged)]
            if runs[0][0]:  # what was refused is made again by the same command
                runs.append(evaluate(collection, damaged))
            codes, scores, said = zip(*runs, strict=True)
            print(json.dumps({"codes": codes, "scores": scores, "said": said}), flush=True)


if __name__ == "__main__":
    folder, kept, count, seed, at_open = sys.argv[1:]
    corpus_checksums.CHECKED_AT_OPEN = int(at_open)
    flip_all(Path(folder), Path(kept), int(count), int(seed))
