"""Sparse fine-tuning: of all weights a fixed small share is trained.

With θ_0 the start, m a mask of zeros and ones with share · |θ| ones, and ⊙ the product by element:

    θ = θ_0 + m ⊙ φ        only φ is trained: gradients are multiplied by m, and nothing decays

Fisher mask: Sung, Nair and Raffel, "Training Neural Networks with Fixed Sparse Masks", NeurIPS
2021, https://arxiv.org/abs/2111.09839. m marks the largest of the empirical Fisher information

    F_i = 1/N Σ_n (∂ log p(y_n | x_n) / ∂ θ_i)²

Here n counts batches, because a contrastive loss is one of a whole batch; without dropout.

Lottery ticket: Ansell, Ponti, Korhonen and Vulić, "Composable Sparse Fine-Tuning for Cross-Lingual
Transfer", ACL 2022, https://arxiv.org/abs/2110.07560. All weights are trained to θ_1, m marks the
largest |θ_1 − θ_0|, the weights go back to θ_0, and φ is trained.
"""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from foundation.atomic import replacing_in
from retrievers.training.engine.curve import LossMeter

if TYPE_CHECKING:
    from retrievers.training.finetune.retriever_trainer import RetrieverTrainer

MASK = "mask.safetensors"


def largest(scores: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Mask of the largest of all scores; at least one.

    Args:
        scores: of each weight, by name of its tensor.
        share: of all weights.

    Returns:
        bool tensors of the same shapes; of equal scores at the border any.
    """
    flat = torch.cat([score.flatten() for score in scores.values()])
    chosen = torch.zeros(len(flat), dtype=torch.bool)
    chosen[flat.topk(max(1, round(share * len(flat)))).indices] = True
    parts = torch.split(chosen, [score.numel() for score in scores.values()])
    return {
        name: part.view(score.shape)
        for (name, score), part in zip(scores.items(), parts, strict=True)
    }


def fisher_information(
    trainer: "RetrieverTrainer", network: Any, batches: int
) -> dict[str, Tensor]:
    """Mean of the squared gradients of the first batches, by name of the network's parameters."""
    trainer.meter = LossMeter()
    trainer.model.eval()
    named = dict(network.named_parameters())
    total = {name: torch.zeros(weight.shape) for name, weight in named.items()}
    count = 0
    for inputs in islice(trainer.get_train_dataloader(), batches):
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(trainer.model, trainer._prepare_inputs(inputs))
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for name, gradient in zip(named, gradients, strict=True):
            if gradient is not None:
                total[name] += gradient.detach().float().cpu().square()
        count += 1
    return {name: value / max(count, 1) for name, value in total.items()}


def moved(network: Any, folder: Path) -> dict[str, Tensor]:
    """Distance of each weight from that of a checkpoint of the same network."""
    trained = load_file(str(folder / "model.safetensors"))
    return {
        name: (trained[name] - weight.detach().cpu()).abs()
        for name, weight in network.named_parameters()
        if name in trained
    }


def write_mask(mask: Mapping[str, Tensor], folder: Path) -> None:
    """Keep a mask in a folder, whole or not at all."""
    with replacing_in(folder) as unfinished:
        save_file(dict(mask), str(unfinished / MASK))


def hold_to(network: Any, mask: Mapping[str, Tensor]) -> int:
    """Let gradients reach the masked weights alone; returns how many these are."""
    for name, weight in network.named_parameters():
        own = mask.get(name)
        if own is None or not own.any():
            weight.requires_grad_(False)
        else:
            weight.register_hook(lambda gradient, own=own: gradient * own.to(gradient.device))
    return sum(int(own.sum()) for own in mask.values())
