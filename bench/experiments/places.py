"""Where an ablation finds collections, and where it works."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.evaluate.suites import mean_weights
from datasets_cfg.catalogue import expand
from datasets_cfg.dataset import Dataset, open_dataset
from datasets_cfg.published import check_published
from foundation.errors import BenchError


@dataclass(frozen=True)
class Places:
    """How collections are opened and where models run; the same for all cells.

    Attributes:
        data_dir, cache_dir, download: see `open_dataset`.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        allow_mismatch: whether a collection may differ from the published one.
    """

    cache_dir: Path
    data_dir: Path | None = None
    download: bool = True
    device: str = "auto"
    allow_mismatch: bool = False

    def open(self, names: Sequence[str], split: str | None = None) -> list[Dataset]:
        """Collections, suites as their members.

        Raises:
            BenchError: two folders have one name, by which results are known.
            BenchError: one of them is not there.
        """
        opened = [_open(self, name, split) for name in expand(names, self.data_dir)]
        seen: set[str] = set()
        for dataset in opened:
            if dataset.name in seen:
                raise BenchError(
                    f"two of the collections are called {dataset.name}", "rename a folder"
                )
            seen.add(dataset.name)
        return opened

    def weights(self, names: Sequence[str]) -> dict[str, float]:
        """Of each collection in the mean of what was typed: see `mean_weights`."""
        shares = mean_weights(names)
        typed = expand(names, self.data_dir)
        opened = self.open(names)
        return {one.name: shares[name] for name, one in zip(typed, opened, strict=True)}

    def official(self, dataset: Dataset) -> bool:
        """Whether this is the published collection; if not, that must have been allowed.

        Raises:
            BenchError: it was not.
        """
        return check_published(dataset, self.allow_mismatch)


@cache
def _open(places: Places, name: str, split: str | None) -> Dataset:
    return open_dataset(
        name,
        cache_dir=places.cache_dir,
        data_dir=places.data_dir,
        split=split,
        download=places.download,
    )
