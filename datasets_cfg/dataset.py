"""Datasets: facts, queries, judgements and corpus of one split, and their checks."""

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from datasets_cfg import catalogue
from datasets_cfg.catalogue import HUB, Counts, Facts
from datasets_cfg.corpus import BATCH_DOCUMENTS, Corpus, DamagedCorpusError, SourceFile
from datasets_cfg.locate import detect_layout, find_files, is_training_data, reader_of_layout
from datasets_cfg.readers.beir import write_collection
from datasets_cfg.readers.files import ExampleReader, TextReader
from datasets_cfg.readers.reader import (
    NO_JUDGEMENTS,
    READER_VERSION,
    Document,
    Qrels,
    Queries,
    Reader,
    assume,
    collect_assumptions,
)
from datasets_cfg.remote import fetch_remote
from foundation.arrays import Int64Array
from foundation.errors import BadLines, BenchError, collect_errors, raise_collected
from foundation.files import cache_folder, clean_up, hash_records, replace_file, replace_folder
from foundation.records import convert_table, read_toml

FACTS_FILE = "dataset.toml"
EMBEDDED = Path(__file__).parent / "embedded"
CORPORA = "corpora"  # folder of the cache
QUICK_BYTES = 1 << 27  # size of documents that are read in seconds
OTHERS_PER_QUERY = 10  # unjudged documents
SHORT = 10  # characters of a document that says nearly nothing
CUT, LONG = 5, 100  # this many texts of one maximum length in characters suggest truncation
INHERITED_FACTS = ("main_measure", "measures", "depth", "exclude_self", "title_track", "version")

logger = logging.getLogger(__name__)


