"""What the program keeps for itself: damage may cost time, and never changes a score."""

from pathlib import Path
from random import Random
from typing import ClassVar

from tests.fuzz import oracle
from tests.fuzz.mutations import mutate_tree
from tests.fuzz.subjects.base import Finished, Subject, differing, only_run, same_scores
from tests.fuzz.subjects.sample import write_beir


class CacheSubject(Subject):
    """What lies in the cache: whatever happens to it, the scores are those of the sound one."""

    part: ClassVar[str]

    def make(self, folder: Path) -> None:
        from bench.__main__ import main

        write_beir(folder / "collection")
        main(self._words(folder, "first"))

    def _words(self, folder: Path, out: str) -> list[str]:
        places = ("--out", str(folder / out), "--cache-dir", str(folder / "cache"))
        words = ["run", str(folder / "collection"), "--model", "hashing", "--json"]
        return [*words, *places]

    def mutate(self, rng: Random, folder: Path) -> str:
        return mutate_tree(rng, folder / "cache" / self.part)

    def command(self, rng: Random, folder: Path) -> list[str]:
        return self._words(folder, "out")

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        (result,) = finished.document()["results"]
        stated, _ = oracle.read_run(only_run(folder / "out"))
        expected, _ = oracle.read_run(only_run(folder / "first"))
        different = same_scores(stated, expected, 0.0)
        collection = oracle.read_beir(folder / "collection")
        ranking = oracle.ranked(expected, 1000, exclude_self=True)
        return different or differing(result["measures"], ranking, collection.grades)


class Vectors(CacheSubject):
    """Shards, their manifests and keys, and facts about an encoder."""

    name = "vectors"
    part = "vectors"


class Corpora(CacheSubject):
    """Built corpora."""

    name = "corpora"
    part = "corpora"
