"""The checkpoint that a training starts from: by card, folder or Hub id."""

from pathlib import Path

from foundation.errors import BenchError, did_you_mean
from retrievers.models.card import Card, card_names, load_card
from retrievers.models.checkpoint import Checkpoint, open_checkpoint
from retrievers.models.locate import locate
from retrievers.models.lookup import CARD_FILE
from retrievers.models.st_folder import find_transformer, is_st_folder


def find_checkpoint(model: str) -> tuple[Checkpoint, tuple[str, ...]]:
    """Files of a checkpoint by card, folder or Hub id, and what it was trained on.

    Raises:
        BenchError: there is none, or its files are damaged.
    """
    folder = Path(model).expanduser()
    if model in card_names() or model.endswith(".toml"):
        card = load_card(model)
        _check_whole(card)
        base = Path(model).resolve().parent if model.endswith(".toml") else Path.cwd()
        return _open(_folder_of(card, base)), card.trained_on
    if folder.is_dir():
        own = load_card(folder / CARD_FILE) if (folder / CARD_FILE).is_file() else None
        if own is not None:
            _check_whole(own)
        return _open(folder.resolve()), own.trained_on if own else ()
    if model.count("/") != 1 or model.startswith((".", "~", "/")):
        raise BenchError(
            f"there is no card and no folder {model!r} to start from",
            f"{did_you_mean(model, card_names())} see `python -m bench list models`".strip(),
        )
    return _open(locate(model, "main", base=Path.cwd())), ()


def _check_whole(card: Card) -> None:
    """Refuse to start from a part of a model as if it were all."""
    parts = {"an adapter": card.adapter, "a second encoder": card.query_checkpoint}
    for part, there in parts.items():
        if there:
            raise BenchError(
                f"{card.name} has {part}, which would be left out", "start from a plain encoder"
            )


def _folder_of(card: Card, base: Path) -> Path:
    if not card.checkpoint or card.missing:
        raise BenchError(
            f"{card.name} has no checkpoint to start from", card.missing or "name another model"
        )
    return locate(
        card.checkpoint, card.revision, base=base, package=card.package, sha=card.weights_sha256
    )


def _open(root: Path) -> Checkpoint:
    inner = find_transformer(root) if is_st_folder(root) else ""
    return open_checkpoint(root, inner)