class _DocumentTexts(msgspec.Struct):
    text: str
    title: str | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """One split of a collection.

    Attributes:
        facts: declared facts.
        queries: the queries that have judgements, in file order; all questions of DPR.
        qrels: relevance judgements; empty if answers decide.
        answers: accepted answers of each query id; None if qrels decide.
        reader: reader of the queries, judgements and documents.
        cache_dir: folder below which the corpus is built.
        excluded: ids of documents that are removed from the ranking of a query, by its id.
        assumptions: what was assumed about the files of queries and judgements, with its count.
        overlay: hash of judgements in ``qrels`` that are not the collection's; "" without any.
        overlaid: number of these, the last rows of ``qrels``.
    """

    facts: Facts
    queries: Queries
    qrels: Qrels
    answers: Mapping[str, tuple[str, ...]] | None
    reader: Reader
    cache_dir: Path
    excluded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    assumptions: Mapping[str, int] = field(default_factory=dict)
    overlay: str = ""
    overlaid: int = 0

    @classmethod
    def from_dicts(
        cls,
        corpus: Mapping[str, Mapping[str, str]],
        queries: Mapping[str, str],
        qrels: Mapping[str, Mapping[str, int]],
        *,
        name: str = "from-dicts",
        cache_dir: Path | None = None,
        **facts: Any,
    ) -> "Dataset":
        """Make a dataset from the dictionaries that beir's ``GenericDataLoader`` returns.

        Args:
            corpus: ``title`` (may be absent) and ``text`` by document id.
            queries: text by query id.
            qrels: grade by document id by query id.
            name: of the collection in results.
            cache_dir: cache folder, in which the collection is written in BEIR's layout; None for
                BENCH_CACHE, then the user's cache.
            facts: values of `Facts` that differ from the defaults, such as
                ``main_measure="RR@10"``.

        Raises:
            BenchError: an unknown fact, an empty id, or a text that is not a string.
        """
        texts = convert_table(corpus, dict[str, _DocumentTexts], "documents")
        asked = convert_table(queries, dict[str, str], "queries")
        if "" in texts or "" in asked:
            raise BenchError("the id of a document or query is empty", "give it an id")
        documents = [Document(id_, each.title or "", each.text) for id_, each in texts.items()]
        judged = [(query, *pair) for query, grades in qrels.items() for pair in grades.items()]
        declared = {"name": name, "layout": "beir", "split": "test", **facts}
        parts = (documents, asked.items(), judged, declared.items())
        content = [hash_records(map(str, row) for row in rows) for rows in parts]
        cache = cache_folder(cache_dir)
        folder = cache / "from-dicts" / hash_records([content])[:32]
        if not folder.is_dir():
            with replace_folder(folder) as unfinished:
                write_collection(unfinished, documents, asked.items(), judged, declared)
        return open_dataset(str(folder), cache_dir=cache)

    @property
    def name(self) -> str:
        """Name of the collection as typed, or of the user's folder."""
        return self.facts.name

    @cached_property
    def corpus(self) -> Corpus:
        """Documents of the collection, built on the first use ever and opened afterwards.

        A corpus that is damaged is built again with a warning.
        """
        sources = self.reader.corpus_files()
        folder = self.cache_dir / CORPORA / self._corpus_key(sources)
        clean_up(folder.parent)
        if folder.is_dir():
            try:
                return Corpus.open(folder)
            except DamagedCorpusError as damage:
                logger.warning("%s: %s; rebuilding it", self.name, damage)
        documents = tqdm(
            raise_collected(self.reader.documents()),
            desc=f"{self.name}: corpus",
            total=self.facts.counts.documents,
            unit=" documents",
            unit_scale=True,
        )
        return Corpus.build(documents, folder, sources)

    @cached_property
    def queries_sha256(self) -> str:
        """Content hash of query ids and texts, independent of their order."""
        return hash_records(sorted(zip(self.queries.ids, self.queries.texts, strict=True)))

    @cached_property
    def qrels_sha256(self) -> str:
        """Content hash of the collection's own judgements, answers and exclusions, independent of
        their order.
        """
        shipped = list(self.qrels)[: len(self.qrels) - self.overlaid]
        judged = sorted((query, document, str(grade)) for query, document, grade in shipped)
        answered = sorted((query, *texts) for query, texts in (self.answers or {}).items())
        excluded = sorted((query, "excluded", *sorted(ids)) for query, ids in self.excluded.items())
        return hash_records([*judged, *answered, *excluded])

    def with_judgements(self, added: Qrels) -> "Dataset":
        """Return the dataset with further judgements, and the ``qrels_sha256`` of its own."""
        rows = sorted((query, document, str(grade)) for query, document, grade in added)
        merged = Qrels(
            (*self.qrels.query_ids, *added.query_ids),
            (*self.qrels.doc_ids, *added.doc_ids),
            np.concatenate([self.qrels.grades, added.grades]),
        )
        overlaid = self.overlaid + len(added)
        return replace(self, qrels=merged, overlay=hash_records(rows)[:12], overlaid=overlaid)

    def count_unknown(self, ids: Sequence[str]) -> int:
        """Return how many of ``ids`` are not documents, or 0 if reading these would take long."""
        with suppress(BenchError, OSError):  # judgements suffice to score a run
            sources = self.reader.corpus_files()
            if sum(file.stat().st_size for file in sources) < QUICK_BYTES:
                return int((self.corpus.rows_of(tuple(ids)) < 0).sum())
        return 0

    def excluded_ids(self, query_id: str, with_self: bool | None = None) -> tuple[str, ...]:
        """Return the ids of the documents that are not ranked for a query."""
        own = self.facts.exclude_self if with_self is None else with_self
        return *((query_id,) if own else ()), *self.excluded.get(query_id, ())

    def excluded_rows(self, ids: Sequence[str], with_self: bool | None = None) -> Int64Array:
        """Return the rows of documents that are not ranked for each query, int64 ``(len(ids), w)``.

        Shorter lists are filled with -1. ``w`` is 0 if nothing is excluded.

        Args:
            ids: query ids.
            with_self: exclude the document with the query's id; None for the collection's rule.
        """
        lists = [self.excluded_ids(id_, with_self) for id_ in ids]
        rows = np.full((len(ids), max(map(len, lists), default=0)), -1, dtype=np.int64)
        filled = np.array([np.arange(rows.shape[1]) < len(each) for each in lists])
        if rows.size:
            rows[filled] = self.corpus.rows_of([id_ for each in lists for id_ in each])
        return rows

    def _corpus_key(self, sources: tuple[Path, ...]) -> str:
        """Return the name of the corpus folder, which changes if any source file changes."""
        made_by = (self.facts.layout, self.facts.title_track, str(READER_VERSION))
        files = map(SourceFile.of, sources)
        stamps = [(file.path, str(file.size), str(file.mtime_ns)) for file in files]
        return f"{sources[0].resolve().parent.name}-{hash_records([made_by, *stamps])[:16]}"


