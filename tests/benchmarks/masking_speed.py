"""How much faster are the vectorised masks than a loop over tokens?

Masks of a RetroMAE batch of 32 texts of 512 tokens, words of 1.3 tokens on average, drawn both ways
in one process, on one thread:

- ``whole words``: which tokens the encoder does not see (30 %), and what it reads instead;
- ``contexts``: for each of the 16,384 tokens, the context that it is reconstructed from (50 %);
- ``all``: both, what a batch of enhanced decoding needs.

Wanted: 20 times the speed of the loops, which have the same semantics: the tests show that both
draw from the same distribution. The two take turns, and the median of the rounds is given.

    python -m tests.benchmarks.masking_speed [--texts 32] [--length 512] [--repeats 5]

The last line of stdout is one JSON document; times are in seconds.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

import numpy as np

from retrievers.training.objectives.masking import (
    NOT_A_WORD,
    TokenBatch,
    Vocabulary,
    context_mask,
    masked_copy,
)
from tests.support import slow_masking as slow

VOCABULARY = Vocabulary(mask_id=103, size=30_522)
ENCODER_MASK, DECODER_MASK = 0.3, 0.5
PIECES = (1, 2, 3)  # tokens of a word, and how often there are such
SHARES = (0.77, 0.16, 0.07)
WANTED = 20


def texts_of(texts: int, length: int) -> TokenBatch:
    """Full texts of random words between two special tokens."""
    rng = np.random.default_rng(0)
    sizes = rng.choice(PIECES, (texts, length), p=SHARES)
    words = np.full((texts, length), NOT_A_WORD)
    for row, size in zip(words, sizes, strict=True):
        row[1:-1] = np.repeat(np.arange(length), size)[: length - 2]
    ids = rng.integers(999, VOCABULARY.size, (texts, length))
    return TokenBatch(ids, np.ones((texts, length), dtype=bool), words)


def slow_copy(tokens: TokenBatch, draw: random.Random) -> None:
    """What the encoder reads, one token at a time."""
    for ids, words in zip(tokens.ids.tolist(), tokens.words.tolist(), strict=True):
        masked = slow.whole_word_mask(words, ENCODER_MASK, draw)
        slow.replace_masked(ids, masked, VOCABULARY.mask_id, VOCABULARY.size, draw)


def slow_contexts(tokens: TokenBatch, draw: random.Random) -> None:
    """The context of every token, one token at a time."""
    for words, real in zip(tokens.words.tolist(), tokens.real.tolist(), strict=True):
        slow.context_mask(words, real, DECODER_MASK, draw)


def seconds(work: Callable[[], object]) -> float:
    """Of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(tokens: TokenBatch, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds of both ways, and how many times faster the vectorised one is."""
    rng, draw = np.random.default_rng(0), random.Random(0)
    ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "whole words": (
            lambda: masked_copy(tokens, ENCODER_MASK, VOCABULARY, rng),
            lambda: slow_copy(tokens, draw),
        ),
        "contexts": (
            lambda: context_mask(tokens, DECODER_MASK, rng),
            lambda: slow_contexts(tokens, draw),
        ),
    }
    for ours, _ in ways.values():
        ours()
    found = {}
    for name, (ours, loops) in ways.items():
        rounds = [(seconds(ours), seconds(loops)) for _ in range(repeats)]
        found[name] = [statistics.median(times) for times in zip(*rounds, strict=True)]
    found["all"] = [sum(times) for times in zip(*found.values(), strict=True)]
    return {
        name: {"vectorised_s": ours, "loops_s": loops, "times_faster": loops / ours}
        for name, (ours, loops) in found.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    found = measure(texts_of(options.texts, options.length), options.repeats)
    print(f"{options.texts} texts of {options.length} tokens; wanted: {WANTED} times faster\n")
    for name, row in found.items():
        print(
            f"{name:12} vectorised {row['vectorised_s'] * 1e3:8.2f} ms   "
            f"loops {row['loops_s'] * 1e3:9.1f} ms   {row['times_faster']:6.0f} times faster"
        )
    print(json.dumps({"texts": options.texts, "length": options.length, "masks": found}))


if __name__ == "__main__":
    main()
