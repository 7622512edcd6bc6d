"""Libraries that adapters come from, which may not be installed; options of their methods."""

import importlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from foundation.errors import BenchError, did_you_mean


def import_library(name: Literal["adapters", "peft"]) -> Any:
    """The imported library.

    Raises:
        BenchError: it is not installed, or not for this version of transformers.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BenchError(
            f"this adapter needs the library {name!r}, which cannot be imported: {error}",
            f"pip install 'retrieval-bench[{name}]'",
        ) from error


def check_options(method: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse options that the method does not have.

    Raises:
        BenchError: with what was probably meant.
    """
    names = sorted(known)
    for wrong in sorted(set(options) - set(names)):
        hint = did_you_mean(wrong, names, f"it has {', '.join(names)}")
        raise BenchError(f"the adapter method {method} has no option {wrong!r}", hint)