def open_dataset(
    name_or_folder: str,
    *,
    cache_dir: Path,
    data_dir: Path | None = None,
    split: str | None = None,
    download: bool = True,
    with_corpus: bool = True,
    with_judgements: bool = True,
) -> Dataset:
    """Open a collection of the catalogue, a folder of the user, or a file to train on.

    A folder (see `user_folder`) has the layout that its files show, and the facts of its
    ``dataset.toml``. If it claims the name of a declared collection, it has the facts of that
    collection. Published counts of queries and judgements apply only to the declared split, or to a
    split that is declared as a collection of its own (``msmarco/train`` next to ``msmarco/dev``).

    Args:
        name_or_folder: name as in ``dataset_names()``, a path, or a path below ``data_dir``. A
            training file (see `datasets_cfg.readers.files`) is a collection of its passages.
        cache_dir: folder of downloads and built corpora.
        data_dir: folder of collections, searched before downloading.
        split: judgements to use instead of the declared ones.
        download: fetch missing files.
        with_corpus: find the documents, too. Without them `Dataset.corpus` may fail, but judgements
            of a few kilobytes suffice to score a run.
        with_judgements: read queries and judgements, too. Without them, a folder needs only its
            documents, and a file is read as documents, one a line.

    Raises:
        BenchError: unknown name, missing or malformed files, or a folder that claims the name of a
            declared collection with different facts.
    """
    if is_training_data(name_or_folder):
        path = Path(name_or_folder).expanduser()
        file_reader = ExampleReader if with_judgements else TextReader
        facts = Facts(path.resolve().name, "file", split="train")
        return _read_dataset(facts, file_reader(path, "train"), cache_dir)
    with collect_assumptions() as assumptions:
        if catalogue.remote_name(name_or_folder):
            folder: Path | None = fetch_remote(name_or_folder, cache_dir, download)
        else:
            folder = catalogue.user_folder(name_or_folder, data_dir)
        if folder:
            facts = facts_of_folder(folder, split)
        else:
            facts = catalogue.facts_for(name_or_folder)
            folder = embedded_folder(facts)
        if split is not None and split != facts.split:
            facts = _facts_of_split(facts, split)
        if not folder:
            with_corpus = with_corpus or reader_of_layout(facts.layout).answers_decide
            folder = find_files(facts, data_dir, cache_dir, download, with_corpus)
        reader = reader_of_layout(facts.layout)(folder, facts.split, facts.title_track == "title")
        dataset = _read_dataset(facts, reader, cache_dir, with_judgements)
    return replace(dataset, assumptions=dict(assumptions))


def name_in_results(folder: Path) -> str:
    """Return the name that results on the user's ``folder`` have.

    A snapshot in the cache of the Hugging Face Hub has the name of its repository.
    """
    path, stated = folder.resolve(), _read_facts_file(folder).get("name")
    repository = path.parent.parent.name
    if not stated and path.parent.name == "snapshots" and repository.startswith("datasets--"):
        return catalogue.remote_name(HUB + repository.removeprefix("datasets--").replace("--", "/"))
    return stated or path.name


