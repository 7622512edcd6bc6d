"""Datasets: metadata, queries, judgements and corpus of one split."""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tqdm import tqdm

from datasets_cfg import catalogue
from datasets_cfg.catalogue import HUB, Counts, Metadata
from datasets_cfg.corpus import Corpus, DamagedCorpusError, stamp_files
from datasets_cfg.download import (
    detect_layout,
    fetch_remote,
    find_files,
    folder_of_table,
    is_training_data,
    reader_of_layout,
)
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
from foundation.arrays import Int64Array
from foundation.errors import BenchError, raise_collected
from foundation.files import cache_folder, clean_up, hash_records, replace_file, replace_folder
from foundation.records import convert_table, read_toml

METADATA_FILE = "dataset.toml"
EMBEDDED = Path(__file__).parent / "embedded"
CORPORA = "corpora"  # folder of the cache
QUICK_BYTES = 1 << 27  # size of documents that are read in seconds
OTHERS_PER_QUERY = 10  # unjudged documents
INHERITED = ("main_measure", "measures", "depth", "exclude_self", "title_track", "version")

logger = logging.getLogger(__name__)


class _DocumentTexts(msgspec.Struct):
    text: str
    title: str | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """One split of a collection.

    Attributes:
        metadata: declared metadata.
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

    metadata: Metadata
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
        **metadata: Any,
    ) -> "Dataset":
        """Make a dataset from the dictionaries that beir's ``GenericDataLoader`` returns.

        Args:
            corpus: ``title`` (may be absent) and ``text`` by document id.
            queries: text by query id.
            qrels: grade by document id by query id.
            name: of the collection in results.
            cache_dir: cache folder, in which the collection is written in BEIR's layout; None for
                BENCH_CACHE, then the user's cache.
            metadata: values of `Metadata` that differ from the defaults, such as
                ``main_measure="RR@10"``.

        Raises:
            BenchError: an unknown field, an empty id, or a text that is not a string.
        """
        texts = convert_table(corpus, dict[str, _DocumentTexts], "documents")
        asked = convert_table(queries, dict[str, str], "queries")
        if "" in texts or "" in asked:
            raise BenchError("the id of a document or query is empty", "Give it an id.")
        documents = [Document(id_, each.title or "", each.text) for id_, each in texts.items()]
        judged = [(query, *pair) for query, grades in qrels.items() for pair in grades.items()]
        declared = {"name": name, "layout": "beir", "split": "test", **metadata}
        parts = (documents, asked.items(), judged, declared.items())
        content = [hash_records(map(str, row) for row in rows) for rows in parts]
        cache = cache_folder(cache_dir)
        folder = cache / "from-dicts" / hash_records([content])[:32]
        if not folder.is_dir():
            with replace_folder(folder) as unfinished:
                write_collection(unfinished, documents, asked.items(), judged, declared)
        return open_dataset(str(folder), cache_dir=cache)

    def with_documents(self, corpus: Mapping[str, Mapping[str, str]]) -> "Dataset":
        """Return this dataset, which has only ids of documents, with texts as of `from_dicts`."""
        made = Dataset.from_dicts(
            corpus,
            self.queries.by_id,
            self.qrels.by_query,
            name=self.name,
            cache_dir=self.cache_dir,
            **self.inherited_metadata,
        )
        return replace(made, assumptions=self.assumptions)

    @property
    def inherited_metadata(self) -> dict[str, Any]:
        """Stated metadata that a copy of the collection has, too."""
        stated = {name: getattr(self.metadata, name) for name in INHERITED}
        return {name: value for name, value in stated.items() if value is not None}

    @property
    def name(self) -> str:
        """Name of the collection as typed, or of the user's folder."""
        return self.metadata.name

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
            raise_collected(self._documents()),
            desc=f"{self.name}: corpus",
            total=self.metadata.counts.documents,
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

    def _documents(self) -> Iterator[Document]:
        """Yield the documents. Assumptions about their files are then those of the corpus."""
        yield from self.reader.documents()

    @cached_property
    def has_documents(self) -> bool:
        """True if there are documents, and not only the ids of relevant ones."""
        return self.reader.has_documents()

    def find_quick_corpus(self) -> Corpus | None:
        """Return the corpus, or None if it is absent or takes more than seconds to read."""
        if not self.has_documents:
            return None
        with suppress(BenchError, OSError):  # judgements suffice to score a run
            sources = self.reader.corpus_files()
            if sum(file.stat().st_size for file in sources) < QUICK_BYTES:
                return self.corpus
        return None

    def excluded_ids(self, query_id: str, with_self: bool | None = None) -> tuple[str, ...]:
        """Return the ids of the documents that are not ranked for a query."""
        own = self.metadata.exclude_self if with_self is None else with_self
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
        made_by = (self.metadata.layout, self.metadata.title_track, str(READER_VERSION))
        key = hash_records([made_by, *stamp_files(sources)])[:16]
        return f"{sources[0].resolve().parent.name}-{key}"


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

    A folder (see `user_folder`) has the layout that its files show, and the metadata of its
    ``dataset.toml``. If it claims the name of a declared collection, it has the metadata of that
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
            declared collection with different metadata.
    """
    if is_training_data(name_or_folder):
        path = Path(name_or_folder).expanduser()
        file_reader = ExampleReader if with_judgements else TextReader
        metadata = Metadata(path.resolve().name, "file", split="train")
        return _read_dataset(metadata, file_reader(path, "train"), cache_dir)
    with collect_assumptions() as assumptions:
        if catalogue.remote_name(name_or_folder):
            folder: Path | None = fetch_remote(name_or_folder, cache_dir, download)
        else:
            folder = catalogue.user_folder(name_or_folder, data_dir)
        if folder:
            metadata = metadata_of_folder(folder, split)
        else:
            metadata = catalogue.metadata_for(name_or_folder)
            folder = embedded_folder(metadata)
        if split is not None and split != metadata.split:
            metadata = _metadata_of_split(metadata, split)
        if not folder:
            with_corpus = with_corpus or reader_of_layout(metadata.layout).answers_decide
            folder = find_files(metadata, data_dir, cache_dir, download, with_corpus)
        reader = reader_of_layout(metadata.layout)(
            folder, metadata.split, metadata.title_track == "title"
        )
        dataset = _read_dataset(metadata, reader, cache_dir, with_judgements)
    return replace(dataset, assumptions=dict(assumptions))


def name_in_results(folder: Path) -> str:
    """Return the name that results on the user's ``folder`` have.

    A snapshot in the cache of the Hugging Face Hub has the name of its repository.
    """
    path, stated = folder.resolve(), _read_metadata_file(folder).get("name")
    repository = path.parent.parent.name
    if not stated and path.parent.name == "snapshots" and repository.startswith("datasets--"):
        return catalogue.remote_name(HUB + repository.removeprefix("datasets--").replace("--", "/"))
    return stated or path.name


def name_of_user(name: str, data_dir: Path | None = None) -> str:
    """Return the name in results of the collection of a user, "" if ``name`` is not one."""
    name = folder_of_table(name)
    folder = catalogue.user_folder(name, data_dir)
    return catalogue.remote_name(name) or (name_in_results(folder) if folder else "")


def _read_metadata_file(folder: Path) -> dict[str, Any]:
    """Return the table of a folder's ``dataset.toml``, empty if there is none."""
    path = folder / METADATA_FILE
    table = read_toml(path, dict[str, Any]) if os.path.lexists(path) else {}
    convert_table({"name": "", "layout": "", **table}, Metadata, path)  # check types
    return table


