"""Evaluate dense retrievers: texts become vectors, vectors a ranking, a ranking scores.

What is named here is the public Python API. It is loaded when it is first used, so that
``import bench`` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.api import (
        ComparisonResult,
        ablate,
        check,
        compare,
        cutoff,
        deploy,
        evaluate,
        finetune,
        judge,
        leaderboard,
        ledger,
        load_result,
        plot,
        pretrain,
        results,
        score,
        tune,
    )
    from bench.evaluation.result_record import Evaluation
    from datasets_cfg.dataset import Dataset
    from foundation.errors import BenchError

__version__ = "0.3.0"
__all__ = [
    "BenchError",
    "ComparisonResult",
    "Dataset",
    "Evaluation",
    "ablate",
    "check",
    "compare",
    "cutoff",
    "deploy",
    "evaluate",
    "finetune",
    "judge",
    "leaderboard",
    "ledger",
    "load_result",
    "plot",
    "pretrain",
    "results",
    "score",
    "tune",
]
HOMES = {  # modules of names that are not in `bench.api`
    "BenchError": "foundation.errors",
    "Dataset": "datasets_cfg.dataset",
    "Evaluation": "bench.evaluation.result_record",
}

if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Load what the API names."""
        if name in __all__:
            return getattr(import_module(HOMES.get(name, "bench.api")), name)
        from foundation.errors import did_you_mean

        meant = did_you_mean(name, __all__, f"It has {', '.join(__all__)}.")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}. {meant}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
