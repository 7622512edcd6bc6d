"""The losses and the trainers of fine-tuning, on those of sentence-transformers.

Imports sentence-transformers, so it is imported when training starts.

With vectors q of queries, d of documents and s = q . d / temperature (vectors have unit length
where the model normalises):

    contrastive   mean over i of  -log( exp s(q_i, d_i+) / sum over all documents of the batch,
                  or over those of query i alone )
    kl            mean over i of  KL( softmax t_i / teacher temperature || softmax s_i )

where t are the teacher's scores, and s_i and t_i run over the documents of query i alone.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from sentence_transformers.sentence_transformer import (
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    DistillKLDivLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import BatchSampler, SequentialSampler

from retrievers.training.engine.arguments import FitSettings, world_size
from retrievers.training.engine.trainer import FiniteLossMixin, SharedMachineArguments
from retrievers.training.finetune.finetune_preset import KL, Contrastive, Loss, Teacher

Similarity = Callable[[Tensor, Tensor], Tensor]


def build_loss(
    settings: Loss, model: Any, *, temperature: float = 1.0, devices: int = 1
) -> nn.Module:
    """A loss of sentence-transformers' trainer.

    ``forward(features, labels)`` takes the tokenised queries, relevant documents and each further
    document of the queries; labels are the teacher's scores ``(batch, 1 + negatives)`` or None.

    Args:
        settings: which, and its numbers.
        model: a SentenceTransformer.
        temperature: from `loss_temperature`.
        devices: over more than one, documents of all are negatives.
    """
    if isinstance(settings, Contrastive) and not settings.in_batch:
        return HardNegativesLoss(model, temperature)
    if isinstance(settings, Contrastive):
        return _contrastive(model, temperature, settings.chunk, devices > 1)
    return DistillationLoss(model, settings, temperature, devices > 1)


class HardNegativesLoss(nn.Module):
    """Cross-entropy of finding the relevant document among a query's own (ANCE's NLL)."""

    def __init__(self, model: Any, temperature: float) -> None:
        super().__init__()
        self.model = model
        self._similarity = _rowwise_similarity(temperature)

    def forward(self, features: Iterable[dict[str, Tensor]], labels: Tensor | None) -> Tensor:
        """The loss of one batch."""
        query, *documents = (self.model(each)["sentence_embedding"] for each in features)
        scores = torch.stack([self._similarity(query, each) for each in documents], dim=1)
        return functional.cross_entropy(scores, scores.new_zeros(len(scores)).long())


class DistillationLoss(nn.Module):
    """KL with a share of the contrastive loss; vectors are computed once."""

    def __init__(self, model: Any, settings: KL, temperature: float, gather: bool) -> None:
        super().__init__()
        self.model = model
        similarity = _rowwise_similarity(temperature)
        self._distil: Any = DistillKLDivLoss(model, similarity_fct=similarity)
        self._teacher_temperature = settings.teacher_temperature
        self._weight = settings.contrastive_weight
        self._contrast: Any = _contrastive(model, temperature, 0, gather)

    def forward(self, features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """The loss of one batch."""
        vectors = [self.model(each)["sentence_embedding"] for each in features]
        targets = labels / self._teacher_temperature
        loss: Tensor = self._distil.compute_loss_from_embeddings(vectors, targets)
        if self._weight:
            contrast = self._contrast.compute_loss_from_embeddings(vectors, None)
            loss = loss + self._weight * contrast
        return loss


def reranker_loss(model: Any, settings: Teacher) -> nn.Module:
    """A loss of sentence-transformers' trainer of cross-encoders.

    ``forward(inputs, labels)`` takes the queries and the documents of all pairs, lists one after
    the other, and labels ``(pairs,)``, 1 for relevant ones.

    Args:
        settings: which, and how long a list is.
        model: a CrossEncoder with one score.
    """
    if settings.loss == "listwise":
        return ListwiseLoss(model, 1 + settings.negatives)
    binary: nn.Module = BinaryCrossEntropyLoss(model)
    return binary


class ListwiseLoss(nn.Module):
    """Cross-entropy of finding the relevant document of a list by its score, mean over lists."""

    def __init__(self, model: Any, documents: int) -> None:
        super().__init__()
        self.model = model
        self.documents = documents

    def forward(
        self, inputs: list[list[str]], labels: Tensor, prompt: str | None = None, task: Any = None
    ) -> Tensor:
        """The loss of one batch."""
        pairs = list(zip(*inputs, strict=True))
        features = self.model.preprocess(pairs, prompt=prompt, task=task)
        device = self.model.device
        features = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in features.items()
        }
        scores = self.model(features)["scores"].view(-1, self.documents)
        targets = labels.to(scores).view_as(scores)
        return functional.cross_entropy(_at_least_float32(scores), targets)


def _contrastive(model: Any, temperature: float, chunk: int, gather: bool) -> nn.Module:
    shared = {
        "scale": 1 / temperature,
        "similarity_fct": pairwise_dot_products,
        "gather_across_devices": gather,
    }
    loss: Any = MultipleNegativesRankingLoss
    if chunk:
        loss = partial(CachedMultipleNegativesRankingLoss, mini_batch_size=chunk)
    built: nn.Module = loss(model, **shared)
    return built


def pairwise_dot_products(queries: Tensor, documents: Tensor) -> Tensor:
    """Dot products ``(queries, documents)``, in float32 at least.

    Vectors may come from a forward pass in bfloat16. Its 8 bits are enough for them, but not for
    what is divided by a temperature: at 0.02 a cosine's last bit is 0.2 of a logit.
    """
    with torch.autocast(queries.device.type, enabled=False):
        return _at_least_float32(queries) @ _at_least_float32(documents).T


def _rowwise_similarity(temperature: float) -> Similarity:
    def similarity(queries: Tensor, documents: Tensor) -> Tensor:
        with torch.autocast(queries.device.type, enabled=False):
            queries, documents = _at_least_float32(queries), _at_least_float32(documents)
            return torch.einsum("nd,nd->n", queries, documents) / temperature

    return similarity


def _at_least_float32(vectors: Tensor) -> Tensor:
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


class RetrieverArguments(SharedMachineArguments, SentenceTransformerTrainingArguments):  # type: ignore[misc]
    """Arguments of the trainer of a SentenceTransformer."""


class RerankerArguments(SharedMachineArguments, CrossEncoderTrainingArguments):  # type: ignore[misc]
    """Arguments of the trainer of a CrossEncoder."""


class IndexedTrainer(FiniteLossMixin):
    """A trainer of sentence-transformers that reads place after place.

    Attributes:
        kind: of its arguments.
        may_have_unused: whether the model may have parameters that no loss depends on.
    """

    kind: ClassVar[type[SharedMachineArguments]]
    may_have_unused: ClassVar[bool]

    @classmethod
    def build(
        cls,
        model: Any,
        loss: nn.Module,
        collate: Callable[[Any], dict[str, Any]],
        settings: FitSettings,
    ) -> Self:
        """A trainer whose collator gets the places of each batch, in order."""
        step = settings.batch_size * settings.accumulate * world_size()
        indices = np.arange(settings.steps * step)
        return cls(
            model=model,  # type: ignore[call-arg]
            args=settings.arguments(
                cls.kind,
                batch_sampler=_keep_order,
                ddp_find_unused_parameters=cls.may_have_unused,
            ),
            train_dataset=Dataset.from_dict({"index": indices}),
            loss=loss,
            data_collator=collate,
        )

    def add_model_card_callback(self, default_args_dict: Any) -> None:
        """No model card in prose: `card.toml` says what there is to say."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], **others: Any) -> Any:
        """The loss, which goes to the loss curve too."""
        masks = [value for name, value in inputs.items() if name.endswith("attention_mask")]
        loss = super().compute_loss(model, inputs, **others)  # type: ignore[misc]
        real = torch.stack([mask.sum() for mask in masks]) if masks else torch.zeros(1).long()
        self.meter.add({"loss": loss}, real)
        return loss


class RetrieverTrainer(IndexedTrainer, SentenceTransformerTrainer):  # type: ignore[misc]
    """Trains a SentenceTransformer, whose pooler may be unused."""

    kind = RetrieverArguments
    may_have_unused = True


class RerankerTrainer(IndexedTrainer, CrossEncoderTrainer):  # type: ignore[misc]
    """Trains a CrossEncoder."""

    kind = RerankerArguments
    may_have_unused = False


def _keep_order(dataset: Dataset, *, batch_size: int, **others: Any) -> BatchSampler:
    """The places as they are: their order is the order of training."""
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last=False)
