"""Some steps of pre-training (RetroMAE) and of fine-tuning (DPR) in bfloat16."""

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrievers.index.faiss_index import Hits
from retrievers.models.model import Model
from retrievers.training.engine.arguments import TrainingContext
from retrievers.training.engine.curve import CURVE_FILE, LossPoint, read_curve
from retrievers.training.finetune.finetune import finetune
from retrievers.training.finetune.finetune_preset import parse
from retrievers.training.finetune.training_data import Mined, TrainingSet
from retrievers.training.pretrain.preset import from_table
from retrievers.training.pretrain.pretrain import pretrain
from tests.benchmarks.gpu_proof.report import Check, NotHereError, Outcome, Part
from tests.benchmarks.gpu_proof.setup import Setup
from tests.support.small_finetuning import ListedDocuments

SECTION = "training"
UNCOUNTED = 3  # first steps, in which memory is allocated and kernels are chosen
ENDS = 5  # steps at each end whose losses are compared
LEAST_FALL = 0.02  # of the mean loss, from the first steps to the last
MOST_APART = 0.1  # of the first loss from that in float32: what is dropped out may differ too


def parts(setup: Setup) -> Iterator[Part]:
    """Both trainings."""
    yield Part(SECTION, "RetroMAE, bfloat16", 40, partial(retromae, setup))
    yield Part(SECTION, "DPR, bfloat16", 40, partial(dpr, setup))


def check_installed(*packages: str) -> None:
    """Refuse to go on without a package.

    Raises:
        NotHereError: one is not installed.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise NotHereError(f"not installed: {', '.join(missing)}")


def retromae(setup: Setup) -> Outcome:
    """RetroMAE from BERT; its first loss beside that in float32."""
    check_installed("accelerate")
    sizes = setup.sizes
    texts = setup.passages(sizes.length, sizes.batch * 4, seed=3)

    def train(precision: str, steps: int) -> list[LossPoint]:
        table: dict[str, Any] = {
            "title": "proof",
            "start": {"model": str(setup.card("bert"))},
            "objective": {"name": "retromae"},
            "optimizer": {"lr": 5e-4, "warmup": 0.0, "schedule": "constant"},
            "batch_size": sizes.batch,
            "max_tokens": sizes.length,
            "steps": steps,
            "precision": precision,
        }
        context = _context(setup, f"retromae-{precision}")
        pretrain(from_table(table, "proof"), texts, context)
        return read_curve(context.out / CURVE_FILE)

    return _outcome(setup, train("bfloat16", sizes.steps), train("float32", 1))


def dpr(setup: Setup) -> Outcome:
    """DPR's loss with one negative for each query; its first loss beside that in float32."""
    check_installed("accelerate", "datasets", "sentence_transformers")
    sizes = setup.sizes
    texts = setup.passages(sizes.length, sizes.batch * 8, seed=4)
    relevant = sizes.batch
    examples = TrainingSet(
        queries=tuple(" ".join(text.split()[:6]) for text in texts[:relevant]),
        positives=tuple(np.array([row]) for row in range(relevant)),
        documents=ListedDocuments([""] * len(texts), texts),
        trained_on=("synthetic",),
    )

    def mine(model: Model | None, depth: int) -> Mined:
        """Any documents: what is found does not change how fast they are read."""
        rng = np.random.default_rng(5)
        rows = np.stack([rng.permutation(len(texts))[:depth] for _ in range(relevant)])
        scores = -np.arange(depth, dtype=np.float32)[None].repeat(relevant, 0)
        return Mined(Hits(scores, rows), [np.zeros(1, np.float32)] * relevant)

    def train(precision: str, steps: int) -> list[LossPoint]:
        preset = parse(
            f'title = "proof"\nsteps = {steps}\nbatch_size = {sizes.batch}\nhard_negatives = 1\n'
            f'precision = "{precision}"\nmax_query_tokens = {min(32, sizes.length)}\n'
            f"max_document_tokens = {sizes.length}\n"
            f"[optimizer]\nlr = {sizes.dpr_lr}\nwarmup = 0.0\nschedule = 'constant'\n"
            '[[rounds]]\nsources = ["bm25"]\ndepth = 8\n'
            '[use]\npooling = "cls"\nnormalize = false\nsimilarity = "dot"\n'.encode(),
            "proof",
        )
        context = _context(setup, f"dpr-{precision}")
        finetune(preset, setup.model("bert", "float32"), examples, context, mine=mine)
        return read_curve(context.out / CURVE_FILE)

    return _outcome(setup, train("bfloat16", sizes.steps), train("float32", 1))


def _context(setup: Setup, name: str) -> TrainingContext:
    out: Path = setup.folder / name
    shutil.rmtree(out, ignore_errors=True)
    if setup.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    return TrainingContext(out, device="auto" if setup.on_gpu else "cpu", save_every=10**6)


def _outcome(setup: Setup, curve: Sequence[LossPoint], reference: Sequence[LossPoint]) -> Outcome:
    losses = [point.losses["loss"] for point in curve]
    counted = curve[UNCOUNTED:]
    seconds = sum(point.seconds for point in counted)
    figures = {
        "steps": len(curve),
        "losses": losses,
        "first_loss_float32": reference[0].losses["loss"],
        "step_s": seconds / len(counted),
        "tokens_per_s": sum(point.tokens for point in counted) / seconds,
        "peak_gpu_bytes": torch.cuda.max_memory_allocated() if setup.on_gpu else 0,
    }
    headline = (
        f"{figures['tokens_per_s']:,.0f} tokens/s, loss {losses[0]:.3f} to {losses[-1]:.3f} in "
        f"{len(losses)} steps"
    )
    return Outcome(headline, figures, loss_checks(losses, reference[0].losses["loss"]))


def loss_checks(losses: Sequence[float], first_in_float32: float) -> list[Check]:
    """That losses are numbers, begin where float32 begins, and fall."""
    apart = abs(losses[0] / first_in_float32 - 1)
    fall = 1 - float(np.mean(losses[-ENDS:])) / float(np.mean(losses[:ENDS]))
    finite = bool(np.isfinite(losses).all())
    return [
        Check("losses are numbers", finite, finite, "True"),
        Check("first loss beside float32", apart <= MOST_APART, apart, f"<= {MOST_APART}"),
        Check("loss falls", fall >= LEAST_FALL, fall, f">= {LEAST_FALL}"),
    ]