def name_of_user(name: str, data_dir: Path | None = None) -> str:
    """Return the name in results of the collection of a user, "" if ``name`` is not one."""
    folder = catalogue.user_folder(name, data_dir)
    return catalogue.remote_name(name) or (name_in_results(folder) if folder else "")


def _read_facts_file(folder: Path) -> dict[str, Any]:
    """Return the table of a folder's ``dataset.toml``, empty if there is none."""
    path = folder / FACTS_FILE
    table = read_toml(path, dict[str, Any]) if os.path.lexists(path) else {}
    convert_table({"name": "", "layout": "", **table}, Facts, path)  # check types
    return table


def facts_of_folder(folder: Path, split: str | None = None) -> Facts:
    """Return the facts of a collection of the user, from ``dataset.toml`` or from its files.

    Its only split is used if neither ``split`` nor the file states one.

    A folder that claims the name of a declared collection may change only the split, since its
    scores appear next to published ones.
    """
    path, stated, name = folder / FACTS_FILE, _read_facts_file(folder), name_in_results(folder)
    if "name" in stated and name in catalogue.suite_names():
        raise BenchError(f"{path} claims the name {name} of a suite", _rename_hint(folder))
    if name not in catalogue.dataset_names():
        layout = stated.get("layout") or detect_layout(folder)
        split = split or stated.get("split") or _only_split(folder, layout)
        defaults = reader_of_layout(layout)(folder, split).defaults()
        table = {**defaults, **stated, "name": name, "layout": layout, "split": split}
        return convert_table(table, Facts, path)
    published = catalogue.facts_for(name)
    if embedded_folder(published):
        problem = f"{folder} has the name {name} of an embedded collection"
        raise BenchError(problem, _rename_hint(folder))
    facts = convert_table({**msgspec.to_builtins(published), **stated}, Facts, path)
    own = sorted(stated.keys() - {"split"})
    if changed := [key for key in own if getattr(facts, key) != getattr(published, key)]:
        problem = f"{path} claims the name {name} but changes its {' and '.join(changed)}"
        raise BenchError(problem, f"remove these, or {_rename_hint(folder)}")
    return facts if facts.split == published.split else _facts_of_split(facts, facts.split)


def _only_split(folder: Path, layout: str) -> str:
    """Return the default split, or the only split of ``folder`` if it has another one."""
    splits = set(reader_of_layout(layout)(folder, "").splits()) - {""}
    if len(splits) != 1 or "test" in splits:
        return "test"
    (only,) = splits
    assume(f"the split {only} is used, the only one", None)
    return only


def _rename_hint(folder: Path) -> str:
    return f'write name = "another" into {folder / FACTS_FILE}'


def _facts_of_split(facts: Facts, split: str) -> Facts:
    """Return ``facts`` with another split, and with its files and counts if they are declared."""
    other = msgspec.structs.replace(
        facts, split=split, counts=Counts(documents=facts.counts.documents)
    )
    for name in (f"{facts.name}/{split}", f"{facts.name.rpartition('/')[0]}/{split}"):
        declared = catalogue.facts_for(name) if name in catalogue.dataset_names() else None
        if declared and declared.split == split:
            files, counts = declared.archives, declared.counts
            return msgspec.structs.replace(other, archives=files, counts=counts)
    return other


def embedded_folder(facts: Facts) -> Path | None:
    """Return the folder of an embedded collection, or None."""
    folder = EMBEDDED / facts.name.replace("/", "-")
    return folder if folder.is_dir() else None


def _read_dataset(
    facts: Facts, reader: Reader, cache_dir: Path, with_judgements: bool = True
) -> Dataset:
    read = reader.judgements() if with_judgements else NO_JUDGEMENTS
    parts = (read.queries, read.qrels, read.answers)
    return Dataset(facts, *parts, reader, cache_dir, read.excluded)


