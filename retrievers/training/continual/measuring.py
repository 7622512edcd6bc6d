"""Measurements of a domain, after its training, that methods of continual pre-training need."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from retrievers.encoders.device import pick_device
from retrievers.training.continual.das import read_importance
from retrievers.training.continual.ewc import Held, fisher, hold
from retrievers.training.continual.importance import (
    Batch,
    accumulated,
    domain_importance,
    general_importance,
)
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.mlm import MLM
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.start import open_start
from retrievers.training.pretrain.texts import Stream, texts_of

Advance = Callable[[int, int], object]


@dataclass(frozen=True)
class Measurement:
    """Texts of a domain and the model that reads them.

    Attributes:
        preset: of the training that comes next; its start is the model that is measured.
        objective: of the preset.
        documents: of the domain.
        count: of their texts, as training reads them: so many are read, or all there are.
        device: ``auto`` or ``cpu``.
        advance: called with the number of texts that were read so far, and that of all.
    """

    preset: Pretraining
    objective: MLM
    documents: Sequence[str]
    count: int
    device: str
    advance: Advance

    def held(self, before: Path | None) -> dict[str, Tensor]:
        """For EWC: Fisher information, added to that of earlier domains."""
        encoder, tokenizer = self._open()
        # Without dropout, so that the gradients of a text are its own.
        information = fisher(encoder.eval(), self._batches(tokenizer, 1))
        earlier = Held.read(encoder, str(before)) if before else None
        return hold(encoder, information, earlier).tensors()

    def importance(self, before: Path | None) -> dict[str, Tensor]:
        """For DAS: to what is known in general, or to a domain and all that was ``before``."""
        encoder, tokenizer = self._open()
        batches = self._batches(tokenizer, self.preset.batch_size)
        if before is None:
            return general_importance(encoder.train(), batches).tensors()
        known = read_importance(encoder, str(before))
        return accumulated(known, domain_importance(encoder.eval(), batches)).tensors()

    def _open(self) -> tuple[MaskedLM, Any]:
        """The encoder with its head, and the tokenizer."""
        started = open_start(self.preset.start, self.preset.seed, self.documents)
        started.build_module(self.objective, self.preset.seed)
        return started.encoder.to(pick_device(self.device)), started.tokenizer

    def _batches(self, tokenizer: Any, size: int) -> Iterator[Batch]:
        """Masked batches of texts, as training reads them."""
        collate = self.objective.collator(tokenizer, self.preset.max_tokens)
        texts = texts_of(self.preset, self.documents, tokenizer)
        count = min(self.count, len(texts))
        stream = Stream(texts, count, self.preset.seed)
        device = pick_device(self.device)
        for first in range(0, count, size):
            examples = [stream[place] for place in range(first, min(first + size, count))]
            yield {name: value.to(device) for name, value in collate(examples).items()}
            self.advance(first + len(examples), count)
