"""``export`` writes stored results in the formats of mteb and trec_eval."""

import io
import sys
from collections.abc import Iterator, Mapping

from tqdm import tqdm

from bench.cli.options.commands import ExportOptions
from bench.cli.terminal import as_typed, print_result
from bench.evaluation.result_record import Evaluation
from bench.evaluation.runs import has_white_space, write_lines
from bench.result_store.export import export_obstacle, mteb_files
from bench.result_store.find import choose_results, expand_collections, find_named
from bench.result_store.result import result_folder
from foundation.errors import BenchError
from foundation.files import read_file
from foundation.locations import Location, write_location

Files = Iterator[tuple[str, bytes]]


def export(options: ExportOptions) -> int:
    """Write results as files, without overwriting other content.

    Args:
        options: parsed options of the command.
    """
    if options.name and len(options.names) > 1:
        raise BenchError(f"--as is for one model, not {len(options.names)}", "export one by one")
    chosen = {name: _choose_exportable(name, options) for name in options.names}
    written = []
    for typed, stored in chosen.items():
        name = options.name or next(iter(stored.values())).model
        result_folder(options.out, name, name)  # a name may lead out of the folder
        files = _format_files(options.format, name, stored)
        for path, content in tqdm(files, desc=typed, unit=" files"):
            written.append(str(_write_once(options.out, path, content)))
    print(f"{len(written)} files in {options.out}", file=sys.stderr)
    return print_result(options.output.json, {"files": written}, "\n".join(written))


def _choose_exportable(typed: str, options: ExportOptions) -> dict[str, Evaluation]:
    """Choose the results of one model that the format supports, by collection."""
    results = find_named(typed, *options.results)
    known = {each.collection for each in results}
    wanted = expand_collections(options.on, known) if options.on else None
    stored = choose_results(typed, results, wanted)
    for name, record in list(stored.items()) if options.format == "mteb" else ():
        if why := export_obstacle(record.result):
            print(f"left out: {typed} on {name}: {why}", file=sys.stderr)
            del stored[name]
    if not stored:
        raise BenchError(
            f"{typed} has no result that can be exported as {options.format}",
            "choose other collections with --on",
        )
    return stored


def _format_files(format_: str, name: str, stored: Mapping[str, Evaluation]) -> Files:
    """Yield the path of each file below the folder, and its content."""
    if format_ == "mteb":
        yield from mteb_files(name, stored).items()
    else:
        for collection, record in stored.items():
            yield f"{name}/{collection}.trec.gz", _format_run_file(name, record)


def _format_run_file(tag: str, record: Evaluation) -> bytes:
    """Return a compressed TREC run file, and warn if ids are percent-encoded."""
    content = io.BytesIO()
    if has_white_space(record.run):
        collection = record.result.protocol.collection
        about = "ids hold white space, so all are percent-encoded, as `python -m bench score` reads"
        print(as_typed(f"warning: {collection}: {about}; other programs do not"), file=sys.stderr)
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
