"""Pre-train an encoder: from a preset and texts to a folder that can be evaluated.

The same call continues a training that was killed from its last complete checkpoint, and reads the
texts that it would have read. A finished training is not repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor, nn
from torch.utils.data import SequentialSampler
from transformers import PreTrainedModel, Trainer

from foundation.errors import BenchError
from foundation.records import SUFFIX
from retrievers.models.card import Card, replace_fields
from retrievers.models.resolve import Model
from retrievers.training.engine.context import TrainingContext, check_packages, is_first, world_size
from retrievers.training.engine.identity import Hashes, Training
from retrievers.training.engine.run_folder import RunFolder, save_checkpoint
from retrievers.training.engine.trainer import (
    FiniteLossMixin,
    FitResult,
    FitSettings,
    SharedArguments,
    explain_errors,
)
from retrievers.training.objectives.objective import Collator, check_batch, count_tokens, hash_code
from retrievers.training.preset import Pretraining
from retrievers.training.pretrain.start import StartModel, hash_initial, open_start, save_heads
from retrievers.training.pretrain.texts import (
    Stream,
    count_steps,
    hash_texts,
    texts_per_step,
    training_texts,
)

LESS_MEMORY = (
    "Use --set gradient_checkpointing=true, or a smaller batch_size with a larger accumulate, or, "
    "with a contrastive objective, a smaller objective.sub_batch."
)


class PretrainResult(msgspec.Struct, frozen=True):
    """Finished pre-training.

    Attributes:
        folder: folder of the checkpoint, for ``--model``.
        objective: name of the objective.
        steps: optimizer steps.
        texts_read: number of texts read, including repetitions.
        seconds: wall-clock seconds of the last call, without resumed steps.
        resumed_at: step that the last call resumed from, 0 if it started from scratch.
        found: True if the training had finished before this call, which trained nothing.
    """

    folder: str
    objective: str
    steps: int
    texts_read: int
    seconds: float
    resumed_at: int
    found: bool = False


def pretrain(
    preset: Pretraining,
    documents: Sequence[str],
    context: TrainingContext,
    *,
    trained_on: tuple[str, ...] = (),
    like: Model | None = None,
    method: Hashes | None = None,
) -> PretrainResult:
    """Pre-train an encoder on documents, at least one, which are read when they are needed.

    Afterwards the folder of the context holds a checkpoint (see `engine.run_folder`), its heads,
    the loss curve and the record of the training. The card names the collections ``trained_on``,
    and the result is used like ``like``. ``method`` has the sources of a method of continual
    learning.
    """
    check_packages("accelerate")
    start, data = hash_initial(preset.start), {"texts": hash_texts(documents)}
    code = {"objective": hash_code(preset.objective)}
    started = open_start(preset.start, preset.seed, documents)
    check_length(preset, started)
    texts = training_texts(preset, documents, started.tokenizer, context.report)
    collate = preset.objective.collator(started.tokenizer, preset.max_tokens)
    training = Training(
        start=start | ({"recipe": like.recipe.fingerprint} if like else {}),
        data=data,
        code=code | ({"method": method} if method else {}),
        kind="pretrain",
        preset=msgspec.to_builtins(preset),
        steps=count_steps(preset, texts, collate),
        texts=len(texts),
        trained_on=tuple(dict.fromkeys([*started.trained_on, *trained_on])),
        processes=world_size(),
    )
    module = started.build_module(preset.objective, preset.seed)  # raises if settings do not fit
    batch = collate([Stream(texts, 1, preset.seed)[0]])
    check_batch(batch, preset.objective.name, module.forward)
    folder = RunFolder(context, training)

    def train() -> PretrainResult:
        stream = Stream(texts, training.steps * texts_per_step(preset), preset.seed)
        fitted = FitResult(0.0, training.steps)
        if not folder.has_model:  # else it was killed before it recorded its end
            writer = ModelWriter(preset, started, module, training.trained_on, like)
            fitted = train_module(writer, stream, collate, training.steps, context)
        return PretrainResult(
            folder=str(context.out),
            objective=preset.objective.name,
            steps=training.steps,
            texts_read=len(stream),
            seconds=fitted.seconds,
            resumed_at=fitted.resumed_at,
        )

    return folder.train_once(PretrainResult, train)


@dataclass(frozen=True)
class ModelWriter:
    """The objective's module that is trained from a start, and how its model is written."""

    preset: Pretraining
    started: StartModel
    module: nn.Module
    trained_on: tuple[str, ...]
    like: Model | None

    def __call__(self, out: Path, step: int) -> None:
        """Write the model after ``step``: an encoder, and its heads in a separate file."""
        encoder = self.started.encoder.encoder
        save_heads(self.module, encoder, out, self.preset.objective)
        like = self.like.card if self.like else None
        card = pretrained_card(self.preset, step, self.trained_on, like)
        if save_encoder := getattr(self.module, "save_encoder", None):
            save_encoder(out, card)
        else:
            save_checkpoint(encoder, self.started.tokenizer, out, card)


