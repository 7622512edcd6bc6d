"""How long encoding will take, from a timed sample, before hours are spent."""

import sys
import time
from datetime import timedelta

from bench.errors import BenchError
from bench.pipeline import sample_documents
from datasets_cfg.corpus import Corpus
from retrievers.encoder import Encoder

SAMPLE_DOCUMENTS = 64
LONG_S = 3600.0


def seconds_per_document(encoder: Encoder, corpus: Corpus) -> float:
    """Wall-clock seconds to encode one document here, mean of a seeded random sample."""
    titles, texts = sample_documents(corpus, SAMPLE_DOCUMENTS)
    encoder.encode_documents(titles[:4], texts[:4])  # loads the weights, warms the processor up
    start = time.perf_counter()
    encoder.encode_documents(titles, texts)
    return (time.perf_counter() - start) / len(texts)


def readable(seconds: float) -> str:
    """Hours and minutes: ``2:05:00``."""
    return str(timedelta(seconds=round(seconds)))


def confirm(seconds: float, what: str, yes: bool) -> None:
    """Say how long it will take; ask a terminal user about more than an hour.

    Raises:
        BenchError: the user said no.
    """
    print(f"encoding {what} will take about {readable(seconds)} on this machine", file=sys.stderr)
    if seconds < LONG_S or yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    print("what is done is kept if you stop it. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise BenchError("stopped before encoding", "add --yes to start without being asked")
