"""Comparison of a collection with the published one of its name.

What identifies a published collection is the checksum of the archive that its files came from,
else the numbers of documents, queries and judgements that were published. All other counts are
secondary: they are reported where they differ, and refuse nothing.
"""

from collections.abc import Mapping
from pathlib import Path

from datasets_cfg.dataset import Dataset
from datasets_cfg.facts import Counts
from datasets_cfg.provenance import are_as_published
from foundation.errors import BenchError


def check_published(dataset: Dataset, allow_mismatch: bool, with_corpus: bool = True) -> bool:
    """True for the published collection, and for one of which no count was published.

    Args:
        allow_mismatch: the user's leave to continue although it is not.
        with_corpus: compare documents, too, which builds the corpus if need be.

    Raises:
        BenchError: it is another collection, and ``allow_mismatch`` is off.
    """
    different = differences(dataset, with_corpus)
    if different and not allow_mismatch:
        raise BenchError(
            f"this is not the published {dataset.name}: {'; '.join(different)}",
            "`python -m bench verify` says more; add --allow-mismatch to continue, and the result "
            "will be marked",
        )
    return not different


def differences(dataset: Dataset, with_corpus: bool = True) -> list[str]:
    """Differences of a collection from the published one; [] where it is that one.

    Counts are compared first, because that is fast. Where one differs, the files may still be those
    of the published archive: then the declared count is wrong, and nothing differs.
    """
    counted = {"queries": len(dataset.queries), "judgements": len(dataset.qrels)}
    if with_corpus and dataset.facts.counts.documents is not None:
        counted = {"documents": len(dataset.corpus), **counted}
    different = _differences(dataset.facts.counts, counted)
    if different and dataset.facts.archives and _came_from_archives(dataset, with_corpus):
        return []
    return different


def secondary_differences(dataset: Dataset) -> list[str]:
    """Differences from the published in counts that identify nothing; [] where there is none.

    Distinct texts of documents are left out, for all texts would have to be read, and judgements
    of missing documents, which `verify` counts in any case.
    """
    declared, manifest = dataset.facts.counts, dataset.corpus.manifest
    nonempty = manifest.documents - manifest.empty_documents
    counted = {
        "nonempty_documents": nonempty,
        "relevant_judgements": int((dataset.qrels.grades > 0).sum()),
        "distinct_queries": len(set(dataset.queries.texts)),
    }
    different = _differences(declared, counted)
    if declared.lucene_documents is not None and nonempty < declared.lucene_documents:
        what = f"{nonempty:,} documents have text, where Lucene indexed"
        different.append(f"{what} {declared.lucene_documents:,}")
    return different


def _came_from_archives(dataset: Dataset, with_corpus: bool) -> bool:
    reader = dataset.reader
    files: list[Path] = [*reader.judgement_files()]
    if with_corpus:
        files += reader.corpus_files()
    return are_as_published(dataset.facts, reader.folder, files)


def _differences(declared: Counts, counted: Mapping[str, int]) -> list[str]:
    return [
        f"{name.replace('_', ' ')}: {published:,} published, {count:,} found"
        for name, count in counted.items()
        if (published := getattr(declared, name)) is not None and published != count
    ]
