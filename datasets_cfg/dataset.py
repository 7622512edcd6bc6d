"""A collection ready for evaluation: facts, queries, judgements, and a corpus on first use."""

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
from tqdm import tqdm

from datasets_cfg import stdlib_code
from datasets_cfg.catalogue import dataset_names, facts_for, own_folder, suite_names
from datasets_cfg.corpus import Corpus, DamagedCorpusError, SourceFile
from datasets_cfg.facts import Counts, Facts, Layout
from datasets_cfg.locate import find_files
from datasets_cfg.readers import READER_VERSION, Reader, detect_layout, reader_for
from datasets_cfg.readers.lines import packed_twin
from datasets_cfg.records import Qrels, Queries
from foundation.errors import BenchError
from foundation.files import sha256_of
from foundation.records import decode_toml

FACTS_FILE = "dataset.toml"
CORPORA = "corpora"  # folder of the cache

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Dataset:
    """One split of a collection.

    Attributes:
        facts: what is declared; ``facts.version`` is the content hash for ``stdlib-code``.
        queries: the queries that have judgements, in file order; all questions of DPR.
        qrels: relevance judgements; empty where answers decide.
        answers: accepted answers of each query id; None where qrels decide.
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
        from datasets_cfg.from_dicts import write_dicts

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
        if folder.is_dir():
            try:
                corpus = Corpus.open(folder)
                corpus.check_samples_of_sources()
                return corpus
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
        return sha256_of(sorted(zip(self.queries.ids, self.queries.texts, strict=True)))

    @cached_property
    def qrels_sha256(self) -> str:
        """Content hash of what counts as found, whatever its order: judgements, or answers."""
        judged = sorted((query, document, str(grade)) for query, document, grade in self.qrels)
        answered = sorted((query, *texts) for query, texts in (self.answers or {}).items())
        return sha256_of([*judged, *answered])

    def _corpus_key(self, sources: tuple[Path, ...]) -> str:
        """Folder name shared by the splits of a collection; another one if any file changed.

        Also if a packed twin of one appeared: it must hold the same, which is looked at when the
        corpus is built.
        """
        made_by = (self.facts.layout, self.facts.title_track, str(READER_VERSION))
        twins = [twin for path in sources if (twin := packed_twin(path))]
        files = [SourceFile.of(path) for path in (*sources, *twins)]
        stamps = [(file.path, str(file.size), str(file.mtime_ns)) for file in files]
        return f"{sources[0].resolve().parent.name}-{sha256_of([made_by, *stamps])[:16]}"


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

    A folder (see `own_folder`) has the layout that its files show. Facts that its
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
    folder = own_folder(name_or_folder, data_dir)
    if folder:
        facts = facts_of_folder(folder)
    else:
        facts = facts_for(name_or_folder)
        if facts.layout == "stdlib-code":
            return _open_stdlib_code(facts, split or facts.split, cache_dir)
    if split is not None and split != facts.split:
        facts = _with_split(facts, split)
    if not folder:
        with_corpus = with_corpus or facts.layout == "dpr"  # answers are looked up in passages
        folder = find_files(facts, data_dir, cache_dir, download, with_corpus)
    titled = facts.title_track == "title"
    reader = reader_for(facts.layout, folder, facts.split, titled, facts.files)
    return _read(facts, reader, cache_dir)


class _FolderFacts(Facts, frozen=True, forbid_unknown_fields=True):
    """Facts of a user's folder, which need not repeat what the folder shows."""

    name: str = ""
    layout: Layout | Literal[""] = ""  # type: ignore[assignment]


def name_in_results(folder: Path) -> str:
    """Name that results on a user's own collection have.

    Raises:
        BenchError: its ``dataset.toml`` is not valid.
    """
    return _declared_in(folder)[0].name or folder.resolve().name


def _declared_in(folder: Path) -> tuple[_FolderFacts, bytes]:
    path = folder / FACTS_FILE
    content = path.read_bytes() if os.path.lexists(path) else b""
    return decode_toml(content, _FolderFacts, path), content


def facts_of_folder(folder: Path) -> Facts:
    """Facts of a user's own collection: declared in its ``dataset.toml``, else as its files show.

    Raises:
        BenchError: the file is not valid, or claims a name with other facts.
    """
    path = folder / FACTS_FILE
    declared, content = _declared_in(folder)
    name = declared.name or folder.resolve().name
    if name in dataset_names():
        stated = msgspec.toml.decode(content, type=dict[str, object])
        return _facts_claimed(facts_for(name), declared, stated, folder)
    if declared.name in suite_names():
        raise BenchError(f"{path} claims the name {name}, which is a suite", _another_name(folder))
    layout = declared.layout or detect_layout(folder)
    fields = {**msgspec.structs.asdict(declared), "name": name, "layout": layout}
    return Facts(**fields)


def _facts_claimed(builtin: Facts, declared: Facts, stated: Collection[str], folder: Path) -> Facts:
    """Facts of a folder that claims the name of a declared collection: those of that collection.

    Scores on it stand beside published ones, so none of its rules may be changed. Which files it
    is in and which split is used are the folder's to say.

    Args:
        stated: keys of its ``dataset.toml``; all other fields of ``declared`` are defaults.

    Raises:
        BenchError: a fact contradicts those of the collection, or no folder can be it.
    """
    if builtin.layout == "stdlib-code":
        raise BenchError(
            f"{folder} has the name {builtin.name}, which is made from Python's own source",
            _another_name(folder),
        )
    others = sorted(set(stated) - {"name", "split", "files"})
    contradicted = [key for key in others if getattr(declared, key) != getattr(builtin, key)]
    if contradicted:
        raise BenchError(
            f"{folder / FACTS_FILE} claims the name {builtin.name} and contradicts its "
            f"{' and '.join(contradicted)}",
            f"remove {'that line' if len(contradicted) == 1 else 'those lines'}, or "
            f"{_another_name(folder)}",
        )
    facts = msgspec.structs.replace(builtin, files=declared.files or builtin.files)
    split = declared.split if "split" in stated else builtin.split
    return facts if split == builtin.split else _with_split(facts, split)


def _another_name(folder: Path) -> str:
    return f'write name = "another" into {folder / FACTS_FILE}'


def _with_split(facts: Facts, split: str) -> Facts:
    counts = Counts(
        documents=facts.counts.documents, nonempty_documents=facts.counts.nonempty_documents
    )
    return msgspec.structs.replace(facts, split=split, counts=counts)


def _open_stdlib_code(facts: Facts, split: str, cache_dir: Path) -> Dataset:
    if split != facts.split:
        raise BenchError(
            f"{facts.name} has no split {split}: its one split is {facts.split}",
            hint="stdlib-code is there to evaluate on, and stdlib-code/train to train on",
        )
    folder = stdlib_code.generate(cache_dir, split)
    facts = msgspec.structs.replace(facts, version=stdlib_code.version_of(folder))
    return _read(facts, reader_for("beir", folder, split), cache_dir)


def _read(facts: Facts, reader: Reader, cache_dir: Path) -> Dataset:
    read = reader.judgements()
    return Dataset(facts, read.queries, read.qrels, read.answers, reader, cache_dir)
