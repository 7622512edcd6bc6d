"""A collection ready for evaluation: facts, queries, judgements, and a corpus on first use."""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import platformdirs
from tqdm import tqdm

from datasets_cfg import stdlib_code
from datasets_cfg.catalogue import Counts, Facts, dataset_names, facts_for, suite_names, user_folder
from datasets_cfg.corpus import Corpus, DamagedCorpusError, SourceFile
from datasets_cfg.locate import find_files
from datasets_cfg.readers import (
    READER_VERSION,
    Qrels,
    Queries,
    Reader,
    detect_layout,
    reader_of_layout,
)
from datasets_cfg.readers.lines import BEIR_HEADER
from foundation.errors import BenchError
from foundation.files import (
    read_regular_file,
    remove_leftovers,
    replace_file,
    replace_folder,
    sha256_of_records,
)
from foundation.records import convert_table, read_toml

FACTS_FILE = "dataset.toml"
CORPORA = "corpora"  # folder of the cache
OTHERS_PER_QUERY = 10  # documents without a judgement, for each query
INHERITED_FACTS = ("main_measure", "measures", "depth", "exclude_self", "title_track", "version")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Dataset:
    """One split of a collection.

    Attributes:
        facts: what is declared; ``facts.version`` is the content hash for ``stdlib-code``.
        queries: the queries that have judgements, in file order; all questions of DPR.
        qrels: relevance judgements; empty if answers decide.
        answers: accepted answers of each query id; None if qrels decide.
        reader: where queries and judgements came from, and documents come from.
        cache_dir: where the corpus is built.
    """

    facts: Facts
    queries: Queries
    qrels: Qrels
    answers: Mapping[str, tuple[str, ...]] | None
    reader: Reader
    cache_dir: Path

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
        """A collection of what beir's ``GenericDataLoader`` returns.

        Args:
            corpus: ``title`` (may be absent) and ``text`` by document id.
            queries: text by query id.
            qrels: grade by document id by query id.
            name: of the collection in results.
            cache_dir: where it is written in BEIR's layout, by its content, and its corpus is
                built; None for the user's cache.
            facts: other `Facts` than the defaults, such as ``main_measure="RR@10"``.

        Raises:
            BenchError: an unknown fact, an empty id, or a text that is no string.
        """
        folder, cache = write_dicts(corpus, queries, qrels, name, cache_dir, facts)
        return open_dataset(str(folder), cache_dir=cache)

    @property
    def name(self) -> str:
        """Name of the collection as typed, or of the user's folder."""
        return self.facts.name

    @cached_property
    def corpus(self) -> Corpus:
        """The documents: built at the first use ever, opened afterwards.

        A corpus that is damaged, or whose sources changed, is named in a warning and built again.

        Raises:
            BenchError: a document that cannot be read, a duplicate id, or no document.
        """
        sources = self.reader.corpus_files()
        folder = self.cache_dir / CORPORA / self._corpus_key(sources)
        remove_leftovers(folder.parent)
        if folder.is_dir():
            try:
                return Corpus.open(folder)
            except DamagedCorpusError as damage:
                logger.warning("%s: %s; it is built again from its sources", self.name, damage)
        documents = tqdm(
            self.reader.documents(),
            desc=f"{self.name}: corpus",
            total=self.facts.counts.documents,
            unit=" documents",
            unit_scale=True,
        )
        return Corpus.build(documents, folder, sources)

    @cached_property
    def queries_sha256(self) -> str:
        """Content hash of query ids and texts, whatever their order."""
        return sha256_of_records(sorted(zip(self.queries.ids, self.queries.texts, strict=True)))

    @cached_property
    def qrels_sha256(self) -> str:
        """Content hash of what counts as found, whatever its order: judgements, or answers."""
        judged = sorted((query, document, str(grade)) for query, document, grade in self.qrels)
        answered = sorted((query, *texts) for query, texts in (self.answers or {}).items())
        return sha256_of_records([*judged, *answered])

    def _corpus_key(self, sources: tuple[Path, ...]) -> str:
        """Folder name shared by the splits of a collection; another one if any file changed."""
        made_by = (self.facts.layout, self.facts.title_track, str(READER_VERSION))
        files = map(SourceFile.of, sources)
        stamps = [(file.path, str(file.size), str(file.mtime_ns)) for file in files]
        return f"{sources[0].resolve().parent.name}-{sha256_of_records([made_by, *stamps])[:16]}"


