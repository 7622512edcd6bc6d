"""Declared facts of a collection: all that is known before any of its files is read.

Facts are declared in TOML, one file per collection, and decoded strictly: a misspelt key, a wrong
type or an unknown choice stops at load, with the file, the key and what was probably meant.
"""

from pathlib import PurePosixPath
from typing import Annotated, Literal

import msgspec

from foundation.records import Record

TitleTrack = Literal["title", "no-title", ""]
# the form of an ir_measures name, such as nDCG@10 or AP(rel=2)
Measure = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z]+(\(\w+=\w+\))?(@[1-9][0-9]*)?$")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Weight = Annotated[float, msgspec.Meta(gt=0)]
Md5 = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{32})?$")]
Url = Annotated[str, msgspec.Meta(pattern=r"^https?://[^/]+/.*[^/]$")]

PACKED = (".zip", ".tar.gz", ".tgz")


class Archive(Record):
    """A file to download: a zip or tar.gz to unpack, or a plain (or .gz) file to keep as it is.

    Attributes:
        url: where it is.
        md5: checksum as published, 32 hexadecimal digits; "" where none is.
        size_bytes: size as published; 0 where unknown.
        folder: folder inside the archive that holds the collection's files.
        files: what to take out of that folder; empty for all.
    """

    url: Url
    md5: Md5 = ""
    size_bytes: Count = 0
    folder: str = ""
    files: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """Last part of the URL."""
        return PurePosixPath(self.url).name

    @property
    def packed(self) -> bool:
        """True for an archive that must be unpacked."""
        return self.url.endswith(PACKED)


class Counts(Record):
    """Published counts; None where nobody published one.

    The numbers of documents, queries and judgements identify a collection (see
    `datasets_cfg.verify`). The other counts describe it: many were taken from the index of
    another tool, so a difference is reported and never refused.

    Attributes:
        documents: documents of the corpus, empty ones included.
        queries: queries with judgements: the denominator of every mean.
        judgements: rows of the qrels.
        nonempty_documents: documents with a title or a text other than white space.
        lucene_documents: documents with at least one term in Lucene's index (what Anserini
            reports). A document of punctuation has none, so this bounds the line above from below.
        relevant_judgements: rows of the qrels with a grade of 1 or more.
        dangling_judgements: rows of the qrels whose document the corpus does not have.
        distinct_texts: distinct texts of documents, as published by MTEB.
        distinct_queries: distinct texts of queries, as published by MTEB.
        mean_words: words of a document, as published by BEIR (Thakur et al., 2021, table 1), of
            CQADupStack's twelve together; those of DPR's passages are 100 by their making.
    """

    documents: Count | None = None
    queries: Count | None = None
    judgements: Count | None = None
    nonempty_documents: Count | None = None
    lucene_documents: Count | None = None
    relevant_judgements: Count | None = None
    dangling_judgements: Count | None = None
    distinct_texts: Count | None = None
    distinct_queries: Count | None = None
    mean_words: Annotated[float, msgspec.Meta(gt=0)] | None = None


class Facts(Record):
    """Declared facts of a collection. What is not declared has the default of a plain folder.

    Attributes:
        name: as typed on the command line: ``beir/scifact``.
        layout: which reader understands its files: a module of `datasets_cfg.readers`.
        title: for people.
        version: release of the data; results compare only under the same one.
        split: which judgements are used.
        main_measure: the measure that stands for the collection, an ir_measures name.
        measures: further measures in the order shown, recall first.
        depth: documents retrieved per query.
        exclude_self: drop the document whose id is the query's (the BEIR protocol); None where
            nobody said, and then nothing is dropped.
        title_track: "title" or "no-title" where both corpora are in use, else "".
        folder: folder of its files below a data folder; "" where that is the name.
        files: file names by role, where the layout's usual ones do not fit.
        public: can be downloaded by anyone.
        instructions: how to obtain it, where it is not public.
        archives: what to download.
        counts: published counts.
        licence: as the source states it.
        citation: authors, title and venue.
        homepage: address of the source.
        unverified: what in here was not confirmed in a first-party source.
    """

    name: str
    layout: str
    title: str = ""
    version: str = ""
    split: str = "test"
    main_measure: Measure = "nDCG@10"
    measures: tuple[Measure, ...] = ("R@100",)
    depth: Annotated[int, msgspec.Meta(ge=1)] = 1000
    exclude_self: bool | None = None
    title_track: TitleTrack = ""
    folder: str = ""
    files: dict[str, str] = {}
    public: bool = True
    instructions: str = ""
    archives: tuple[Archive, ...] = ()
    counts: Counts = Counts()
    licence: str = ""
    citation: str = ""
    homepage: str = ""
    unverified: tuple[str, ...] = ()


class Suite(Record):
    """Collections that are reported together.

    The mean of a suite is the mean over its members; a suite among them counts once, with its own
    mean.

    Attributes:
        name: as typed on the command line; of a user's own suite, the path of its file.
        title: says which mean it is.
        members: names of collections or suites.
        weights: of the members in the mean, in their order; empty where each counts the same.
        mean: False where the main measures differ, so that a mean makes no sense.
    """

    name: str
    title: str
    members: tuple[str, ...]
    weights: tuple[Weight, ...] = ()
    mean: bool = True
