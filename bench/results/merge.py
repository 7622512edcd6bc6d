"""Folders of results from several machines, as one: nothing is lost, nothing is written over.

An evaluation is known by its model and key (recipe, protocol, index). Evaluations with the same
scores, query by query, are one, and the newest record of it with its ranking is kept; it takes the
place of one whose ranking is damaged. Where scores differ, that is a conflict: it is named, and
both are kept, side by side. So folders merge to the same set in whatever order they are given, and
however often.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bench.results.interchange.claimed import Claimed, keep
from bench.results.location import Place, replacing
from bench.results.result import (
    RESULT_FILE,
    RUN_FILE,
    SCORES_FILE,
    TREC_FILE,
    Result,
    Stored,
    place,
)
from foundation.object_store import RemotePath

Evaluation = tuple[str, str]  # model, key


@dataclass(frozen=True)
class Duplicate:
    """A stored evaluation, the hash of its scores by measure, and whether it has its ranking."""

    stored: Stored
    digests: Mapping[str, str]
    has_ranking: bool = True

    @classmethod
    def of(cls, stored: Stored) -> "Duplicate":
        """Reads the values of the queries.

        Raises:
            BenchError: they are missing or damaged.
        """
        ids, values = stored.scores()
        by_query = sorted(range(len(ids)), key=ids.__getitem__)
        queries = hashlib.sha256(msgspec.json.encode([ids[row] for row in by_query]))
        digests = {}
        for name in sorted(values):
            hashed = queries.copy()
            hashed.update(values[name][by_query].tobytes())
            digests[name] = hashed.hexdigest()
        return cls(stored, digests, stored.has_ranking)

    @property
    def digest(self) -> str:
        """Hash of all scores."""
        encoded = msgspec.json.encode(self.digests, order="deterministic")
        return hashlib.sha256(encoded).hexdigest()

    def disagrees(self, other: "Duplicate") -> bool:
        """True where a measure that both have differs for a query."""
        shared = self.digests.keys() & other.digests.keys()
        return any(self.digests[name] != other.digests[name] for name in shared)

    @property
    def evaluation(self) -> Evaluation:
        """Collection, model and key of the evaluation."""
        return self.stored.result.model, self.stored.result.key

    @property
    def standing(self) -> tuple[bool, str, bytes]:
        """Larger for the record that is kept: with its ranking, then the newest; the rest makes the
        choice the same.
        """
        result = self.stored.result
        encoded = msgspec.json.encode(result, order="deterministic")
        return self.has_ranking, result.conditions.time, encoded


class Conflict(msgspec.Struct, frozen=True):
    """One evaluation with several scores.

    Attributes:
        folders: of each of them.
        measures: that differ, with the mean in each folder; empty where only queries differ.
    """

    collection: str
    model: str
    key: str
    folders: tuple[str, ...]
    measures: dict[str, tuple[float, ...]]


def union(variants: Iterable[Duplicate]) -> dict[Evaluation, dict[str, Duplicate]]:
    """The record that is kept, by evaluation, then by hash of the scores."""
    merged: dict[Evaluation, dict[str, Duplicate]] = defaultdict(dict)
    for variant in variants:
        same = merged[variant.evaluation]
        known = same.get(variant.digest)
        if known is None or known.standing < variant.standing:
            same[variant.digest] = variant
    return {key: dict(sorted(merged[key].items())) for key in sorted(merged)}


def conflicts(merged: Mapping[Evaluation, Mapping[str, Duplicate]]) -> list[Conflict]:
    """Evaluations that were kept with several scores for one measure."""
    disagreements = []
    for (model, key), kept in merged.items():
        variants = list(kept.values())
        if any(variant.disagrees(other) for variant in variants for other in variants):
            results = [variant.stored.result for variant in variants]
            collection = results[0].protocol.collection
            folders = tuple(str(variant.stored.folder) for variant in variants)
            disagreements.append(Conflict(collection, model, key, folders, _differing(results)))
    return disagreements


def _differing(results: Sequence[Result]) -> dict[str, tuple[float, ...]]:
    shared = set.intersection(*(set(result.measures) for result in results))
    means = {name: tuple(result.measures[name] for result in results) for name in sorted(shared)}
    return {name: values for name, values in means.items() if len(set(values)) > 1}


def write(
    merged: Mapping[Evaluation, Mapping[str, Duplicate]],
    there: Iterable[Duplicate],
    claims: Sequence[Claimed],
    out: Place,
    advance: Callable[[int], None],
) -> int:
    """Copy what is not in ``out`` yet; returns how many evaluations were.

    Args:
        there: what ``out`` holds already.
        advance: called with 1 after each evaluation.

    Raises:
        BenchError: the place cannot be written.
    """
    known = {(*duplicate.evaluation, duplicate.digest): duplicate for duplicate in there}
    taken = {duplicate.stored.folder for duplicate in known.values()}
    copied = 0
    for (model, key), variants in merged.items():
        for digest, variant in variants.items():
            there_already = known.get((model, key, digest))
            if there_already is None:
                collection = variant.stored.result.protocol.collection
                folder = place(out, collection, model) / key
                if folder in taken or isinstance(folder, RemotePath):
                    folder = folder.parent / f"{key}-{digest[:8]}"
                taken.add(folder)
                _copy(variant.stored.folder, folder)
                copied += 1
            elif variant.has_ranking and not there_already.has_ranking:
                _copy(variant.stored.folder, there_already.stored.folder)
                copied += 1
            advance(1)
    keep(claims, out)
    return copied


def _copy(source: Place, folder: Place) -> None:
    """The record goes last: what has one is whole."""
    for name in (RUN_FILE, TREC_FILE, SCORES_FILE, RESULT_FILE):
        if (source / name).exists():
            with replacing(folder / name) as file:
                file.write((source / name).read_bytes())
