"""Evaluate dense retrievers: texts become vectors, vectors a ranking, a ranking scores.

What is named here is the public Python API. It is loaded when it is first used, so that
``import bench`` takes no time.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.api import EvaluationResult as EvaluationResult
    from bench.api import load_result as load_result
    from bench.api import results as results

__version__ = "0.1.0"
__all__ = ["EvaluationResult", "load_result", "results"]


class _Package(ModuleType):
    """A package whose functions stand before rooms of the same name.

    Python makes a room an attribute of its package when it is first imported. ``bench.results``
    stays the function all the same, and ``from bench.results.find import ...`` finds the room.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("bench.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.modules[__name__].__class__ = _Package
