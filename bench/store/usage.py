"""Size and age of stored vectors, by model."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from bench.store.store import KEYS_FOLDER, RECIPE_FILE
from foundation.errors import BenchError
from foundation.records import read_json

DAY_S = 86_400


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One folder of the store.

    Attributes:
        model: name of the model; ``unknown`` for a folder of an older version.
        fingerprint: name of the folder, the first half of the recipe's fingerprint.
        dtype: dtype of the vectors.
        bytes: size on disk of all files, indexes included.
        last_used: seconds since the epoch.
    """

    model: str
    fingerprint: str
    dtype: str
    bytes: int
    last_used: float


class _RecipeHeader(msgspec.Struct):
    """The fields read from ``recipe.json``, which every version has."""

    model: str
    store_dtype: str = "float32"


def measure_usage(store: Path) -> list[ModelUsage]:
    """Return the folders of the store in the folder ``store``, the largest first."""
    folders = store.iterdir() if store.is_dir() else ()
    rows = [_folder_usage(folder) for folder in folders if folder.is_dir()]
    return sorted(rows, key=lambda row: (-row.bytes, row.fingerprint))


def select_models(
    rows: Sequence[ModelUsage], names: Iterable[str], older_than_days: float | None, now: float
) -> list[ModelUsage]:
    """Select folders of the store.

    Args:
        rows: folders of the store.
        names: models, or first characters of fingerprints; empty for all.
        older_than_days: minimum days since the last use; None for any.
        now: seconds since the epoch.

    Raises:
        BenchError: nothing in the store matches a name.
    """
    chosen = list(rows)
    if names := list(names):
        for name in names:
            if not any(_matches(row, name) for row in rows):
                stored = ", ".join(sorted({row.model for row in rows})) or "nothing"
                raise BenchError(f"no vectors of {name!r} are stored", f"stored: {stored}")
        chosen = [row for row in rows if any(_matches(row, name) for name in names)]
    if older_than_days is not None:
        chosen = [row for row in chosen if now - row.last_used > older_than_days * DAY_S]
    return chosen


def _matches(row: ModelUsage, name: str) -> bool:
    return bool(name) and (row.model == name or row.fingerprint.startswith(name))


def _folder_usage(folder: Path) -> ModelUsage:
    described, recipe, size = _RecipeHeader("unknown", ""), folder / RECIPE_FILE, 0
    with suppress(BenchError):
        described = read_json(recipe, _RecipeHeader)
    if folder.name == KEYS_FOLDER:
        described = _RecipeHeader("(keys of corpora)", "")
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a temporary file of another process
            size += path.stat().st_size if path.is_file() else 0
    return ModelUsage(
        model=described.model,
        fingerprint=folder.name,
        dtype=described.store_dtype,
        bytes=size,
        last_used=(recipe if recipe.exists() else folder).stat().st_mtime,
    )
