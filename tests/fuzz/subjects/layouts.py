"""Collections in three layouts, and somebody's run: scored again from the files."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import ClassVar

import numpy as np

from tests.fuzz import oracle
from tests.fuzz.subjects.base import Finished, Subject, differing, only_run
from tests.fuzz.subjects.sample import FACTS, write_beir, write_lines
from tests.support.collections import DOCUMENTS, QRELS, QUERIES


class CollectionSubject(Subject):
    """A folder of a user's own, in one of the layouts, evaluated with the hashing encoder."""

    read: ClassVar[Callable[[Path], oracle.Collection]]

    def command(self, rng: Random, folder: Path) -> list[str]:
        places = ("--out", str(folder / "out"), "--cache-dir", str(folder / "cache"))
        return ["run", str(folder / "input"), "--model", "hashing", "--json", *places]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        (result,) = finished.document()["results"]
        found = type(self).read(folder / "input")
        if result["documents"] != len(found.documents) or result["queries"] != len(found.asked):
            return f"{result['documents']} documents, {result['queries']} queries"
        depth = found.facts.get("depth", 1000)
        exclude_self = found.facts.get("exclude_self", False)
        expected = oracle.ranked(hashed(found), depth, exclude_self)
        stated, _ = oracle.read_run(only_run(folder / "out"))
        if oracle.ranked(stated, depth, False) != expected:
            return "the ranking is another one"
        return differing(result["measures"], expected, found.grades) if found.grades else ""


def hashed(found: oracle.Collection) -> oracle.Scored:
    """Scores of the hashing encoder over the texts as they were read here."""
    from retrievers.encoders.routed import open_encoder
    from retrievers.models.model import resolve_model

    encoder = open_encoder(resolve_model("hashing"), "cpu")
    titles, texts = zip(*found.documents.values(), strict=True)
    queries = encoder.encode_queries([found.queries[query] for query in found.asked])
    return oracle.all_scores(found, queries, encoder.encode_documents(titles, texts))


class Beir(CollectionSubject):
    """BEIR's layout."""

    name = "beir"
    read = oracle.read_beir

    def make(self, folder: Path) -> None:
        write_beir(folder / "input")


class Msmarco(CollectionSubject):
    """MS MARCO's layout."""

    name = "msmarco"
    read = oracle.read_msmarco

    def make(self, folder: Path) -> None:
        place = folder / "input"
        write_lines(
            place / "collection.tsv", [f"{n}\t{text}" for n, (_, text) in DOCUMENTS.items()]
        )
        write_lines(place / "queries.test.tsv", [f"{n}\t{text}" for n, text in QUERIES.items()])
        judged = [f"{query} 0 {document} {grade}" for (query, document), grade in QRELS.items()]
        write_lines(place / "qrels.test.tsv", judged)
        (place / "dataset.toml").write_text(FACTS, encoding="utf-8")


class Dpr(CollectionSubject):
    """DPR's layout, where answers decide."""

    name = "dpr"
    read = oracle.read_dpr

    def make(self, folder: Path) -> None:
        place = folder / "input"
        rows = [f'{n}\t"{text}"\t{title}' for n, (title, text) in DOCUMENTS.items()]
        write_lines(place / "psgs_w100.tsv", ["id\ttext\ttitle", *rows])
        answers = ["['wing']", '["slabs", "heat"]', "['metal']"]
        asked = [f"{text}\t{answer}" for text, answer in zip(QUERIES.values(), answers)]  # noqa: B905
        write_lines(place / "nq-test.qa.csv", asked)
        facts = FACTS.replace("nDCG@10", "Success@5").replace('"R@100", "RR@10", "AP"', '"RR@10"')
        (place / "dataset.toml").write_text(facts, encoding="utf-8")


class RunFile(Subject):
    """Somebody's run, scored."""

    name = "run file"

    def make(self, folder: Path) -> None:
        write_beir(folder / "collection")
        rng = np.random.default_rng(0)
        rows = [
            f"{query} Q0 {document} {rank} {score:.4f} tag"
            for query in QUERIES
            for rank, (document, score) in enumerate(
                zip(DOCUMENTS, rng.normal(0, 3, len(DOCUMENTS)).round(1), strict=True), start=1
            )
        ]
        write_lines(folder / "input" / "some.trec", rows)

    def command(self, rng: Random, folder: Path) -> list[str]:
        places = ("--out", str(folder / "out"), "--cache-dir", str(folder / "cache"))
        words = ["score", str(folder / "input" / "some.trec"), "--json"]
        return [*words, "--dataset", str(folder / "collection"), *places]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        (result,) = finished.document()["results"]
        scores, _ = oracle.read_run(folder / "input" / "some.trec")
        collection = oracle.read_beir(folder / "collection")
        ranking = oracle.ranked(scores, 1000, exclude_self=True)
        return differing(result["measures"], ranking, collection.grades)
