"""Files of runs, as this program and others write them.

Text has one document a line, in columns separated by tabs or blanks: six of TREC, three of Tevatron
(with scores) or of MS MARCO (with ranks), or ColBERT's four. Predictions of mteb are one JSON
document, those of sentence-transformers one JSON document a line. All may be compressed with gzip
or zstd. Unambiguous files are read; the assumption made is recorded in the `RunFile`.

Stored results have the columnar format, an Arrow IPC file (Feather) with the columns ``query``,
``document`` and ``score``. It stores each id once, in a dictionary, and the numbers compressed with
zstd. Its ids may have any characters, and queries may have no documents.
"""

import gzip
import hashlib
import io
import json
import logging
import re
import shlex
import zlib
from bisect import bisect_left
from codecs import BOM_UTF8
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from bench.evaluation.runs import Run, Strings, encode_strings, round_scores
from datasets_cfg.verification import WHITE_SPACE
from foundation.errors import BenchError

# Columns of text by their number. The score of three columns may be a rank, see `_interpret`.
_COLUMNS = {
    3: ["query", "document", "score"],
    4: ["query", "document", "rank", "score"],
    6: ["query", "Q0", "document", "place", "score", "tag"],
}
_NUMBERS = ("rank", "score")
SHOWN = 80  # characters of a line that an error shows
_HINT = (
    "Each line has the 6 columns of TREC (query Q0 document rank score tag), or all have 3 (query "
    "document score, as of Tevatron, or query document rank, as of MS MARCO) or ColBERT's 4 (query "
    "document rank score)."
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_RECORDS = re.compile(rb'\s*\{\s*"query_id"\s*:\s*["0-9]')  # of sentence-transformers
_JSON = re.compile(rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:')
_ABOUT_MODEL = "mteb_model_meta"  # of mteb, next to the predictions
_BLOCK_BYTES = 1 << 26
_BLOCK_ROWS = 1 << 20  # lines written at a time
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ARROW = b"ARROW1"
_ZSTD_LEVEL = 1
_GZIP_LEVEL = 1  # a sixth of the time of level 6, for files a tenth larger
_SPACES = bytes.maketrans(b"\t\v\f\r", b"    ")
_SPARE_SPACES = re.compile(rb"^ +| +$| +(?= )", re.MULTILINE)

logger = logging.getLogger(__name__)


class RunFile(NamedTuple):
    """A run with the hash of its file, and what was assumed to read it ("" if nothing)."""

    run: Run
    sha256: str
    assumption: str = ""


def read_run_file(path: Path, split: str = "") -> RunFile:
    """Read a run file in any of the formats above. The content decides, not the name.

    Columns of text are separated by white space. As in trec_eval, documents are ranked by score as
    float32, and the rank column of TREC is ignored. Queries keep the order of their first lines.
    An assumption is logged as a warning.

    Args:
        path: file, plain or compressed with gzip or zstd.
        split: split to choose from the predictions of mteb, which may be for several.
    """
    try:
        stored = path.read_bytes()
    except OSError as error:
        reason = f"cannot read run {path}: {error.strerror or error}"
        raise BenchError(reason, "Check the path.") from error
    try:
        run, assumption = _decode(stored, shlex.quote(str(path)), split)
    except BenchError as error:
        raise BenchError(f"run {path}: {error}", error.hint) from error
    if assumption:
        logger.warning("run %s: %s", path, assumption)
    return RunFile(run, hashlib.sha256(stored).hexdigest(), assumption)


def _decode(stored: bytes, path: str, split: str) -> tuple[Run, str]:
    """Return the run in the content of a file, and the assumption. ``path`` is for the shell."""
    content, printing = stored, f"cat {path}"
    try:
        if stored.startswith(_GZIP):
            content, printing = gzip.decompress(stored), f"gzip -dc {path}"
        elif stored.startswith(_ZSTD):
            frames = pa.CompressedInputStream(pa.BufferReader(stored), "zstd")
            content, printing = frames.read(), f"zstd -dc {path}"
    except (OSError, EOFError, zlib.error) as error:
        raise BenchError(f"cannot be unpacked: {error}") from error
    content = content.removeprefix(BOM_UTF8)
    if content.startswith(_ARROW):
        return _decode_columnar(content), ""
    if _PICKLE.match(content):
        problem = "this is a pickle, which may run code and is never read"
        raise BenchError(problem, "Write text instead, as Tevatron does with save_text.")
    if _JSON.match(content):
        return _read_predictions(content, split)
    return _parse_text(content, printing)


def encode_columnar(run: Run) -> pa.Buffer:
    """Return the content of the columnar file of ``run``. Equal runs give equal files."""
    queries = np.repeat(np.arange(len(run.query_ids), dtype=np.int32), np.diff(run.offsets))
    query_ids = pa.array(run.query_ids, pa.large_string())
    batch = pa.record_batch(
        {
            "query": pa.DictionaryArray.from_arrays(pa.array(queries), query_ids),
            "document": pa.DictionaryArray.from_arrays(pa.array(run.documents), run.ids),
            "score": pa.array(run.scores, pa.float32()),
        }
    )
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", _ZSTD_LEVEL))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _decode_columnar(content: bytes) -> Run:
    try:
        file = pa.ipc.open_file(pa.BufferReader(content))
        if file.num_record_batches != 1:
            raise TypeError(f"it has {file.num_record_batches} batches, where rankings have one")
        batch = file.get_batch(0)
        batch.validate(full=True)
        scores = round_scores(batch.column("score").to_numpy())
        return Run.from_columns(_id_column(batch, "query"), _id_column(batch, "document"), scores)
    except (pa.ArrowException, OSError, KeyError, TypeError, BenchError) as error:
        reason = f"damaged, or not a file of rankings: {error}"
        raise BenchError(reason, "Evaluate again, or give another run file.") from error


def _id_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of ids, and raise if it is not one."""
    column = batch.column(name)
    encoded = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if encoded else column.type
    missing = column.null_count + (column.dictionary.null_count if encoded else 0)
    if kind != pa.large_string() or missing:
        raise TypeError(f"its column {name} is {column.type}, {missing} of them missing")
    return column


def _read_predictions(content: bytes, split: str) -> tuple[Run, str]:
    """Return the run in predictions as JSON or as lines of JSON, and the assumption."""
    assumption = ""
    decode = partial(json.loads, object_pairs_hook=_refuse_repeats)
    try:
        if _RECORDS.match(content):
            pairs = []
            for line in map(decode, content.splitlines()):
                ranked = [(str(one["corpus_id"]), one.get("score")) for one in line["results"]]
                pairs.append((str(line["query_id"]), _refuse_repeats(ranked)))
            tree = _refuse_repeats(pairs)
        else:
            tree = decode(content)
            tree.pop(_ABOUT_MODEL, None)
            tree, assumption = _choose_predictions(tree, split)
        return Run.from_scores(msgspec.convert(tree, dict[str, dict[str, float]])), assumption
    except (ValueError, LookupError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        wanted = "expected predictions of mteb or sentence-transformers"
        problem = f"{wanted}; {type(error).__name__}: {error}"
        raise BenchError(problem, 'Also accepted: {"QUERY": {"DOCUMENT": SCORE}}.') from error


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dictionary of ``pairs``, or raise if a key repeats."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return found


def _choose_predictions(tree: Any, split: str) -> tuple[Any, str]:
    """Return the rankings in a JSON document, and the assumption if there are several.

    mteb writes ``{SUBSET: {SPLIT: {QUERY: {DOCUMENT: SCORE}}}}``, others the inner part only.
    """
    levels, inner = 0, tree
    while isinstance(inner, dict):
        levels, inner = levels + 1, next(iter(inner.values()), None)
    if levels < 4:
        return tree, ""
    tree = msgspec.convert(tree, dict[str, dict[str, Any]])
    entries = {(subset, name): tree[subset][name] for subset in tree for name in tree[subset]}
    chosen = [key for key in entries if len(entries) == 1 or key[1] == split]
    listed = ", ".join(map("/".join, entries))
    if len(chosen) != 1:
        problem = f"there are predictions for {listed}"
        raise BenchError(problem, "Choose a split with --split, or keep one of them in the file.")
    certain = len(entries) == 1 and split in ("", chosen[0][1])
    assumption = f"of its predictions ({listed}), {'/'.join(chosen[0])} is used"
    return entries[chosen[0]], "" if certain else assumption


def _parse_text(content: bytes, printing: str) -> tuple[Run, str]:
    """Return the run in lines, and the assumption. An error has the number of a line.

    ``printing`` is the command that prints the lines.
    """
    columns = next(filter(None, map(bytes.split, io.BytesIO(content))), [])
    if not columns:
        raise BenchError("the file is empty", _HINT)
    names = _COLUMNS.get(len(columns), _COLUMNS[6])
    try:
        table, run = _read_table(content, names)
    except (pa.ArrowInvalid, BenchError) as error:
        raise _first_bad_line(content, names) from error
    if names == _COLUMNS[6]:
        return run, _note_distances(table)
    has_ranks, assumption = _interpret(table, printing)
    if has_ranks:
        scores = -round_scores(table["score"])
        run = Run.from_columns(table["query"], table["document"], scores)
    return run, assumption


def _note_distances(table: pa.Table) -> str:
    """Return a note if the scores of TREC's six columns rise from rank to rank in every query."""
    try:
        ranks = table["place"].cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # any word may be there, since nobody reads it
        return ""
    codes, _ = encode_strings(table["query"])
    scores = table["score"].to_numpy()
    for rows in (np.flatnonzero(codes == codes[0]), slice(None)):  # the first query rejects most
        of_query, order = codes[rows], np.lexsort((ranks[rows], codes[rows]))
        follows = np.diff(of_query[order]) == 0
        follows &= np.diff(ranks[rows][order]) > 0
        if not follows.any() or not (np.diff(scores[rows][order])[follows] > 0).all():
            return ""
    return (
        "scores rise from rank to rank in every query, and the highest score is taken as the best, "
        "as in trec_eval; if they are distances, write them with a minus sign"
    )


def _interpret(table: pa.Table, printing: str) -> tuple[bool, str]:
    """Return whether the last of 3 or 4 columns has ranks instead of scores, and the assumption."""
    import pandas as pd  # late: `list` must answer without it

    codes, query_ids = encode_strings(table["query"])
    values = pd.Series(table["score"].to_numpy())
    of_query = values.groupby(codes)
    places = of_query.cumcount() + 1
    rises = of_query.diff() > 0
    if "rank" in table.column_names:
        doubtful = rises | (table["rank"].to_numpy() != places)
        sound, last = "4 columns are read as query, document, rank and score, as of ColBERT", "$4"
        problem = "4 columns, whose third does not count the ranks of falling scores in the fourth"
    elif (places > 1).any() and (values == places).all():
        return True, "the last of 3 columns counts from 1 for each query: ranks, as of MS MARCO"
    else:
        is_distinct = (of_query.nunique() == of_query.size()).all()
        may_be_ranks = is_distinct and (values % 1 == 0).all() and (of_query.min() == 1).all()
        doubtful = rises | ((places > 1) & may_be_ranks)
        sound = "the last of 3 columns never rises within a query: read as scores, as of Tevatron"
        last = "$3"
        problem = "3 columns, whose last may be scores (high is good) or ranks (1 is best)"
    if not doubtful.any():
        return False, sound
    query = codes[doubtful.to_numpy().argmax()]
    shown = ", ".join(f"{value:g}" for value in values[codes == query][:3])
    scores, ranks = (
        f'`{printing} | awk \'{{print $1, "Q0", $2, 0, {value}, "run"}}\' > run.trec`'
        for value in (last, "-$3")
    )
    raise BenchError(
        f"{problem}: for query {query_ids[query].as_py()!r}, {shown}, ...",
        f"Write six columns: {scores} if they are scores, {ranks} if they are ranks.",
    )


def encode_trec(run: Run, tag: str) -> bytes:
    """Return the content of the TREC run file of ``run``, compressed with gzip.

    Scores have enough digits to read back the same float32. Queries without documents have no line.
    """
    check_writable(pa.array([tag], pa.large_string()), "tag")
    query_ids = pa.array(run.query_ids, pa.large_string())
    check_writable(query_ids, "query id")
    check_writable(run.ids, "document id")
    queries = np.repeat(np.arange(len(run.query_ids)), np.diff(run.offsets))
    ranks = np.arange(len(run)) - run.offsets[queries] + 1
    texts = ("Q0", f"{tag}\n", " ")
    second, last, space = (pa.scalar(text, pa.large_string()) for text in texts)
    file = io.BytesIO()
    # Without name and time, so that equal runs give equal files.
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as out:
        for start in range(0, len(run), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            lines = pc.binary_join_element_wise(
                query_ids.take(pa.array(queries[rows])),
                second,
                run.ids.take(pa.array(run.documents[rows])),
                pa.array(ranks[rows]).cast(pa.large_string()),
                pa.array(run.scores[rows]).cast(pa.large_string()),
                last,
                space,
            )
            out.write(lines.buffers()[-1])  # the strings of an array lie end to end
    return file.getvalue()


def check_writable(ids: Strings, kind_of_name: str) -> None:
    """Raise a `BenchError` if an id is empty or has white space, so cannot be a column of text."""
    bad = ids.filter(pc.match_substring_regex(ids, rf"^$|{WHITE_SPACE}"))
    if len(bad):
        problem = f"{kind_of_name} {bad[0].as_py()!r} cannot be written to a TREC run file"
        raise BenchError(
            problem, "Use ids and tags of at least one character, without white space."
        )


def _blocks(content: bytes) -> Iterator[bytes]:
    """Yield blocks of complete lines, with columns separated by single spaces."""
    start = 0
    while start < len(content):
        end = content.find(b"\n", start + _BLOCK_BYTES) + 1 or len(content)
        lines, start = content[start:end].translate(_SPACES), end
        at_ends = lines.startswith(b" ") or lines.endswith(b" ")
        if at_ends or b"  " in lines or b" \n" in lines or b"\n " in lines:
            lines = _SPARE_SPACES.sub(b"", lines)
        if lines.strip():
            yield lines


def _parse(lines: bytes, names: list[str]) -> pa.Table:
    kept = [name for name in names if name in ("query", "document", "place", *_NUMBERS)]
    types = {name: pa.float64() if name in _NUMBERS else pa.large_string() for name in kept}
    return pa_csv.read_csv(
        pa.BufferReader(lines),
        read_options=pa_csv.ReadOptions(column_names=names),
        parse_options=pa_csv.ParseOptions(delimiter=" ", quote_char=False),
        convert_options=pa_csv.ConvertOptions(
            column_types=types, include_columns=kept, null_values=[]
        ),
    )


def _read_table(content: bytes, names: list[str]) -> tuple[pa.Table, Run]:
    """Return the columns of lines, and the run of their scores."""
    table = pa.concat_tables([_parse(block, names) for block in _blocks(content)])
    scores = round_scores(table["score"])
    return table, Run.from_columns(table["query"], table["document"], scores)


def _first_bad_line(content: bytes, names: list[str]) -> BenchError:
    """Return the error of the first wrong line, which is found by bisection."""
    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n")) + 1
    ends = np.append(ends, len(content))

    def find_problem(line: int) -> str:
        """Return the error of the lines up to one, or ""."""
        lines = content[: ends[line]]
        try:
            if lines.strip():
                _read_table(lines, names)
        except (pa.ArrowInvalid, BenchError) as error:
            return re.sub(r"^(In CSV column #\d+: )?CSV ", "", str(error))
        return ""

    line = bisect_left(range(len(ends)), True, key=lambda line: bool(find_problem(line)))
    text = content[: ends[line]].splitlines()[-1].decode(errors="replace")[:SHOWN]
    return BenchError(f"line {line + 1}: {find_problem(line)}; the line is {text!r}", _HINT)