def train_module(
    writer: ModelWriter, stream: Stream, collate: Collator, steps: int, context: TrainingContext
) -> FitResult:
    """Train the module of ``writer`` on ``stream``, and write its model."""
    preset = writer.preset
    settings = FitSettings(
        context=context,
        stage=context.out.name,
        optimizer=preset.optimizer,
        steps=steps,
        batch_size=preset.batch_size,
        accumulate=preset.accumulate,
        seed=preset.seed,
        precision=preset.precision,
        save_model=writer,
        memory_hint=LESS_MEMORY,
    )
    if preset.gradient_checkpointing:
        checkpoint_gradients(writer.module)
    fitted = StreamTrainer(writer.module, settings, stream, collate).fit(settings)
    if is_first():
        with explain_errors(context.out):
            writer(context.out, steps)
    return fitted


def checkpoint_gradients(module: nn.Module) -> None:
    """Use gradient checkpointing in the networks of ``module`` that are trained."""
    for part in module.modules():
        trained = (weight.requires_grad for weight in part.parameters())
        if isinstance(part, PreTrainedModel) and any(trained):
            part.gradient_checkpointing_enable({"use_reentrant": False})


class StreamTrainer(FiniteLossMixin, Trainer):  # type: ignore[misc]
    """Trainer of an objective's module on a stream of texts."""

    def __init__(
        self, module: nn.Module, settings: FitSettings, stream: Stream, collate: Collator
    ) -> None:
        arguments = settings.arguments(
            SharedArguments, remove_unused_columns=False, ddp_find_unused_parameters=False
        )
        super().__init__(model=module, args=arguments, data_collator=collate, train_dataset=stream)
        self.model_accepts_loss_kwargs = False  # otherwise losses are not divided by `accumulate`

    def _get_train_sampler(self, *_: Any) -> Any:
        """Return a sampler that keeps the order of the stream. Processes share its batches."""
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], **others: Any) -> Tensor:
        """Return the objective's loss, and add its components to the loss curve."""
        losses = model(**inputs)
        if not isinstance(losses, dict) or "loss" not in losses:
            raise BenchError(
                "forward of the objective's module returns no loss",
                'Return a dictionary of scalars, such as {"loss": loss}.',
            )
        self.meter.add(losses, count_tokens(inputs))
        loss: Tensor = losses["loss"]
        return loss


def check_length(preset: Pretraining, started: StartModel) -> None:
    """Raise if the texts of ``preset`` are longer than the positions of the model ``started``."""
    if preset.max_tokens > started.max_tokens:
        raise BenchError(
            f"max_tokens {preset.max_tokens} exceeds the model's positions, {started.max_tokens}",
            f"Use --set max_tokens={started.max_tokens}.",
        )


def pretrained_card(
    preset: Pretraining, steps: int, trained_on: tuple[str, ...], like: Card | None = None
) -> Card:
    """Return the card of the finished checkpoint, which is used like ``like`` if it is given."""
    cosine = preset.objective.similarity == "cos"
    start = Path(preset.start.model).name.removesuffix(SUFFIX) or "scratch"
    card = Card(
        name="",
        title=f"{preset.objective.name} from {start}, {steps:,} steps",
        checkpoint=".",
        pooling="cls",
        normalize=cosine,
        similarity="cos" if cosine else "dot",
        max_query_tokens=preset.max_tokens,
        max_document_tokens=preset.max_tokens,
        trained_on=trained_on,
        warning="pre-trained only: not trained to retrieve, so zero-shot scores say little; "
        "fine-tune it first",
    )
    return replace_fields(card, like.usage | {"prompts": like.prompts}) if like else card
