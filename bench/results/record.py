"""Records of evaluations: what was measured, under which protocol, with which recipe, on what.

One folder per evaluation: ``result.json`` (schema below), ``per_query.parquet`` (one row a query,
one column a measure, nothing rounded) and ``run.trec.gz``. Results compare only under the same
`Protocol`; recipes may differ and are shown.

History of the schema: 1, the first; 2 adds ``parameters``, which are unknown of older records.
"""

import hashlib
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from bench.evaluate.runs import Run, check_writable, write_lines
from bench.evaluate.scoring import Scores
from bench.results.location import Place, read_all, replacing_all
from bench.results.object_store import RemotePath
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.records import Record
from retrievers.models.parameters import Parameters
from retrievers.models.recipe import Recipe

SCHEMA = 2
OLDEST = 1  # schema that is still read
LIBRARIES = (
    "torch",
    "transformers",
    "faiss-cpu",
    "faiss-gpu",
    "numpy",
    "bm25s",
    "adapters",
    "peft",
)
RESULT_FILE, SCORES_FILE, RUN_FILE = "result.json", "per_query.parquet", "run.trec.gz"


class Protocol(Record, kw_only=True):
    """What must be equal for two scores to be compared.

    Attributes:
        collection: name of the collection.
        version: release of the data, as declared.
        corpus_sha256: content of the corpus; "" where a run file was scored without it.
        official: False where it is not the published collection, by the user's leave.
        exclude_self: whether the document whose id is the query's is dropped.
        depth: documents retrieved per query.
    """

    collection: str
    version: str
    split: str
    title_track: str
    corpus_sha256: str
    queries_sha256: str
    qrels_sha256: str
    exclude_self: bool
    depth: int
    official: bool


class Timings(Record):
    """Wall-clock seconds of each stage. Vectors found in the store are not encoded again.

    Attributes:
        encoded_documents: distinct texts that this process encoded: not those that were stored,
            nor those that another process encoded meanwhile.
        encoded_tokens: documents and queries, cut as the recipe says; 0 without a tokenizer.
        busy_s: seconds by kind of work (load, tokenise, forward, copy, write, search, rescore);
            kinds that run beside each other overlap, so their sum may exceed the stages'.
    """

    encode_queries_s: float = 0.0
    encode_documents_s: float = 0.0
    encoded_documents: int = 0
    search_s: float = 0.0
    score_s: float = 0.0
    encoded_tokens: int = 0
    busy_s: dict[str, float] = {}


class Conditions(Record):
    """Where and with what an evaluation ran.

    Attributes:
        commit: of the code; "" where it was not run from a git checkout.
        dirty: whether tracked files differed from the commit.
        device: where the encoder was asked to run; ``auto`` is a GPU where there is one.
        search_device: where FAISS searched.
        threads: of the processor, as available to this process.
    """

    time: str
    bench: str
    commit: str
    dirty: bool
    python: str
    machine: str
    device: str
    search_device: str
    threads: int
    libraries: dict[str, str]


class Result(Record, kw_only=True):
    """One model on one collection.

    Attributes:
        recipe: None where somebody else's run file was scored.
        index: as `IndexSpec` writes it; ``flat`` is exact.
        index_recall: share of the exact top k that the index found, by ``recall@k``; empty for
            exact search.
        measures: means over all queries of the qrels.
        judged_at_10: share of the first ten documents that have a judgement; None where answer
            strings decide, which judge everything.
        tie_low, tie_high: range of the main measure over all orders of tied documents; None
            where it is not known for this measure.
        unanswered: queries without any document; they score 0.
        ignored: queries of a run file without judgements; they count nowhere.
        preflight: what the checks before encoding found.
        parameters: of the model; None where they are not known.
    """

    schema: int = SCHEMA
    model: str
    main_measure: str
    measures: dict[str, float]
    judged_at_10: float | None
    tie_low: float | None
    tie_high: float | None
    queries: int
    documents: int | None
    unanswered: int
    ignored: int
    index: str
    index_recall: dict[str, float]
    in_domain: bool
    protocol: Protocol
    recipe: Recipe | None
    fingerprint: str
    preflight: dict[str, Any]
    timings: Timings
    conditions: Conditions
    parameters: Parameters | None = None

    @property
    def key(self) -> str:
        """12 hexadecimal digits: same key, same model, protocol and index."""
        content = msgspec.json.encode((self.fingerprint, self.protocol, self.index))
        return hashlib.sha256(content).hexdigest()[:12]