def take_first_queries(dataset: Dataset, count: int) -> Dataset:
    """Return a small dataset: the first queries, their judged documents, and some others.

    There are `OTHERS_PER_QUERY` unjudged documents for each query. Scores on the result do not
    estimate those on the full collection, whose distractors are nearly all missing. The name is the
    collection's with ``/firstN`` appended, so that prompts and training collections still apply and
    results stay separate.
    """
    if dataset.answers is not None:
        problem = "has answers instead of judgements, so --limit cannot choose documents"
        raise BenchError(f"{dataset.name} {problem}", "omit --limit")
    ids = list(dataset.qrels.queries())[:count]
    texts = dict(zip(dataset.queries.ids, dataset.queries.texts, strict=True))
    qrels: dict[str, dict[str, int]] = {id_: {} for id_ in ids}
    for query, document, grade in dataset.qrels:
        if query in qrels:
            qrels[query][document] = grade
    judged = sorted({document for grades in qrels.values() for document in grades})
    facts = {name: getattr(dataset.facts, name) for name in INHERITED_FACTS}
    small = Dataset.from_dicts(
        dict(_first_documents(dataset, judged, OTHERS_PER_QUERY * count)),
        {id_: texts[id_] for id_ in ids},
        qrels,
        name=f"{dataset.name}/first{count}",
        cache_dir=dataset.cache_dir,
        **{name: fact for name, fact in facts.items() if fact is not None},
    )
    excluded = {id_: names for id_, names in dataset.excluded.items() if id_ in qrels}
    return replace(small, excluded=excluded, assumptions=all_assumptions(dataset))


