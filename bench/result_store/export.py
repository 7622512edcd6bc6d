"""Export of stored rankings as TREC run files, which trec_eval and other tools read."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path

from tqdm import tqdm

from bench.evaluation.result_record import Evaluation
from bench.evaluation.run_files import write_lines
from bench.requests.deciding import ExportRequest
from bench.result_store.find import choose_results, expand_collections, find_named
from foundation.errors import BenchError
from foundation.files import replace_file


def export(request: ExportRequest) -> list[Path]:
    """Write rankings as files, without overwriting other content, and return the files.

    Raises:
        BenchError: wrong input, nothing to export, or a file exists with other content.
    """
    chosen = {name: _choose(name, request) for name in request.names}
    written = []
    for typed, stored in chosen.items():
        for path, content in tqdm(_run_files(stored), desc=typed, unit=" files"):
            written.append(_write_once(request.out / path, content))
    return written


def _choose(typed: str, request: ExportRequest) -> dict[str, Evaluation]:
    """Choose the results of one model, by collection."""
    results = find_named(typed, *request.results)
    known = {each.dataset for each in results}
    wanted = expand_collections(request.on, known) if request.on else None
    stored = choose_results(typed, results, wanted)
    if not stored:
        raise BenchError(f"{typed} has no results on these collections", "choose others with --on")
    return stored


def _run_files(stored: Mapping[str, Evaluation]) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each compressed TREC run file."""
    for collection, record in stored.items():
        content = io.BytesIO()
        write_lines(record.run, content, record.model, compress=True)
        yield f"{record.model}/{collection}.trec.gz", content.getvalue()


def _write_once(file: Path, content: bytes) -> Path:
    """Write a file, or raise if it exists with other content."""
    if not file.exists():
        with replace_file(file) as opened:
            opened.write(content)
    elif file.read_bytes() != content:
        raise BenchError(f"{file} exists already, with different content", "choose another --out")
    return file
