"""One model of the models that were each trained on one domain, from the same start.

With θ_0 the start, θ_i the model of domain i and k domains so far, the merged model is

    θ = θ_0 + λ Σ_{i ≤ k} (θ_i − θ_0)

λ = 1/k is the uniform mean of branch-train-merge (Li et al., 2022,
https://arxiv.org/abs/2208.03306), a given λ the scaling coefficient of task arithmetic (Ilharco et
al., ICLR 2023, https://arxiv.org/abs/2212.04089); see `task_arithmetic`. The heads of the objective
are added up as the encoder is.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from foundation.atomic import replacing
from retrievers.training.continual.task_arithmetic import add_changes
from retrievers.training.engine.context import TrainingContext
from retrievers.training.engine.curve import CURVE_FILE
from retrievers.training.engine.run_folder import RunFolder
from retrievers.training.engine.save import save_checkpoint, save_heads
from retrievers.training.pretrain.preset import Pretraining, Start, to_table
from retrievers.training.pretrain.pretrain import Trained, card_of
from retrievers.training.pretrain.start import open_start


class Merging(msgspec.Struct, frozen=True):
    """Identity of a merged model; the folders of the trainings have records of their own.

    Attributes:
        preset: of each training, as a table.
        domains: in the order that they were learnt.
        scale: λ.
    """

    preset: dict[str, Any]
    domains: tuple[str, ...]
    scale: float


def merge(
    preset: Pretraining,
    models: Mapping[str, Path],
    scale: float | None,
    last: Trained,
    context: TrainingContext,
) -> Trained:
    """Write the merged model and its heads, beside a copy of the last training's loss curve.

    Args:
        preset: of each training; it starts from a model.
        models: folder of the finished training on each domain, in order.
        scale: λ; None for 1/k.
        last: the last of these trainings.
        context: whose folder gets the checkpoint; nothing is done where it is there.

    Returns:
        The last training, with the folder of the merged model.

    Raises:
        BenchError: a model cannot be loaded, or the folder holds another one.
    """
    scale = 1 / len(models) if scale is None else scale
    folder = RunFolder(context.out, Merging(to_table(preset), tuple(models), scale))
    merged = msgspec.structs.replace(last, folder=str(context.out))
    if folder.result(Trained):
        return merged
    with folder.claimed(context.device):
        if not folder.has_model:
            *_, own = models.values()
            with replacing(context.out / CURVE_FILE) as file:
                file.write((own / CURVE_FILE).read_bytes())
            _write(preset, models, scale, last.steps, context.out)
        folder.finish(merged)
    return merged


def _write(
    preset: Pretraining, models: Mapping[str, Path], scale: float, steps: int, out: Path
) -> None:
    starts = [preset.start, *(Start(model=str(path)) for path in models.values())]
    start, *trained = (open_start(each, preset.seed) for each in starts)
    modules = [each.build_module(preset.objective, preset.seed) for each in (start, *trained)]
    add_changes(modules[0], modules[1:], [scale] * len(models))
    encoder = trained[0].encoder.encoder
    save_heads(modules[1], encoder, out, preset.objective)
    seen = tuple(dict.fromkeys(name for each in (start, *trained) for name in each.trained_on))
    save_checkpoint(encoder, trained[0].tokenizer, out, card_of(preset, steps, seen))