def _first_documents(
    dataset: Dataset, judged: list[str], others: int
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield judged documents and the first others, in the order of the corpus."""
    corpus = dataset.corpus
    rows = corpus.rows_of(judged)
    rows = rows[rows >= 0]
    head = np.arange(min(len(corpus), others + len(rows)))
    kept = np.sort(np.concatenate([rows, np.setdiff1d(head, rows)[:others]]))
    ids = corpus.ids.take(kept).to_pylist()
    for id_, title, text in zip(ids, *corpus.documents_at(kept), strict=True):
        yield id_, {"title": title, "text": text}


def remember_folder(dataset: Dataset) -> None:
    """Record the folder of an undeclared ``dataset``, so that a result can find it again."""
    if dataset.name not in catalogue.dataset_names():
        hashes = dataset.queries_sha256, dataset.qrels_sha256
        with replace_file(_memory_file(dataset.name, *hashes, dataset.cache_dir)) as file:
            file.write(os.fsencode(dataset.reader.folder.resolve()))


def open_remembered(
    name: str, queries_sha256: str, qrels_sha256: str, split: str, cache_dir: Path
) -> Dataset | None:
    """Open the collection with this name and content if its last folder still holds it."""
    try:
        file = _memory_file(name, queries_sha256, qrels_sha256, cache_dir)
        folder = os.fsdecode(file.read_bytes())
        dataset = open_dataset(folder, cache_dir=cache_dir, split=split or None, download=False)
    except (OSError, ValueError, BenchError):  # unknown, moved or changed
        return None
    here = (dataset.name, dataset.queries_sha256, dataset.qrels_sha256)
    return dataset if here == (name, queries_sha256, qrels_sha256) else None


def _memory_file(name: str, queries_sha256: str, qrels_sha256: str, cache_dir: Path) -> Path:
    """Return the file that holds the path of the last folder with this name and content."""
    return cache_dir / "folders" / hash_records([[name, queries_sha256, qrels_sha256]])[:16]


Severity = Literal["error", "warning", "note"]
EXAMPLES = 5
# What str.isspace accepts, in the syntax of RE2.
WHITE_SPACE = r"[\s\x0b\x1c-\x1f\x{85}\p{Z}]"


@dataclass(frozen=True)
class Finding:
    """One observation of a check.

    Attributes:
        severity: "error" (do not use the data), "warning" (it lowers or distorts scores), or "note"
            (known or harmless).
        what: one line for people.
        count: number of occurrences.
        examples: ids of the first few.
        suggestion: advice; may be empty.
    """

    severity: Severity
    what: str
    count: int
    examples: tuple[str, ...] = ()
    suggestion: str = ""

    def text(self, collection: str = "") -> str:
        """Return the finding in a line, with the advice in a second one."""
        examples = f" ({', '.join(self.examples)})" if self.examples else ""
        what = f"{collection}: {self.what}" if collection else self.what
        count = f": {self.count:,}" if examples or self.count > 1 else ""
        line = f"{what}{count}{examples}"
        return f"{line}\n  {self.suggestion}" if self.suggestion else line


def verify_dataset(dataset: Dataset | Callable[[], Dataset]) -> list[Finding]:
    """Check the counts, documents, queries and judgements of ``dataset``, or of what it opens.

    Wrong lines are counted by kind. A missing or unreadable file, wrong lines of documents, and
    duplicate ids prevent the checks that need them. Errors come first.
    """
    findings: list[Finding] = []
    bad_lines: BadLines = {}
    bad_documents: BadLines = {}
    try:
        with collect_errors() as bad_lines:
            dataset = dataset() if callable(dataset) else dataset
            findings += _queries_without_relevant(dataset)
        with collect_errors() as bad_documents:
            for check in _CHECKS:
                findings += check(dataset)
    except BenchError as error:
        findings.append(Finding("error", str(error), 1, suggestion=error.hint))
    for first, count in (bad_lines | bad_documents).values():
        what = f"{first}{'; lines with this problem' * (count > 1)}"
        findings.append(Finding("error", what, count, suggestion=first.hint))
    return sorted(findings, key=lambda finding: get_args(Severity).index(finding.severity))


def evaluation_findings(dataset: Dataset, with_corpus: bool = True) -> list[Finding]:
    """Return findings on ``dataset`` that affect its scores, without reading all texts."""
    checks = (_assumptions, _missing_documents, _colliding_ids, _grades_of_trec_dl)
    if not with_corpus:
        return [Finding("note", what, count) for what, count in dataset.assumptions.items()]
    return [finding for check in checks for finding in check(dataset)]


def _assumptions(dataset: Dataset) -> Iterator[Finding]:
    yield from (Finding("note", what, count) for what, count in all_assumptions(dataset).items())


def all_assumptions(dataset: Dataset) -> dict[str, int]:
    """Return the assumptions about judgements and documents with their counts, added up."""
    return dict(Counter(dataset.assumptions) + Counter(dataset.corpus.manifest.assumptions))


def check_counts(dataset: Dataset, allow_mismatch: bool, with_corpus: bool = True) -> bool:
    """Return whether ``dataset`` has the published counts. Counts that nobody published match.

    A mismatch is an error unless ``allow_mismatch``. The number of documents is compared only
    ``with_corpus``, which builds the corpus if necessary.
    """
    different = count_differences(dataset, with_corpus)
    if different and not allow_mismatch:
        verify = f"run `python -m bench verify {dataset.name}` for details"
        hint = f"{verify}, or use --allow-mismatch to continue with marked results"
        raise BenchError(f"this is not the published {dataset.name}: {'; '.join(different)}", hint)
    return not different


def count_differences(dataset: Dataset, with_corpus: bool = True) -> list[str]:
    """Return the counts of ``dataset`` that differ from the published ones, as text."""
    published = dataset.facts.counts
    counted = {"queries": len(dataset.queries), "judgements": len(dataset.qrels)}
    if with_corpus and published.documents is not None:
        counted = {"documents": len(dataset.corpus), **counted}
    return [
        f"{name}: {stated:,} published, {count:,} found"
        for name, count in counted.items()
        if (stated := getattr(published, name)) is not None and stated != count
    ]


def _count_findings(dataset: Dataset) -> Iterator[Finding]:
    advice = "this is not the published collection, so scores are not comparable"
    yield from (Finding("error", text, 1, suggestion=advice) for text in count_differences(dataset))
    if empty := dataset.corpus.manifest.empty_documents:
        yield Finding("note", "documents have neither title nor text and are kept", empty)


def _copies(dataset: Dataset) -> Iterator[Finding]:
    """Report queries with an unjudged copy of a relevant document, which counts as wrong."""
    corpus, relevant = dataset.corpus, dataset.qrels.grades > 0
    rows = corpus.rows_of(dataset.qrels.doc_ids)
    found = np.unique(rows[relevant & (rows >= 0)])
    contents = zip(found.tolist(), zip(*corpus.documents_at(found), strict=True), strict=True)
    content_of = {row: pair for row, pair in contents if any(pair)}
    copies: dict[tuple[str, str], set[int]] = {pair: set() for pair in content_of.values()}
    for start, *columns in corpus.iter_batches(BATCH_DOCUMENTS):
        for row, pair in enumerate(zip(*columns, strict=True), start):
            if pair in copies:
                copies[pair].add(row)
    judged, wanted = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
    for query, row, right in zip(dataset.qrels.query_ids, rows.tolist(), relevant, strict=True):
        judged[query].add(row)
        if right and row in content_of:
            wanted[query] |= copies[content_of[row]]
    if queries := [query for query in wanted if wanted[query] - judged[query]]:
        yield Finding(
            "note" if dataset.name in catalogue.dataset_names() else "warning",
            "queries have an unjudged exact copy of a relevant document, which counts as wrong",
            len(queries),
            _first_ids(queries),
        )


def _cut_texts(dataset: Dataset) -> Iterator[Finding]:
    """Report documents that are nearly empty, and texts that end at the same length."""
    corpus = dataset.corpus
    text_lengths, used_lengths = [], []
    for batch in corpus.table.to_batches():
        columns = batch.column("title"), batch.column("text")
        title, text = (pc.utf8_length(pc.utf8_trim_whitespace(each)) for each in columns)
        used_lengths.append(title.to_numpy() + text.to_numpy())
        text_lengths.append(pc.utf8_length(columns[1]).to_numpy())
        corpus.release_pages()
    lengths, used = np.concatenate(text_lengths), np.concatenate(used_lengths)
    longest = lengths.max()
    short, cut = np.flatnonzero((used > 0) & (used < SHORT)), np.flatnonzero(lengths == longest)
    if len(short):
        ids = corpus.ids.take(short[:EXAMPLES]).to_pylist()
        what = f"documents have fewer than {SHORT} characters"
        yield Finding("note", what, len(short), tuple(ids))
    if len(cut) >= CUT and longest >= LONG:
        ids = corpus.ids.take(cut[:EXAMPLES]).to_pylist()
        what = f"documents have exactly the maximum length, {longest:,} characters, so their texts"
        yield Finding("note", f"{what} may be truncated", len(cut), tuple(ids))


def _missing_documents(dataset: Dataset) -> Iterator[Finding]:
    qrels = dataset.qrels
    missing = np.flatnonzero(dataset.corpus.rows_of(qrels.doc_ids) < 0)
    if not len(missing):
        return
    relevant = int((qrels.grades[missing] > 0).sum())
    official = dataset.facts.counts.dangling_judgements == len(missing)
    harmful = relevant and not official
    useless = harmful and relevant == (qrels.grades > 0).sum()
    yield Finding(
        "error" if useless else "warning" if harmful else "note",
        "judgements name documents that are not in the corpus "
        f"({relevant:,} of them relevant{', as in the published data' if official else ''})",
        len(missing),
        _first_ids(qrels.doc_ids[row] for row in missing),
        "check that corpus and qrels are from the same release" if harmful else "",
    )


def _blanks(dataset: Dataset) -> Iterator[Finding]:
    """Report blank queries, and ids with white space, of which a TREC run file can have none."""
    queries = (dataset.queries.ids, dataset.queries.texts)
    ids, texts = (pa.array(column, pa.large_string()) for column in queries)
    for what, names, values, pattern in (
        ("queries are blank, and count in every mean", ids, texts, f"^{WHITE_SPACE}*$"),
        ("query ids have white space", ids, ids, WHITE_SPACE),
        ("document ids have white space", dataset.corpus.ids, dataset.corpus.ids, WHITE_SPACE),
    ):
        if found := names.filter(pc.match_substring_regex(values, pattern)).to_pylist():
            yield Finding("warning", what, len(found), _first_ids(map(repr, found)))


def _queries_without_relevant(dataset: Dataset) -> Iterator[Finding]:
    answered = {query for query, _, grade in dataset.qrels if grade > 0}
    if without := [query for query in dataset.qrels.queries() if query not in answered]:
        what, advice = "queries have no relevant document", "they count in every mean with score 0"
        yield Finding("warning", what, len(without), _first_ids(without), advice)


def _colliding_ids(dataset: Dataset) -> Iterator[Finding]:
    """Report queries whose id is also a document id, if a score depends on it."""
    excluded = dataset.facts.exclude_self
    lost = [query for query, document, grade in dataset.qrels if query == document and grade > 0]
    if excluded and lost:
        yield Finding(
            "warning",
            "relevant documents are dropped because their id equals the query id",
            len(lost),
            _first_ids(lost),
            "if the ids collide by accident, set exclude_self = false",
        )
    if excluded is not None or dataset.facts.layout in ("msmarco", "dpr"):  # ids are numbers
        return
    rows = dataset.corpus.rows_of(dataset.queries.ids)
    ids = [id_ for id_, row in zip(dataset.queries.ids, rows.tolist(), strict=True) if row >= 0]
    if ids:
        same = _with_equal_texts(dataset, rows)
        yield Finding(
            "warning" if same else "note",
            "query ids are also ids of documents, and exclude_self is not set, so nothing is "
            f"dropped ({same:,} of these documents have the text of their query)",
            len(ids),
            _first_ids(ids),
            f"write into {dataset.reader.folder / FACTS_FILE}: exclude_self = true if the queries "
            "are documents of the corpus, as in ArguAna; exclude_self = false if ids collide by "
            "accident",
        )


def _grades_of_trec_dl(dataset: Dataset) -> Iterator[Finding]:
    """Report grades 0 to 3, of which TREC-DL counts 1 as not relevant, if nothing is stated."""
    grades, stated = dataset.qrels.grades, any("rel=" in each for each in dataset.facts.measures)
    declared = dataset.name in catalogue.dataset_names()
    if stated or declared or set(np.unique(grades)) != {0, 1, 2, 3}:
        return
    yield Finding(
        "note",
        "grades are 0 to 3, as in TREC-DL, whose recall, AP and RR count 2 and 3 as relevant. Here "
        "they count grade 1, too",
        int((grades == 1).sum()),
        suggestion=f'write into {dataset.reader.folder / FACTS_FILE}: measures = ["R(rel=2)@1000", '
        '"AP(rel=2)", "RR(rel=2)"] for TREC-DL; measures = ["R(rel=1)@100"] if grade 1 is relevant',
    )


def _with_equal_texts(dataset: Dataset, rows: Int64Array) -> int:
    """Return how many queries have the same text as the document with their id."""
    queries = zip(dataset.queries.texts, rows.tolist(), strict=True)
    query_texts = [text.strip() for text, row in queries if row >= 0]
    texts = dataset.corpus.texts_at(rows[rows >= 0])
    return sum(text == other.strip() for text, other in zip(query_texts, texts, strict=True))


def _first_ids(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))[:EXAMPLES]


_CHECKS = (
    _assumptions,
    _count_findings,
    _missing_documents,
    _colliding_ids,
    _blanks,
    _grades_of_trec_dl,
    _copies,
    _cut_texts,
)