def metadata_of_folder(folder: Path, split: str | None = None) -> Metadata:
    """Return the metadata of a collection of the user, from ``dataset.toml`` or from its files.

    Its only split is used if neither ``split`` nor the file states one.

    A folder that claims the name of a declared collection may change only the split, since its
    scores appear next to published ones.
    """
    path, stated, name = (
        folder / METADATA_FILE,
        _read_metadata_file(folder),
        name_in_results(folder),
    )
    if "name" in stated and name in catalogue.suite_names():
        raise BenchError(f"{path} claims the name {name} of a suite", _rename_hint(folder))
    if name not in catalogue.dataset_names():
        layout = stated.get("layout") or detect_layout(folder)
        split = split or stated.get("split") or _only_split(folder, layout)
        defaults = reader_of_layout(layout)(folder, split).defaults()
        table = {**defaults, **stated, "name": name, "layout": layout, "split": split}
        return convert_table(table, Metadata, path)
    published = catalogue.metadata_for(name)
    if embedded_folder(published):
        problem = f"{folder} has the name {name} of an embedded collection"
        raise BenchError(problem, _rename_hint(folder))
    metadata = convert_table({**msgspec.to_builtins(published), **stated}, Metadata, path)
    own = sorted(stated.keys() - {"split"})
    if changed := [key for key in own if getattr(metadata, key) != getattr(published, key)]:
        problem = f"{path} claims the name {name} but changes its {' and '.join(changed)}"
        raise BenchError(problem, f"Remove these. {_rename_hint(folder)}")
    return (
        metadata
        if metadata.split == published.split
        else _metadata_of_split(metadata, metadata.split)
    )


