"""Losses and trainers of fine-tuning, built on sentence-transformers.

This module imports sentence-transformers, so it is imported only when training starts.

Let q be vectors of queries, d vectors of documents, and s = q . d / temperature. Vectors have unit
length if the model normalises them.

    contrastive   mean over i of  -log( exp s(q_i, d_i+) / sum over all documents of the batch,
                  or over the documents of query i only )
    kl            mean over i of  KL( softmax t_i / teacher temperature || softmax s_i )

t are the teacher's scores. s_i and t_i run over the documents of query i only.
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
from retrievers.training.engine.trainer import FiniteLossMixin, SharedArguments
from retrievers.training.finetune.finetune_preset import KL, Contrastive, Loss, Teacher

Similarity = Callable[[Tensor, Tensor], Tensor]


def build_loss(
    settings: Loss, model: Any, *, temperature: float = 1.0, devices: int = 1
) -> nn.Module:
    """Build a loss for sentence-transformers' trainer.

    ``forward(features, labels)`` takes the tokenised queries, relevant documents and further
    documents. Labels are the teacher's scores ``(batch, 1 + negatives)`` or None.

    Args:
        settings: loss and its settings.
        model: a SentenceTransformer.
        temperature: temperature from `loss_temperature`.
        devices: number of devices. If greater than 1, documents of all devices are negatives.
    """
    if isinstance(settings, Contrastive) and not settings.in_batch:
        return HardNegativesLoss(model, temperature)
    if isinstance(settings, Contrastive):
        return _contrastive(model, temperature, settings.chunk, devices > 1)
    return DistillationLoss(model, settings, temperature, devices > 1)


class HardNegativesLoss(nn.Module):
    """Cross-entropy of finding the relevant document among a query's own documents (ANCE's NLL)."""

    def __init__(self, model: Any, temperature: float) -> None:
        """Score documents with ``model`` and divide similarities by ``temperature``."""
        super().__init__()
        self.model = model
        self._similarity = _rowwise_similarity(temperature)

    def forward(self, features: Iterable[dict[str, Tensor]], labels: Tensor | None) -> Tensor:
        """Return the loss of one batch, a scalar.

        Args:
            features: tokenised queries, relevant documents and each further column of documents.
            labels: not used.
        """
        query, *documents = (self.model(each)["sentence_embedding"] for each in features)
        scores = torch.stack([self._similarity(query, each) for each in documents], dim=1)
        return functional.cross_entropy(scores, scores.new_zeros(len(scores)).long())


class DistillationLoss(nn.Module):
    """KL divergence from a teacher plus a weighted contrastive loss of the same vectors."""

    def __init__(self, model: Any, settings: KL, temperature: float, gather: bool) -> None:
        """Combine the two losses.

        Args:
            model: a SentenceTransformer.
            settings: weight of the contrastive loss and temperature of the teacher.
            temperature: temperature of the retriever's similarities.
            gather: whether documents of all devices are negatives of the contrastive loss.
        """
        super().__init__()
        self.model = model
        similarity = _rowwise_similarity(temperature)
        self._distil: Any = DistillKLDivLoss(model, similarity_fct=similarity)
        self._teacher_temperature = settings.teacher_temperature
        self._weight = settings.contrastive_weight
        self._contrast: Any = _contrastive(model, temperature, 0, gather)

    def forward(self, features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Return the loss of one batch, a scalar.

        Args:
            features: tokenised queries, relevant documents and each further column of documents.
            labels: teacher's scores, float32 ``(batch, 1 + negatives)``.
        """
        vectors = [self.model(each)["sentence_embedding"] for each in features]
        targets = labels / self._teacher_temperature
        loss: Tensor = self._distil.compute_loss_from_embeddings(vectors, targets)
        if self._weight:
            contrast = self._contrast.compute_loss_from_embeddings(vectors, None)
            loss = loss + self._weight * contrast
        return loss


def reranker_loss(model: Any, settings: Teacher) -> nn.Module:
    """Build a loss for sentence-transformers' trainer of cross-encoders.

    ``forward(inputs, labels)`` takes the queries and the documents of all pairs, lists one after
    the other. Labels ``(pairs,)`` are 1 for relevant documents and 0 for others.

    Args:
        model: a CrossEncoder with one score.
        settings: loss, and the length of a list.
    """
    if settings.loss == "listwise":
        return ListwiseLoss(model, 1 + settings.negatives)
    binary: nn.Module = BinaryCrossEntropyLoss(model)
    return binary


