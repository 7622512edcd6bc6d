"""The ``model-index`` of a Hugging Face model card: the YAML block on top of a README.md.

Read and written with huggingface_hub's own records. Our scores are written unrounded, from 0 to 1;
others write percent, which is known by a value above 1 among those of the same data set.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.evaluate.measures import parse_measure
from bench.results.interchange.claimed import Claimed
from bench.results.interchange.mteb_tasks import TASKS, collection_of, our_measure, their_measure
from bench.results.result import Result, Stored
from datasets_cfg.catalogue import dataset_names, facts_for
from foundation.errors import BenchError

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

TASK_TYPE, TASK_NAME = "information-retrieval", "Information Retrieval"
PERCENT = 100


def card_file(name: str, stored: Mapping[str, Stored]) -> bytes:
    """A model card that holds nothing but the scores, by collection."""
    from huggingface_hub import ModelCardData

    entries = [entry for record in stored.values() for entry in entries_of(record.result)]
    return f"---\n{ModelCardData(model_name=name, eval_results=entries).to_yaml()}\n---\n".encode()


def entries_of(result: Result) -> "list[EvalResult]":
    """One entry a measure; the protocol is kept with the data set."""
    from huggingface_hub import EvalResult

    protocol = result.protocol
    task = TASKS.get(protocol.collection) if protocol.official else None
    title = facts_for(protocol.collection).title if protocol.collection in dataset_names() else ""
    arguments = {
        "collection": protocol.collection,
        "version": protocol.version,
        "depth": protocol.depth,
        "exclude_self": protocol.exclude_self,
        "official": protocol.official,
    }
    return [
        EvalResult(
            task_type=TASK_TYPE,
            task_name=TASK_NAME,
            dataset_type=task.dataset if task else protocol.collection,
            dataset_name=title or protocol.collection,
            dataset_split=protocol.split,
            dataset_args=arguments,
            metric_type=their_measure(measure) or measure,
            metric_name=measure,
            metric_value=value,
        )
        for measure, value in result.measures.items()
    ]


def claims_of(path: Path, model: str, source: str) -> Iterator[Claimed | str]:
    """The scores that a model card states, or the reason why some are left out.

    Args:
        model: "" for the name in the card.
        source: "" for the card's own word, else that it is a model card.

    Raises:
        BenchError: it cannot be read, or has no ``model-index``.
    """
    for name, entries in _read(path):
        by_data: dict[Any, list[EvalResult]] = defaultdict(list)
        for entry in entries:
            by_data[entry.dataset_type, entry.dataset_config, entry.dataset_split].append(entry)
        for some in by_data.values():
            yield _claim(path, model or name, some, source)


def _claim(path: Path, model: str, some: "Sequence[EvalResult]", source: str) -> Claimed | str:
    first = some[0]
    what = f"{first.dataset_name} ({first.dataset_type})"
    collection = _collection(first)
    if not collection:
        return f"{what} is no collection here"
    split = facts_for(collection).split if collection in dataset_names() else first.dataset_split
    if first.dataset_split not in (None, split):
        return f"{what} is of split {first.dataset_split}, and not of {split}"
    measures = _measures(some)
    if not measures:
        return f"{what} has no score that is known here"
    said = first.source_name or first.source_url or "model card"
    try:
        return Claimed(model=model, collection=collection, measures=measures, source=source or said)
    except ValueError as error:
        raise BenchError(f"{path}, {what}: {error}") from error


def _collection(entry: "EvalResult") -> str:
    own = (entry.dataset_args or {}).get("collection", "")
    if own and isinstance(own, str):
        return own
    return collection_of(entry.dataset_type) or collection_of(entry.dataset_name)


def _measures(some: "Sequence[EvalResult]") -> dict[str, float]:
    numbers = [
        (entry, value) for entry in some if (value := _number(entry.metric_value)) is not None
    ]
    scale = PERCENT if any(value > 1 for _, value in numbers) else 1
    named = ((_measure(entry), value / scale) for entry, value in numbers)
    return {name: value for name, value in named if name}


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]


def _measure(entry: "EvalResult") -> str:
    """Canonical name of a metric; its pretty name is asked first, since ours are written there."""
    for name in (entry.metric_name or "", entry.metric_type):
        if measure := our_measure(name):
            return measure
        try:
            return parse_measure(name).name
        except BenchError:
            continue
    return ""


def _read(path: Path) -> "Iterator[tuple[str, list[EvalResult]]]":
    """Name and entries of each model of a card."""
    from huggingface_hub.repocard_data import model_index_to_eval_results

    index = _front_matter(path).get("model-index")
    if not isinstance(index, list):
        raise BenchError(f"{path} has no model-index", "it is in the YAML block of a model card")
    try:
        for entry in index:
            yield model_index_to_eval_results([entry])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BenchError(
            f"{path}: its model-index is not as the Hub defines it: {error!r}"
        ) from error


def _front_matter(path: Path) -> Mapping[str, Any]:
    """The text between the first two lines of ``---``, or the whole of a YAML file."""
    import yaml
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    try:
        text = path.read_text(encoding="utf-8")
        block = REGEX_YAML_BLOCK.search(text)
        parsed = yaml.safe_load(block[2] if block else "" if path.suffix == ".md" else text)
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}") from error
    # ValueError: no UTF-8, no such date, or a number of more digits than Python converts
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BenchError(f"{path} is not a model card: {error}") from error
    return parsed if isinstance(parsed, dict) else {}
