"""The collections that checkpoints are evaluated on, and what is measured there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.evaluate.judging import measure_names
from bench.evaluate.measures import parse_measure
from bench.evaluate.suites import mean_weights
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError


@dataclass(frozen=True)
class Opened:
    """An open collection, and whether it is the published one."""

    dataset: Dataset
    official: bool


def weights_by_name(typed: Sequence[str], opened: Mapping[str, Opened]) -> dict[str, float]:
    """Weights in the mean of what was typed, by the collections' own names.

    Args:
        opened: by what was typed; a user's own folder has another name than its path.
    """
    return {opened[one].dataset.name: weight for one, weight in mean_weights(typed).items()}


def one_measure(opened: Sequence[Opened], wanted: str | None, depth: int | None = None) -> str:
    """The measure of all collections: the one wanted, or the main one where they agree.

    Args:
        depth: documents per query; None for each collection's.

    Raises:
        BenchError: main measures differ, or a collection cannot be measured so.
    """
    mains = sorted({one.dataset.facts.main_measure for one in opened})
    if wanted is None and len(mains) > 1:
        raise BenchError(
            f"the main measures of the collections differ: {', '.join(mains)}",
            "choose one with --measure",
        )
    measure = parse_measure(mains[0] if wanted is None else wanted).name
    for one in opened:
        measure_names(one.dataset, (measure,), depth)
    return measure