class ListwiseLoss(nn.Module):
    """Cross-entropy of finding the relevant document of a list, averaged over lists."""

    def __init__(self, model: Any, documents: int) -> None:
        """Score lists of ``documents`` documents with ``model``."""
        super().__init__()
        self.model = model
        self.documents = documents

    def forward(
        self, inputs: list[list[str]], labels: Tensor, prompt: str | None = None, task: Any = None
    ) -> Tensor:
        """Return the loss of one batch, a scalar.

        Args:
            inputs: texts of queries and texts of documents, one of each per pair.
            labels: 1 for relevant documents and 0 for others, float32 ``(pairs,)``.
            prompt: prompt of the cross-encoder.
            task: task of the cross-encoder.
        """
        pairs = list(zip(*inputs, strict=True))
        features = self.model.preprocess(pairs, prompt=prompt, task=task)
        device = self.model.device
        features = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in features.items()
        }
        scores = self.model(features)["scores"].view(-1, self.documents)
        targets = labels.to(scores).view_as(scores)
        return functional.cross_entropy(_in_float32(scores), targets)


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
    """Return the dot products of all pairs, ``(queries, documents)``, in float32 or float64.

    Vectors can come from a forward pass in bfloat16, whose 8 bits are enough for vectors but not
    for scores that are divided by a temperature: at 0.02 the last bit of a cosine is 0.2 of a
    logit.

    Args:
        queries: vectors of queries, ``(queries, dim)``.
        documents: vectors of documents, ``(documents, dim)``.
    """
    with torch.autocast(queries.device.type, enabled=False):
        return _in_float32(queries) @ _in_float32(documents).T


def _rowwise_similarity(temperature: float) -> Similarity:
    def similarity(queries: Tensor, documents: Tensor) -> Tensor:
        with torch.autocast(queries.device.type, enabled=False):
            queries, documents = _in_float32(queries), _in_float32(documents)
            return torch.einsum("nd,nd->n", queries, documents) / temperature

    return similarity


def _in_float32(vectors: Tensor) -> Tensor:
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


class RetrieverArguments(SharedArguments, SentenceTransformerTrainingArguments):  # type: ignore[misc]
    """Arguments of the trainer of a SentenceTransformer."""


class RerankerArguments(SharedArguments, CrossEncoderTrainingArguments):  # type: ignore[misc]
    """Arguments of the trainer of a CrossEncoder."""


class IndexedTrainer(FiniteLossMixin):
    """Trainer of sentence-transformers whose examples are indices into the order of the training.

    Attributes:
        kind: class of its arguments.
        may_have_unused: whether the model may have parameters that the loss does not depend on.
    """

    kind: ClassVar[type[SharedArguments]]
    may_have_unused: ClassVar[bool]

    @classmethod
    def build(
        cls,
        model: Any,
        loss: nn.Module,
        collate: Callable[[Any], dict[str, Any]],
        settings: FitSettings,
    ) -> Self:
        """Build a trainer that reads the examples in order.

        Args:
            model: model to train.
            loss: loss of a batch.
            collate: function that makes a batch from features ``{"index": i}``.
            settings: settings of the training.
        """
        step = settings.batch_size * settings.accumulate * world_size()
        indices = np.arange(settings.steps * step)
        return cls(
            model=model,  # type: ignore[call-arg]
            args=settings.arguments(
                cls.kind, batch_sampler=_keep_order, ddp_find_unused_parameters=cls.may_have_unused
            ),
            train_dataset=Dataset.from_dict({"index": indices}),
            loss=loss,
            data_collator=collate,
        )

    def add_model_card_callback(self, default_args_dict: Any) -> None:
        """Ignore ``default_args_dict``: ``card.toml`` replaces the library's model card."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], **others: Any) -> Any:
        """Return the loss and add it to the loss curve.

        Args:
            model: model to train.
            inputs: batch of tensors.
            others: further arguments of the trainer.
        """
        masks = [value for name, value in inputs.items() if name.endswith("attention_mask")]
        loss = super().compute_loss(model, inputs, **others)  # type: ignore[misc]
        real = torch.stack([mask.sum() for mask in masks]) if masks else torch.zeros(1).long()
        self.meter.add({"loss": loss}, real)
        return loss


class RetrieverTrainer(IndexedTrainer, SentenceTransformerTrainer):  # type: ignore[misc]
    """Trainer of a SentenceTransformer, whose pooler may be unused."""

    kind = RetrieverArguments
    may_have_unused = True


class RerankerTrainer(IndexedTrainer, CrossEncoderTrainer):  # type: ignore[misc]
    """Trainer of a CrossEncoder."""

    kind = RerankerArguments
    may_have_unused = False


def _keep_order(dataset: Dataset, *, batch_size: int, **others: Any) -> BatchSampler:
    """Return batches of consecutive examples, without shuffling."""
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last=False)
