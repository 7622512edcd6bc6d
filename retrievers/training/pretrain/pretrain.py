"""Pre-train an encoder: from a preset and texts to a folder that can be evaluated at once.

A training that was killed goes on from its last whole checkpoint when the same call is made again,
and reads what it would have read; one that is finished is not repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor, nn
from torch.utils.data import SequentialSampler
from transformers import PreTrainedModel, Trainer, TrainerCallback

from foundation.errors import BenchError
from foundation.records import SUFFIX
from retrievers.models.card import Card
from retrievers.training.engine.arguments import (
    FitSettings,
    TrainingContext,
    check_packages,
    is_first_process,
    world_size,
)
from retrievers.training.engine.run_folder import RunFolder
from retrievers.training.engine.save import save_checkpoint, save_heads
from retrievers.training.engine.trainer import (
    FiniteLossMixin,
    FitResult,
    SharedMachineArguments,
    explain_write_errors,
)
from retrievers.training.objectives.objective import Collator
from retrievers.training.pretrain.preset import Pretraining, Start, to_table
from retrievers.training.pretrain.start import StartModel, open_start
from retrievers.training.pretrain.texts import (
    Stream,
    count_steps,
    count_tokens,
    hash_sample,
    texts_per_step,
    training_texts,
)

LESS_MEMORY = (
    "use --set gradient_checkpointing=true; or a smaller batch_size with as much more accumulate; "
    "or, where texts of a batch are contrasted, a smaller objective.sub_batch"
)


class PretrainTraining(msgspec.Struct, frozen=True):
    """Identity of a pre-training: all that decides the result.

    Attributes:
        preset: all of it, as a table.
        steps: that it takes.
        texts: how many there are, blocks of long documents counted each.
        sample: sha256 (hex) of about 1,000 documents, evenly spaced.
        trained_on: collections that the texts are from, and those that the start had seen.
        processes: that share each step.
    """

    preset: dict[str, Any]
    steps: int
    texts: int
    sample: str
    trained_on: tuple[str, ...]
    processes: int


class PretrainResult(msgspec.Struct, frozen=True):
    """A finished pre-training.

    Attributes:
        folder: of the checkpoint, for ``--model``.
        steps: of the optimizer.
        texts_read: with repetitions.
        seconds: of the last call, resumed steps not counted.
        resumed_at: step that the last call went on from; 0 if it began.
    """

    folder: str
    objective: str
    steps: int
    texts_read: int
    seconds: float
    resumed_at: int


def pretrain(
    preset: Pretraining,
    documents: Sequence[str],
    context: TrainingContext,
    *,
    trained_on: tuple[str, ...] = (),
) -> PretrainResult:
    """Pre-train an encoder on documents.

    The folder of the context then holds a checkpoint (see `engine.save`), the loss curve and what
    was trained. Started by ``accelerate launch``, all processes share each step.

    Args:
        documents: at least one; read when they are needed.
        trained_on: collections that they are from, for the card.

    Raises:
        BenchError: no documents, a package that is not installed, a start that cannot be loaded, a
            folder with another training or another process, not enough memory, or a loss that is
            not a number.
    """
    if not len(documents):
        raise BenchError("there are no texts to train on")
    check_packages("accelerate")
    started = open_start(preset.start, preset.seed, documents)
    check_length(preset, started)
    texts = training_texts(preset, documents, started.tokenizer, context.report)
    collate = preset.objective.collator(started.tokenizer, preset.max_tokens)
    training = PretrainTraining(
        preset=to_table(preset),
        steps=count_steps(preset, texts, collate),
        texts=len(texts),
        sample=hash_sample(documents),
        trained_on=tuple(dict.fromkeys([*started.trained_on, *trained_on])),
        processes=world_size(),
    )
    folder = RunFolder(context.out, training)
    run = _TrainingRun(preset, started, collate, training, context)
    module = run.module()  # before the folder is claimed: its settings may not fit the encoder
    if finished := folder.result(PretrainResult):
        return finished
    with folder.claim(context.device):
        # A model whose record is missing or damaged is not trained again.
        fitted = FitResult(0.0, training.steps) if folder.has_model else run.fit(module, texts)
        trained = PretrainResult(
            folder=str(context.out),
            objective=preset.objective.name,
            steps=training.steps,
            texts_read=training.steps * texts_per_step(preset),
            seconds=fitted.seconds,
            resumed_at=fitted.resumed_at,
        )
        folder.finish(trained)
    return trained


class StepCallback(TrainerCallback):  # type: ignore[misc]
    """Lets a module change the steps of the optimizer, see `Objective.build_module`."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def on_pre_optimizer_step(self, *_: Any, **others: Any) -> None:
        """Before a step, after gradients were clipped."""
        self.module.before_step()

    def on_optimizer_step(self, *_: Any, **others: Any) -> None:
        """After it."""
        self.module.after_step()


