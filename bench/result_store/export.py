"""Export of stored results as files of mteb 2 and trec_eval."""

import io
import sys
from collections.abc import Iterator, Mapping

from tqdm import tqdm

from bench.evaluation.result_record import Evaluation
from bench.evaluation.runs import has_white_space, write_lines
from bench.requests.deciding import ExportRequest
from bench.result_store.find import choose_results, expand_collections, find_named
from bench.result_store.mteb_files import export_obstacle, mteb_files
from bench.result_store.result import result_folder
from foundation.errors import BenchError
from foundation.files import read_file
from foundation.locations import Location, write_location

Files = Iterator[tuple[str, bytes]]


def export(request: ExportRequest) -> list[Location]:
    """Write results as files, without overwriting other content, and return the files.

    Raises:
        BenchError: wrong input, nothing to export, or a file exists with other content.
    """
    if request.name and len(request.names) > 1:
        raise BenchError(f"--as is for one model, not {len(request.names)}", "export one by one")
    chosen = {name: _choose_exportable(name, request) for name in request.names}
    written = []
    for typed, stored in chosen.items():
        name = request.name or next(iter(stored.values())).model
        result_folder(request.out, name, name)  # a name may lead out of the folder
        files = _format_files(request.form, name, stored)
        for path, content in tqdm(files, desc=typed, unit=" files"):
            written.append(_write_once(request.out, path, content))
    return written


def _choose_exportable(typed: str, request: ExportRequest) -> dict[str, Evaluation]:
    """Choose the results of one model that the format supports, by collection."""
    results = find_named(typed, *request.results)
    known = {each.dataset for each in results}
    wanted = expand_collections(request.on, known) if request.on else None
    stored = choose_results(typed, results, wanted)
    for name, record in list(stored.items()) if request.form == "mteb" else ():
        if why := export_obstacle(record.record):
            print(f"left out: {typed} on {name}: {why}", file=sys.stderr)
            del stored[name]
    if not stored:
        raise BenchError(
            f"{typed} has no result that can be exported as {request.form}",
            "choose other collections with --on",
        )
    return stored


def _format_files(form: str, name: str, stored: Mapping[str, Evaluation]) -> Files:
    """Yield the path of each file below the folder, and its content."""
    if form == "mteb":
        yield from mteb_files(name, stored).items()
    else:
        for collection, record in stored.items():
            yield f"{name}/{collection}.trec.gz", _format_run_file(name, record)


def _format_run_file(tag: str, record: Evaluation) -> bytes:
    """Return a compressed TREC run file, and warn if ids are percent-encoded."""
    content = io.BytesIO()
    if has_white_space(record.run):
        collection = record.record.protocol.collection
        about = "ids hold white space, so all are percent-encoded, as `python -m bench score` reads"
        print(f"warning: {collection}: {about}; other programs do not", file=sys.stderr)
    write_lines(record.run, content, tag, compress=True)
    return content.getvalue()


def _write_once(out: Location, path: str, content: bytes) -> Location:
    """Write a file, or raise if it exists with other content."""
    file = out / path
    if not file.exists():
        with write_location(file) as opened:
            opened.write(content)
    elif read_file(file, max_bytes=None) != content:
        raise BenchError(f"{file} exists already, with different content", "choose another --out")
    return file
