"""Names of the collections and measures in MTEB and on the Hugging Face Hub.

Each row of `TASKS` was read from the task's metadata in mteb 2.26: the name, the data set on the
Hub and its revision, which an mteb result states.
"""

import re
from dataclasses import dataclass

from datasets_cfg.catalogue import dataset_names, suite_names

LANGUAGE = "eng-Latn"  # of every collection below, as mteb writes it
CQADUPSTACK = "beir/cqadupstack"


@dataclass(frozen=True)
class Task:
    """A retrieval task of mteb; ``dataset`` and ``revision`` are on the Hub."""

    name: str
    dataset: str
    revision: str


TASKS = {
    "beir/arguana": Task("ArguAna", "mteb/arguana", "c22ab2a51041ffd869aaddef7af8d8215647e41a"),
    "beir/climate-fever": Task(
        "ClimateFEVER", "mteb/climate-fever", "47f2ac6acb640fc46020b02a5b59fdda04d39380"
    ),
    f"{CQADUPSTACK}/android": Task(
        "CQADupstackAndroidRetrieval",
        "mteb/CQADupstackAndroidRetrieval",
        "9be4c0e46342e8e3aff577a89b9a1ec9bc6b4af3",
    ),
    "beir/dbpedia-entity": Task(
        "DBPedia", "mteb/dbpedia", "c0f706b76e590d620bd6618b3ca8efdd34e2d659"
    ),
    "beir/fever": Task("FEVER", "mteb/fever", "bea83ef9e8fb933d90a2f1d5515737465d613e12"),
    "beir/fiqa": Task("FiQA2018", "mteb/fiqa", "27a168819829fe9bcd655c2df245fb19452e8e06"),
    "beir/hotpotqa": Task("HotpotQA", "mteb/hotpotqa", "ab518f4d6fcca38d87c25209f94beba119d02014"),
    "beir/msmarco": Task("MSMARCO", "mteb/msmarco", "c5a29a104738b98a9e76336939199e264163d4a0"),
    "beir/nfcorpus": Task("NFCorpus", "mteb/nfcorpus", "ec0fa4fe99da2ff19ca1214b7966684033a58814"),
    "beir/nq": Task("NQ", "mteb/nq", "b774495ed302d8c44a3a7ea25c90dbce03968f31"),
    "beir/quora": Task("QuoraRetrieval", "mteb/quora", "e4e08e0b7dbe3c8700f0daef558ff32256715259"),
    "beir/scidocs": Task("SCIDOCS", "mteb/scidocs", "f8c2fcf00f625baaa80f62ec5bd9e1fff3b8ae88"),
    "beir/scifact": Task("SciFact", "mteb/scifact", "d56462d0e63a25450459c4f213e49ffdb866f7f9"),
    "beir/trec-covid": Task(
        "TRECCOVID", "mteb/trec-covid", "bb9466bac8153a0349341eb1b22e06409e78ef4e"
    ),
    "beir/webis-touche2020": Task(
        "Touche2020", "mteb/touche2020", "a34f9a33db75fa0cbb21bb5cfc3dae8dc8bec93f"
    ),
} | {
    f"{CQADUPSTACK}/{forum}": Task(
        f"CQADupstack{forum.title()}Retrieval", f"mteb/cqadupstack-{forum}", revision
    )
    for forum, revision in (
        ("english", "ad9991cb51e31e31e430383c75ffb2885547b5f0"),
        ("gaming", "4885aa143210c98657558c04aaf3dc47cfb54340"),
        ("gis", "5003b3064772da1887988e05400cf3806fe491f2"),
        ("mathematica", "90fceea13679c63fe563ded68f3b6f06e50061de"),
        ("physics", "79531abbd1fb92d06c6d6315a0cbbbf5bb247ea4"),
        ("programmers", "6184bc1440d2dbc7612be22b50686b8826d22b32"),
        ("stats", "65ac3a16b8e91f9cee4c9828cc7c335575432a2a"),
        ("tex", "46989137a86843e03a6195de44b09deda022eec7"),
        ("unix", "6c6430d3a6d36f8d2a829195bc5dc94d7e063e53"),
        ("webmasters", "160c094312a0e1facb97e55eeddb698c0abe3571"),
        ("wordpress", "4ffe81d471b1924886b33c7567bfb200e9eec5c4"),
    )
}
WHOLE_CQADUPSTACK = "CQADupstackRetrieval"  # the mean of the twelve

_KINDS = {
    "nDCG": "ndcg",
    "R": "recall",
    "AP": "map",
    "P": "precision",
    "RR": "mrr",
    "Success": "hit_rate",
}
_WITH_CUTOFF = re.compile(r"(\w+)@(\d+)")
_THEIR_NAME = re.compile(
    rf"(?:(?:cosine|dot)_)?({'|'.join(_KINDS.values())})(?:_at_|@)(\d+)", re.IGNORECASE
)


def collection_of(name: str) -> str:
    """Collection or suite that a task, or a data set of the Hub, is; "" for none of ours."""
    if name in dataset_names() or name in suite_names():
        return name
    bare = name.removeprefix("MTEB ").lower()
    if bare == WHOLE_CQADUPSTACK.lower():
        return CQADUPSTACK
    known = {task.name.lower(): collection for collection, task in TASKS.items()}
    known |= {task.dataset.lower(): collection for collection, task in TASKS.items()}
    return known.get(bare, "")


def their_measure(measure: str) -> str:
    """``ndcg_at_10`` for ``nDCG@10``; "" for a measure that MTEB does not have."""
    match = _WITH_CUTOFF.fullmatch(measure)
    return f"{_KINDS[match[1]]}_at_{match[2]}" if match and match[1] in _KINDS else ""


def our_measure(name: str) -> str:
    """``nDCG@10`` for ``ndcg_at_10`` and for ``cosine_ndcg@10``; "" for none of ours."""
    match = _THEIR_NAME.fullmatch(name)
    if not match:
        return ""
    kinds = {theirs: ours for ours, theirs in _KINDS.items()}
    return f"{kinds[match[1].lower()]}@{match[2]}"