class StreamTrainer(FiniteLossMixin, Trainer):  # type: ignore[misc]
    """Trains an objective's module on a stream."""

    def __init__(
        self, module: nn.Module, settings: FitSettings, stream: Stream, collate: Collator
    ) -> None:
        arguments = settings.arguments(
            SharedMachineArguments, remove_unused_columns=False, ddp_find_unused_parameters=False
        )
        super().__init__(model=module, args=arguments, data_collator=collate, train_dataset=stream)
        self.model_accepts_loss_kwargs = False  # else losses are not divided by `accumulate`
        if hasattr(module, "before_step"):
            self.add_callback(StepCallback(module))

    def _get_train_sampler(self, *_: Any) -> Any:
        """The stream in its own order; with several processes each gets its batches."""
        return SequentialSampler(self.train_dataset)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The objective's loss; its parts go to the loss curve."""
        losses = model(**inputs)
        self.meter.add(losses, count_tokens(inputs))
        return (losses["loss"], losses) if return_outputs else losses["loss"]


@dataclass(frozen=True)
class _TrainingRun:
    """One training, and where it goes."""

    preset: Pretraining
    started: StartModel
    collate: Collator
    training: PretrainTraining
    context: TrainingContext

    def module(self) -> nn.Module:
        """The objective's module with the heads of the start, where it has any."""
        module = self.started.build_module(self.preset.objective, self.preset.seed)
        if self.preset.gradient_checkpointing:
            for part in module.modules():
                if isinstance(part, PreTrainedModel) and _has_trained_weights(part):
                    part.gradient_checkpointing_enable({"use_reentrant": False})
        return module

    def fit(self, module: nn.Module, texts: Sequence[str]) -> FitResult:
        """Train to the end, from a checkpoint if there is one, and write the model."""
        preset, steps = self.preset, self.training.steps
        settings = FitSettings(
            context=self.context,
            stage=self.context.out.name,
            optimizer=preset.optimizer,
            steps=steps,
            batch_size=preset.batch_size,
            accumulate=preset.accumulate,
            seed=preset.seed,
            precision=preset.precision,
            save_model=lambda folder, step: self.save(module, folder, step),
            memory_hint=LESS_MEMORY,
        )
        stream = Stream(texts, steps * texts_per_step(preset), preset.seed)
        trainer = StreamTrainer(module, settings, stream, self.collate)
        fitted = trainer.fit(settings)
        if is_first_process():
            with explain_write_errors(self.context.out):
                self.save(trainer.model, self.context.out, steps)
        return fitted

    def save(self, module: nn.Module, folder: Path, steps: int) -> None:
        """Write the encoder as a model, its heads apart."""
        encoder = self.started.encoder.encoder
        save_heads(module, encoder, folder, self.preset.objective)
        card = pretrained_card(self.preset, steps, self.training.trained_on)
        if save := getattr(module, "save_encoder", None):
            save(folder, card)
        else:
            save_checkpoint(encoder, self.started.tokenizer, folder, card)


def _has_trained_weights(part: nn.Module) -> bool:
    return any(weight.requires_grad for weight in part.parameters())


def check_length(preset: Pretraining, started: StartModel) -> None:
    """Refuse texts that are longer than the model's positions.

    Raises:
        BenchError: they are.
    """
    if preset.max_tokens > started.max_tokens:
        raise BenchError(
            f"max_tokens is {preset.max_tokens}, and the model has positions for "
            f"{started.max_tokens}",
            f"use max_tokens = {started.max_tokens}",
        )


def start_name(start: Start) -> str:
    """Return the name of the model that a training starts from, without its path."""
    return Path(start.model).name.removesuffix(SUFFIX) if start.model else "scratch"


def pretrained_card(preset: Pretraining, steps: int, trained_on: tuple[str, ...]) -> Card:
    """The card of the finished checkpoint: ``[CLS]`` vectors, compared as they were trained."""
    cosine = preset.objective.similarity == "cos"
    return Card(
        name="",
        title=f"{preset.objective.name} from {start_name(preset.start)}, {steps:,} steps",
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
