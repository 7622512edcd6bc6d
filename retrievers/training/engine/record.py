"""What a folder is the training of, so that it is gone on with by the same training only."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from foundation.errors import BenchError
from retrievers.models.lookup import CARD_FILE

TRAINING_FILE = "training.json"
UNFINISHED = f".{TRAINING_FILE}"  # a kill may leave it
TRAINED_FILE = "trained.json"
SAMPLED_TEXTS = 1_000


class Training(msgspec.Struct, frozen=True):
    """What is trained.

    Attributes:
        preset: all of it, as a table.
        steps: that it takes.
        texts: how many there are.
        sample: sha256 (hex) of about 1,000 of them, evenly spaced.
        trained_on: collections that the texts are from, and those that the start had seen.
        processes: that share each step.
    """

    preset: dict[str, Any]
    steps: int
    texts: int
    sample: str
    trained_on: tuple[str, ...]
    processes: int


class Trained(msgspec.Struct, frozen=True):
    """A finished training.

    Attributes:
        folder: of the checkpoint, for ``--model``.
        steps: of the optimizer.
        texts_read: with repetitions.
        seconds: of the last call, resumed steps not counted.
        resumed_at: step that the last call went on from; 0 where it began.
    """

    folder: str
    objective: str
    steps: int
    texts_read: int
    seconds: float
    resumed_at: int


def sample_of(texts: Sequence[str]) -> str:
    """sha256 (hex) of about 1,000 texts, evenly spaced."""
    digest = hashlib.sha256()
    for place in range(0, len(texts), max(1, len(texts) // SAMPLED_TEXTS)):
        content = texts[place].encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def check_own(out: Path) -> None:
    """Refuse a folder that holds anything but a training; before anything in it is touched.

    Raises:
        BenchError: it does.
    """
    if not out.exists() or (out / TRAINING_FILE).exists():
        return
    if any(path.name != UNFINISHED for path in out.iterdir()):
        raise BenchError(f"{out} holds something else", "name another folder")


def claim(out: Path, training: Training, begun: bool) -> Trained | None:
    """Take a folder for a training.

    Args:
        begun: whether the folder holds a checkpoint to go on from; what never came that far is
            not kept.

    Returns:
        What the folder holds where this training is finished; None where it is not.

    Raises:
        BenchError: the folder holds another training.
    """
    path, asked = out / TRAINING_FILE, msgspec.json.encode(training)
    finished = (out / CARD_FILE).exists()
    if finished or begun:
        different = _differences(msgspec.json.decode(path.read_bytes()), msgspec.json.decode(asked))
        if different:
            raise BenchError(
                f"{out} holds another training: it differs in {', '.join(different)}",
                "name another folder, or remove it",
            )
    if finished:
        return msgspec.json.decode((out / TRAINED_FILE).read_bytes(), type=Trained)
    out.mkdir(parents=True, exist_ok=True)
    unfinished = out / UNFINISHED
    unfinished.write_bytes(msgspec.json.format(asked))
    unfinished.replace(path)
    return None


def write_trained(out: Path, trained: Trained) -> None:
    """Say in the folder that the training is finished; its card is written after that."""
    (out / TRAINED_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(trained)))


def _differences(held: Mapping[str, Any], asked: Mapping[str, Any], path: str = "") -> list[str]:
    """Dotted names of what differs."""
    names = []
    for name in dict.fromkeys([*asked, *held]):
        one, other = held.get(name), asked.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            names += _differences(one, other, f"{path}{name}.")
        elif one != other:
            names.append(f"{path}{name}")
    return names