def open_dataset(
    name_or_folder: str,
    *,
    cache_dir: Path,
    data_dir: Path | None = None,
    split: str | None = None,
    download: bool = True,
    with_corpus: bool = True,
) -> Dataset:
    """Open a collection of the catalogue, or a folder of the user's own.

    A folder (see `user_folder`) has the layout that its files show. Facts that its
    ``dataset.toml`` does not declare have the defaults of `Facts`; one that claims the name of a
    declared collection has the facts of that collection. With another ``split`` than the
    declared one, published counts of queries and judgements no longer apply.

    Args:
        name_or_folder: name as in ``dataset_names()``, a path, or one below ``data_dir``.
        cache_dir: where downloads and built corpora are kept.
        data_dir: where to look for the files before downloading them.
        split: which judgements, instead of the declared ones.
        download: fetch missing files.
        with_corpus: look for the documents, too. Without them, a run is scored by judgements of a
            few kilobytes, and `Dataset.corpus` may have no file to read.

    Raises:
        BenchError: no such name or folder, files that are missing or malformed, or a folder that
            claims the name of a declared collection with other facts.
    """
    folder = user_folder(name_or_folder, data_dir)
    if folder:
        facts = facts_of_folder(folder)
    else:
        facts = facts_for(name_or_folder)
        if facts.layout == "stdlib-code":
            return _open_stdlib_code(facts, split or facts.split, cache_dir)
    if split is not None and split != facts.split:
        facts = _facts_of_split(facts, split)
    if not folder:
        with_corpus = with_corpus or reader_of_layout(facts.layout).answers_decide
        folder = find_files(facts, data_dir, cache_dir, download, with_corpus)
    reader = reader_of_layout(facts.layout)(folder, facts.split, facts.title_track == "title")
    return _read_dataset(facts, reader, cache_dir)


def name_in_results(folder: Path) -> str:
    """Name that results on a user's own collection have.

    Raises:
        BenchError: its ``dataset.toml`` is not TOML.
    """
    return str(_read_facts_file(folder).get("name") or folder.resolve().name)


def _read_facts_file(folder: Path) -> dict[str, Any]:
    """The table of a folder's ``dataset.toml``; empty if there is none."""
    path = folder / FACTS_FILE
    return read_toml(path, dict[str, Any]) if os.path.lexists(path) else {}


def facts_of_folder(folder: Path) -> Facts:
    """Facts of a user's own collection: declared in its ``dataset.toml``, else as its files show.

    Scores on a folder that claims the name of a declared collection stand beside published ones:
    it has the facts of that collection, and only the split is the folder's to say.

    Raises:
        BenchError: the file is not valid, or claims a name with other facts.
    """
    path, stated, name = folder / FACTS_FILE, _read_facts_file(folder), name_in_results(folder)
    if "name" in stated and name in suite_names():
        raise BenchError(f"{path} claims the name {name}, which is a suite", _rename_hint(folder))
    if name not in dataset_names():
        layout = stated.get("layout") or detect_layout(folder)
        return convert_table({**stated, "name": name, "layout": layout}, Facts, path)
    published = facts_for(name)
    if published.layout == "stdlib-code":
        problem = f"{folder} has the name {name}, which is made from Python's own source"
        raise BenchError(problem, _rename_hint(folder))
    facts = convert_table({**msgspec.to_builtins(published), **stated}, Facts, path)
    contradicted = [
        key
        for key in sorted(stated)
        if key != "split" and getattr(facts, key) != getattr(published, key)
    ]
    if contradicted:
        raise BenchError(
            f"{path} claims the name {name} and contradicts its {' and '.join(contradicted)}",
            f"remove that, or {_rename_hint(folder)}",
        )
    return facts if facts.split == published.split else _facts_of_split(facts, facts.split)


def _rename_hint(folder: Path) -> str:
    return f'write name = "another" into {folder / FACTS_FILE}'


def _facts_of_split(facts: Facts, split: str) -> Facts:
    counts = Counts(documents=facts.counts.documents)
    return msgspec.structs.replace(facts, split=split, counts=counts)


def _open_stdlib_code(facts: Facts, split: str, cache_dir: Path) -> Dataset:
    if split != facts.split:
        raise BenchError(
            f"{facts.name} has no split {split}: its one split is {facts.split}",
            hint="stdlib-code is there to evaluate on, and stdlib-code/train to train on",
        )
    folder = stdlib_code.generate(cache_dir, split)
    facts = msgspec.structs.replace(facts, version=stdlib_code.version_of(folder))
    return _read_dataset(facts, reader_of_layout("beir")(folder, split), cache_dir)


def _read_dataset(facts: Facts, reader: Reader, cache_dir: Path) -> Dataset:
    read = reader.judgements()
    return Dataset(facts, read.queries, read.qrels, read.answers, reader, cache_dir)