def _only_split(folder: Path, layout: str) -> str:
    """Return the default split, or the only split of ``folder`` if it has another one."""
    splits = set(reader_of_layout(layout)(folder, "").splits()) - {""}
    if len(splits) != 1 or "test" in splits:
        return "test"
    (only,) = splits
    assume(f"the split {only} is used, the only one", None)
    return only


def _rename_hint(folder: Path) -> str:
    return f'Write name = "another" into {folder / METADATA_FILE}'


def _metadata_of_split(metadata: Metadata, split: str) -> Metadata:
    """Return ``metadata`` with another split, with its files and counts if they are declared."""
    other = msgspec.structs.replace(
        metadata, split=split, counts=Counts(documents=metadata.counts.documents)
    )
    for name in (f"{metadata.name}/{split}", f"{metadata.name.rpartition('/')[0]}/{split}"):
        declared = catalogue.metadata_for(name) if name in catalogue.dataset_names() else None
        if declared and declared.split == split:
            files, counts = declared.archives, declared.counts
            return msgspec.structs.replace(other, archives=files, counts=counts)
    return other


def embedded_folder(metadata: Metadata) -> Path | None:
    """Return the folder of an embedded collection, or None."""
    folder = EMBEDDED / metadata.name.replace("/", "-")
    return folder if folder.is_dir() else None


def _read_dataset(
    metadata: Metadata, reader: Reader, cache_dir: Path, with_judgements: bool = True
) -> Dataset:
    read = reader.judgements() if with_judgements else NO_JUDGEMENTS
    parts = (read.queries, read.qrels, read.answers)
    return Dataset(metadata, *parts, reader, cache_dir, read.excluded)


def take_first_queries(dataset: Dataset, count: int) -> Dataset:
    """Return a small dataset: the first queries, their judged documents, and some others.

    There are `OTHERS_PER_QUERY` unjudged documents for each query. Scores on the result do not
    estimate those on the full collection, whose distractors are nearly all missing. The name is the
    collection's with ``/firstN`` appended, so that prompts and training collections still apply and
    results stay separate.
    """
    if dataset.answers is not None:
        problem = "has answers instead of judgements, so --limit cannot choose documents"
        raise BenchError(f"{dataset.name} {problem}", "Omit --limit.")
    texts, qrels = dataset.queries.by_id, dict(islice(dataset.qrels.by_query.items(), count))
    judged = sorted({document for grades in qrels.values() for document in grades})
    small = Dataset.from_dicts(
        dict(_first_documents(dataset, judged, OTHERS_PER_QUERY * count)),
        {id_: texts[id_] for id_ in qrels},
        qrels,
        name=f"{dataset.name}/first{count}",
        cache_dir=dataset.cache_dir,
        **dataset.inherited_metadata,
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


def all_assumptions(dataset: Dataset) -> dict[str, int]:
    """Return the assumptions about judgements and documents with their counts, added up."""
    of_documents = dataset.corpus.manifest.assumptions if dataset.has_documents else {}
    return dict(Counter(dataset.assumptions) + Counter(of_documents))
