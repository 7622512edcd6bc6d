"""Continual pre-training on collections, one after the other."""

import shlex
from collections.abc import Sequence

from bench.training.leaks import seen
from bench.training.pretrain_on_collections import CorpusTexts
from datasets_cfg.dataset import Dataset
from retrievers.training.continual.continual import Adaptation, Domain, adapt
from retrievers.training.engine.arguments import TrainingContext
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.pretrain import Trained


def adapt_on(
    preset: Pretraining,
    datasets: Sequence[Dataset],
    adaptation: Adaptation,
    context: TrainingContext,
) -> tuple[Trained, ...]:
    """Pre-train on the corpus of each collection in turn; queries and judgements are not read.

    Args:
        preset: of each training.
        context: whose folder gets the checkpoints.

    Raises:
        BenchError: see `Dataset.corpus` and `retrievers.training.continual.continual`.
    """
    domains = [
        Domain(dataset.name, CorpusTexts([dataset.corpus]), seen([dataset.name]))
        for dataset in datasets
    ]
    return adapt(preset, domains, adaptation, context)


def scores_line(folders: Sequence[str], typed: Sequence[str], like: str) -> str:
    """Return the command that evaluates every checkpoint of a sequence on all its collections.

    Args:
        folders: of the checkpoints.
        typed: the collections, as they were named.
        like: card that says how the checkpoints are used; "" for none.
    """
    words = ["python", "-m", "bench", "run", *typed, "--model", *folders]
    return shlex.join([*words, *(["--like", like] if like else [])])
