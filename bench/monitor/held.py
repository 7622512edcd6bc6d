"""A checkpoint kept from being deleted while it is evaluated: the Trainer removes old ones."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.monitor.scanner import FinishedCheckpoint
from foundation.errors import BenchError

OF_TRAINING = ("optimizer", "scheduler", "scaler", "rng_state", "training_args", "global_step")


@contextmanager
def held(checkpoint: FinishedCheckpoint, place: Path) -> Iterator[Path]:
    """Links to the files of a checkpoint, below ``place``, a folder that is removed with them.

    Where files cannot be linked, as to another file system, it is
    the checkpoint's own folder.

    Raises:
        BenchError: the checkpoint was deleted.
    """
    target = place / checkpoint.name
    shutil.rmtree(place, ignore_errors=True)  # of a process that was killed
    try:
        yield target if _link(checkpoint, target) else checkpoint.folder
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _link(checkpoint: FinishedCheckpoint, target: Path) -> bool:
    for name in checkpoint.files:
        if name.startswith(OF_TRAINING):
            continue
        source, link = checkpoint.folder / name, target / name
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source.resolve(), link)
        except FileNotFoundError as error:
            raise BenchError(
                f"{checkpoint.folder} was deleted before it was evaluated",
                "keep more checkpoints: save_total_limit of the Trainer",
            ) from error
        except OSError:
            return False
    return True
