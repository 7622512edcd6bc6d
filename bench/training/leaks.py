"""Leaks: training queries that are queries that the model will be scored on.

A published train split can share questions with its own test split: two of SciFact's and four of
NFCorpus's training queries have the text of a test query, under other ids.
"""

import re
import unicodedata
from collections.abc import Sequence

from datasets_cfg.dataset import Dataset
from datasets_cfg.readers import Queries
from foundation.errors import BenchError

_WORD = re.compile(r"\w+")


def leaks(training: Dataset, evaluated: Dataset) -> tuple[str, ...]:
    """Ids of the training queries that read like an evaluated one.

    A judged pair leaks with its query: documents alone are shared by any two splits.

    Raises:
        BenchError: a training query is itself evaluated.
    """
    same = family(training.name) == family(evaluated.name) or _same_files(training, evaluated)
    ids, texts = shared_queries(training.queries, evaluated.queries, same)
    if ids:
        raise BenchError(
            f"split {training.facts.split} of {training.name} has {len(ids)} queries of the split "
            f"{evaluated.facts.split} that {evaluated.name} is evaluated on",
            'train on another split: --split train; in a grid split = "train"',
        )
    return texts


def shared_queries(
    training: Queries, evaluated: Queries, ids_count: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Ids of training queries that are evaluated: by id, and by text.

    Args:
        ids_count: whether both are of one collection; ids of two collide by accident.
    """
    known = set(evaluated.ids) if ids_count else set()
    texts = {normalised(text) for text in evaluated.texts}
    pairs = list(zip(training.ids, training.texts, strict=True))
    return (
        tuple(id_ for id_, _ in pairs if id_ in known),
        tuple(id_ for id_, text in pairs if normalised(text) in texts),
    )


def normalised(text: str) -> str:
    """Words of a text without case, punctuation or Unicode's compatibility variants."""
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


# Collections under several names: one corpus and the same training queries, or, of stdlib-code, one
# source.
FAMILIES = (
    ("beir/msmarco", "msmarco", "msmarco-title"),
    ("beir/nq", "dpr/nq"),
    ("stdlib-code",),
)


def family(name: str) -> tuple[str, ...]:
    """Names that count as seen by a model that was trained on the collection."""
    for members in FAMILIES:
        if any(f"{name}/".startswith(f"{member}/") for member in members):
            return members
    return (name,)


def seen(names: Sequence[str]) -> tuple[str, ...]:
    """Collections that the card of a model states as trained on, each once."""
    return tuple(dict.fromkeys(member for name in names for member in family(name)))


def _same_files(dataset: Dataset, other: Dataset) -> bool:
    paths = [{path.resolve() for path in each.reader.corpus_files()} for each in (dataset, other)]
    return bool(paths[0] & paths[1])