def save(result: Result, scores: Scores, run: Run, out: Place) -> Place:
    """Write an evaluation below ``out``; returns its folder.

    On a local disk it takes the place of an earlier one of its key, all files together. In a
    store, where several machines may write at once, it gets a folder of its own: readers choose
    the newest.

    Raises:
        BenchError: an id that a run file cannot carry, or a name that leads out of ``out``.
    """
    content = msgspec.json.format(msgspec.json.encode(result), indent=1)
    folder = place(out, result.protocol.collection, result.model) / result.key
    if isinstance(folder, RemotePath):
        folder = folder.parent / f"{folder.name}-{hashlib.sha256(content).hexdigest()[:8]}"
    columns = {"query_id": pa.array(scores.query_ids, pa.large_string()), **scores.values}
    files = [folder / name for name in (RUN_FILE, SCORES_FILE, RESULT_FILE)]
    with replacing_all(files) as (run_file, scores_file, result_file):
        write_lines(run, run_file, result.model, compress=True)
        pq.write_table(pa.table(columns), scores_file)
        result_file.write(content)
    return folder


def place(out: Place, collection: str, model: str) -> Place:
    """Folder of the results of one model on one collection.

    Raises:
        BenchError: a name, which may come from a user's TOML, leads out of ``out``, or the model
            cannot be the tag of a run file.
    """
    for name in (collection, model):
        if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise BenchError(
                f"{name!r} cannot name a folder of results",
                "use a name like scifact or beir/scifact: no '..', and no '/' at either end",
            )
    check_writable(pa.array([model], pa.large_string()), "model name")
    return out / collection / model


def load(folder: Place) -> Result:
    """Read the record of an evaluation from its folder, or from its ``result.json``.

    A record of an older schema is read as one of this schema.

    Raises:
        BenchError: no record, a damaged one, or one of another schema.
    """
    path = folder / RESULT_FILE if folder.is_dir() else folder
    return load_all([path])[0]


def load_all(files: Sequence[Place]) -> list[Result]:
    """Read several ``result.json``, as `load` does."""
    try:
        contents = read_all(files)
    except OSError as error:
        raise BenchError(f"cannot read the result {error.filename}: {error.strerror}") from error
    return [_parsed(content, path) for content, path in zip(contents, files, strict=True)]


def _parsed(content: bytes, path: Place) -> Result:
    try:
        stated = msgspec.json.decode(content, type=dict[str, Any]).get("schema")
        if stated not in range(OLDEST, SCHEMA + 1):
            raise BenchError(f"{path} has schema {stated}, this version reads {SCHEMA} and older")
        found = msgspec.json.decode(content, type=Result)
        return msgspec.structs.replace(found, schema=SCHEMA)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} is not a result: {error}") from error


def load_scores(folder: Place) -> tuple[tuple[str, ...], Mapping[str, Float64Array]]:
    """Query ids and, by measure, the value of each query, as they were computed.

    Raises:
        BenchError: there is no such file, or it is damaged.
    """
    path = folder / SCORES_FILE
    try:
        table = pq.read_table(path if isinstance(path, Path) else path.open())
    except (OSError, pa.ArrowInvalid) as error:
        raise BenchError(f"cannot read the values of the queries in {path}: {error}") from error
    values = {name: table[name].to_numpy() for name in table.column_names if name != "query_id"}
    return tuple(table["query_id"].to_pylist()), values


def conditions(device: str, search_device: str, threads: int) -> Conditions:
    """What is true here and now."""
    from bench import __version__

    commit = _git("rev-parse", "HEAD")
    return Conditions(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        bench=__version__,
        commit=commit,
        dirty=bool(commit and _git("status", "--porcelain", "--untracked-files=no")),
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        device=device,
        search_device=search_device,
        threads=threads,
        libraries={name: found for name in LIBRARIES if (found := _version(name))},
    )


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _git(*arguments: str) -> str:
    """Output of git in this code's own checkout, "" where there is none."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
