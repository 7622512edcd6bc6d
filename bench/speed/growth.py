"""Growth of encoding: time with documents and their length, time and memory of whole runs."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.speed import fit as growth
from bench.speed.encode import OURS
from bench.speed.peers.job import Job
from bench.speed.race import run_command, write_folder
from bench.speed.records import Growth, Spread
from bench.speed.texts import Texts, of_length
from bench.speed.tools import FinishedProcess, run_process
from retrievers.encoders.protocol import Encoder

LENGTHS = (16, 32, 64, 128, 256)
SIZES = 5  # each twice the one before
RUN_SIZES = 4
RUN_TOKENS = 32
QUERIES = 10


def encode_growth(
    encoder: Encoder, sources: Sequence[str], tokens: int, repeats: int
) -> tuple[Growth, ...]:
    """Seconds of encoding against the number of documents, and against their length.

    Args:
        tokens: of the largest sample.
    """
    limit = encoder.recipe.max_document_tokens
    length = min(128, limit)
    documents = max(1 << (SIZES - 1), tokens // length)
    texts = of_length(encoder, sources, documents, length)
    sizes = [documents >> shift for shift in reversed(range(SIZES))]
    by_size = growth.measure(lambda count: _encode(encoder, texts.first(count)), sizes, repeats)
    fits = [growth.fit("documents", "encode, s", f"{length} tokens each", sizes, by_size)]
    lengths = [text_length for text_length in LENGTHS if text_length <= limit]
    if len(lengths) > 1:
        count = max(8, tokens // lengths[-1])
        made = {
            text_length: of_length(encoder, sources, count, text_length) for text_length in lengths
        }
        by_length = growth.measure(
            lambda text_length: _encode(encoder, made[text_length]), lengths, repeats
        )
        at = f"{count:,} documents"
        fits.append(growth.fit("tokens of a document", "encode, s", at, lengths, by_length))
    return tuple(fits)


def _encode(encoder: Encoder, texts: Texts) -> None:
    encoder.encode_documents(texts.titles, texts.texts)


def run_growth(
    encoder: Encoder,
    sources: Sequence[str],
    tokens: int,
    repeats: int,
    job: Job,
    arguments: Sequence[str],
    place: Path,
) -> tuple[Growth, ...]:
    """Seconds and peak memory of whole runs, each a fresh process, against documents.

    Args:
        tokens: of the largest run.
        arguments: of ``run`` for this model.
        place: folder for what is written.
    """
    length = min(RUN_TOKENS, encoder.recipe.max_document_tokens)
    documents = max(QUERIES << (RUN_SIZES - 1), tokens // length)
    texts = of_length(encoder, sources, documents, length)
    sizes = [documents >> shift for shift in reversed(range(RUN_SIZES))]
    done: dict[int, list[FinishedProcess]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        for size in sizes:
            _write(Path(temporary) / str(size), texts.first(size))
        for turn in range(repeats):
            for size in sizes:
                own = replace(job, folder=str(Path(temporary) / str(size)))
                command = run_command(own, arguments, Path(temporary) / f"{turn}-{size}")
                done[size].append(run_process(command, job.threads, OURS))
    at = f"{length} tokens each, {QUERIES} queries, a fresh process and cache"
    seconds = [Spread.of([process.seconds for process in done[size]]) for size in sizes]
    memory = [Spread.of([process.peak_bytes / 1e6 for process in done[size]]) for size in sizes]
    return (
        growth.fit("documents", "whole run, s", at, sizes, seconds),
        growth.fit("documents", "peak memory, MB", at, sizes, memory),
    )


def _write(folder: Path, texts: Texts) -> None:
    documents = [(f"d{row}", "", text) for row, text in enumerate(texts.texts)]
    queries = {f"q{row}": text for row, text in enumerate(texts.texts[:QUERIES])}
    judgements = [(f"q{row}", f"d{row}", 1) for row in range(QUERIES)]
    write_folder(folder, documents, queries, judgements, {"name": "growth", "layout": "beir"})