def write_dicts(
    corpus: Mapping[str, Mapping[str, str]],
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, int]],
    name: str,
    cache_dir: Path | None,
    facts: Mapping[str, Any],
) -> tuple[Path, Path]:
    """Write a collection below the cache, named by its content; returns its folder and the cache.

    What is wrong in it is found when it is read.
    """
    cache = cache_dir or platformdirs.user_cache_path("retrieval-bench")
    declared = {"name": name, "layout": "beir", "split": "test", **facts}
    parts = {
        "corpus.jsonl": [
            _line({"_id": id_, "title": each.get("title") or "", "text": each.get("text")})
            for id_, each in corpus.items()
        ],
        "queries.jsonl": [_line({"_id": id_, "text": text}) for id_, text in queries.items()],
        "qrels/test.tsv": ["\t".join(BEIR_HEADER)]
        + [
            f"{query}\t{document}\t{grade}"
            for query, grades in qrels.items()
            for document, grade in grades.items()
        ],
        "dataset.toml": [  # a JSON text or list is one of TOML, too
            f"{key} = {msgspec.json.encode(value).decode()}" for key, value in declared.items()
        ],
    }
    content = hashlib.sha256()
    for file, lines in parts.items():
        content.update(msgspec.json.encode([file, lines]))
    folder = cache / "from-dicts" / content.hexdigest()[:32]
    if not folder.is_dir():
        with replace_folder(folder) as unfinished:
            (unfinished / "qrels").mkdir()
            for file, lines in parts.items():
                text = "".join(f"{line}\n" for line in lines)
                (unfinished / file).write_text(text, encoding="utf-8")
    return folder, cache


def _line(record: Mapping[str, str | None]) -> str:
    return msgspec.json.encode(record).decode()


def take_first_queries(dataset: Dataset, count: int) -> Dataset:
    """Return a small dataset: the first queries, their judged documents, and some others.

    Scores on it say nothing about the collection: nearly all documents that could be mistaken for
    relevant ones are missing. Its name is that of the collection with ``/firstN``, so that prompts
    and what models were trained on apply, and results never mix with those of the whole.

    Args:
        count: of queries; a collection that has fewer gives all of its own.

    Raises:
        BenchError: accepted answers decide what is relevant, so no document is known to be.
    """
    if dataset.answers is not None:
        raise BenchError(
            f"{dataset.name} has no judgements of documents, by which --limit chooses them",
            "leave --limit out",
        )
    ids = list(dataset.qrels.queries())[:count]
    texts = dict(zip(dataset.queries.ids, dataset.queries.texts, strict=True))
    qrels: dict[str, dict[str, int]] = {id_: {} for id_ in ids}
    for query, document, grade in dataset.qrels:
        if query in qrels:
            qrels[query][document] = grade
    judged = sorted({document for grades in qrels.values() for document in grades})
    facts = {name: getattr(dataset.facts, name) for name in INHERITED_FACTS}
    return Dataset.from_dicts(
        dict(_first_documents(dataset, judged, OTHERS_PER_QUERY * count)),
        {id_: texts[id_] for id_ in ids},
        qrels,
        name=f"{dataset.name}/first{count}",
        cache_dir=dataset.cache_dir,
        **{name: fact for name, fact in facts.items() if fact is not None},
    )


def _first_documents(
    dataset: Dataset, judged: list[str], others: int
) -> Iterator[tuple[str, dict[str, str]]]:
    """Judged documents and the first others, in the order of the corpus."""
    corpus = dataset.corpus
    rows = corpus.rows_of(judged)
    rows = rows[rows >= 0]
    head = np.arange(min(len(corpus), others + len(rows)))
    kept = np.sort(np.concatenate([rows, np.setdiff1d(head, rows)[:others]]))
    columns = (corpus.ids, corpus.titles, corpus.texts)
    for id_, title, text in zip(
        *(column.take(kept).to_pylist() for column in columns), strict=True
    ):
        yield id_, {"title": title, "text": text}


def remember_folder(dataset: Dataset) -> None:
    """Remember the folder of a collection of the user's own; declared ones are found by name."""
    if dataset.name not in dataset_names():
        hashes = dataset.queries_sha256, dataset.qrels_sha256
        with replace_file(_memory_file(*hashes, dataset.cache_dir)) as file:
            file.write(os.fsencode(dataset.reader.folder.resolve()))


def open_remembered(
    queries_sha256: str, qrels_sha256: str, split: str, cache_dir: Path
) -> Dataset | None:
    """The collection of this content, if the folder that held it last still does.

    Args:
        queries_sha256, qrels_sha256: as of `Dataset`.
        split: which judgements.
    """
    try:
        folder = os.fsdecode(
            read_regular_file(_memory_file(queries_sha256, qrels_sha256, cache_dir))
        )
        dataset = open_dataset(folder, cache_dir=cache_dir, split=split or None, download=False)
    except (OSError, ValueError, BenchError):  # no memory of it, moved or changed since
        return None
    hashes = (dataset.queries_sha256, dataset.qrels_sha256)
    return dataset if hashes == (queries_sha256, qrels_sha256) else None


def _memory_file(queries_sha256: str, qrels_sha256: str, cache_dir: Path) -> Path:
    """The file that holds the path of a folder with this content."""
    return cache_dir / "folders" / sha256_of_records([[queries_sha256, qrels_sha256]])[:16]
