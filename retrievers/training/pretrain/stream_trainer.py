"""The Hugging Face Trainer, told to train an objective's module on a stream of texts."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler
from transformers import Trainer, TrainerCallback

from retrievers.training.engine.fit import FitSettings, PlacedArguments
from retrievers.training.engine.trainer import FiniteLossMixin
from retrievers.training.objectives.objective import Collator
from retrievers.training.pretrain.length import real_tokens
from retrievers.training.pretrain.stream import Stream


@runtime_checkable
class ChangesSteps(Protocol):
    """A module that has a say in how far the optimizer goes."""

    def before_step(self) -> None:
        """Called before each step of the optimizer, after gradients were clipped."""
        ...

    def after_step(self) -> None:
        """Called after it."""
        ...


class StepCallback(TrainerCallback):  # type: ignore[misc]
    """Lets a module change the steps of the optimizer."""

    def __init__(self, module: ChangesSteps) -> None:
        self.module = module

    def on_pre_optimizer_step(self, *_: Any, **others: Any) -> None:
        """Before a step."""
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
            PlacedArguments, remove_unused_columns=False, ddp_find_unused_parameters=False
        )
        super().__init__(model=module, args=arguments, data_collator=collate, train_dataset=stream)
        self.model_accepts_loss_kwargs = False  # else losses are not divided by `accumulate`
        if isinstance(module, ChangesSteps):
            self.add_callback(StepCallback(module))

    def get_train_dataloader(self) -> Any:
        """The stream in its own order; with several processes each gets its batches."""
        loader = DataLoader(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            sampler=SequentialSampler(self.train_dataset),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The objective's loss; its parts go to the loss curve."""
        losses = model(**inputs)
        self.meter.add(losses, real_tokens(inputs))
        return (losses["loss"], losses) if return_outputs else losses["loss"]
