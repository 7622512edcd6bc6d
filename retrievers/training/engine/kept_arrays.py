"""Arrays that a training computes once and keeps in its folder: negatives, scores of a teacher."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from foundation.files import replacing
from retrievers.training.engine.processes import POLL_S, is_first, wait_for

logger = logging.getLogger(__name__)

Array = TypeVar("Array", bound=npt.NDArray[Any])


def kept_array(path: Path, compute: Callable[[], Array]) -> Array:
    """The array in a file; the first process computes it where there is none, or a damaged one."""
    while True:
        wait_for(path)
        if path.is_file():
            try:
                kept: Array = np.load(path, allow_pickle=False)
                return kept
            except (ValueError, EOFError, BadZipFile) as error:
                if is_first():
                    logger.warning("%s is damaged, and is computed again: %s", path, error)
        if is_first():
            array = compute()
            with replacing(path) as file:
                np.save(file, array, allow_pickle=False)
            return array
        time.sleep(POLL_S)  # the first process replaces what is damaged
