"""Losses and trainers of fine-tuning, built on sentence-transformers.

This module imports sentence-transformers, so it is imported only when training starts.

Let q be vectors of queries, d vectors of documents, and s = q . d / temperature. Vectors have unit
length if the model normalises them.

    contrastive   mean over i of  -log( exp s(q_i, d_i+) / sum over all documents of the batch,
                  or over the documents of query i only )
    kl            mean over i of  KL( softmax t_i / teacher temperature || softmax s_i )
    margin-mse    mean over i and negatives of  ( (s_i+ - s_i-) - (t_i+ - t_i-) )^2

t are the teacher's scores. s_i and t_i run over the documents of query i only. With ``matryoshka``,
the sum of a loss over whole vectors and their leading dimensions, which are scaled to unit length.
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
    MarginMSELoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import BatchSampler, SequentialSampler

from retrievers.training.engine.context import world_size
from retrievers.training.engine.trainer import FiniteLossMixin, FitSettings, SharedArguments
from retrievers.training.objectives.masked_lm import dot_products, in_float32
from retrievers.training.objectives.objective import count_tokens
from retrievers.training.preset import KL, Loss, MarginMSE, Teacher

Similarity = Callable[[Tensor, Tensor], Tensor]


def build_loss(
    settings: Loss, model: Any, *, temperature: float = 1.0, devices: int = 1
) -> nn.Module:
    """Build a loss for sentence-transformers' trainer.

    ``forward(features, labels)`` takes the tokenised queries, relevant documents and further
    documents. Labels are the teacher's scores ``(batch, 1 + negatives)`` or None. With several
    ``devices``, documents of all of them are negatives.
    """
    loss: Any
    if isinstance(settings, KL):
        loss = DistillationLoss(model, settings, temperature, devices > 1)
    elif isinstance(settings, MarginMSE):
        loss = MarginMSELoss(model, similarity_fct=_rowwise_similarity(temperature))
    elif settings.in_batch:
        loss = _contrastive(model, temperature, settings.chunk, devices > 1)
    else:
        loss = HardNegativesLoss(model, temperature)
    if settings.matryoshka:
        dimensions = settings.dimensions(model.get_embedding_dimension())
        loss = MatryoshkaLoss(model, loss, dimensions)
    module: nn.Module = loss
    return module


class HardNegativesLoss(nn.Module):
    """Cross-entropy of finding the relevant document among a query's own documents (ANCE's NLL)."""

    def __init__(self, model: Any, temperature: float) -> None:
        super().__init__()
        self.model = model
        self._similarity = _rowwise_similarity(temperature)

    def forward(self, features: Iterable[dict[str, Tensor]], labels: Tensor | None) -> Tensor:
        """Return the loss of one batch, a scalar, see `build_loss`."""
        query, *documents = (self.model(each)["sentence_embedding"] for each in features)
        scores = torch.stack([self._similarity(query, each) for each in documents], dim=1)
        return functional.cross_entropy(scores, scores.new_zeros(len(scores)).long())


class DistillationLoss(nn.Module):
    """KL divergence from a teacher plus a weighted contrastive loss of the same vectors."""

    def __init__(self, model: Any, settings: KL, temperature: float, gather: bool) -> None:
        super().__init__()
        self.model = model
        similarity = _rowwise_similarity(temperature)
        self._distil: Any = DistillKLDivLoss(model, similarity_fct=similarity)
        self._teacher_temperature = settings.teacher_temperature
        self._weight = settings.contrastive_weight
        self._contrast = _contrastive(model, temperature, 0, gather)

    def forward(self, features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Return the loss of one batch, a scalar, see `build_loss`."""
        vectors = [self.model(each)["sentence_embedding"] for each in features]
        targets = labels / self._teacher_temperature
        loss: Tensor = self._distil.compute_loss_from_embeddings(vectors, targets)
        if self._weight:
            contrast = self._contrast.compute_loss_from_embeddings(vectors, None)
            loss = loss + self._weight * contrast
        return loss


def reranker_loss(model: Any, settings: Teacher) -> nn.Module:
    """Build a loss for sentence-transformers' trainer of cross-encoders with one score.

    Labels, float32 ``(pairs,)``, are 1 for relevant documents and 0 for others. Lists follow each
    other.
    """
    if settings.loss == "listwise":
        return ListwiseLoss(model, 1 + settings.negatives)
    binary: nn.Module = BinaryCrossEntropyLoss(model)
    return binary


class ListwiseLoss(nn.Module):
    """Cross-entropy of finding the relevant document of a list, averaged over lists."""

    def __init__(self, model: Any, documents: int) -> None:
        super().__init__()
        self.model = model
        self.documents = documents

    def forward(
        self, inputs: list[list[str]], labels: Tensor, prompt: str | None = None, task: Any = None
    ) -> Tensor:
        """Return the loss of one batch, a scalar, see `reranker_loss`."""
        pairs = list(zip(*inputs, strict=True))
        features = self.model.preprocess(pairs, prompt=prompt, task=task)
        features = batch_to_device(features, self.model.device)
        scores = self.model(features)["scores"].view(-1, self.documents)
        targets = labels.to(scores).view_as(scores)
        return functional.cross_entropy(in_float32(scores), targets)


def _contrastive(model: Any, temperature: float, chunk: int, gather: bool) -> Any:
    loss: Any = MultipleNegativesRankingLoss
    if chunk:
        loss = partial(CachedMultipleNegativesRankingLoss, mini_batch_size=chunk)
    return loss(
        model, scale=1 / temperature, similarity_fct=dot_products, gather_across_devices=gather
    )


def _rowwise_similarity(temperature: float) -> Similarity:
    def similarity(queries: Tensor, documents: Tensor) -> Tensor:
        with torch.autocast(queries.device.type, enabled=False):
            queries, documents = in_float32(queries), in_float32(documents)
            return torch.einsum("nd,nd->n", queries, documents) / temperature

    return similarity


class RetrieverArguments(SharedArguments, SentenceTransformerTrainingArguments):  # type: ignore[misc]
    """Arguments of the trainer of a SentenceTransformer."""


class RerankerArguments(SharedArguments, CrossEncoderTrainingArguments):  # type: ignore[misc]
    """Arguments of the trainer of a CrossEncoder."""


class IndexedTrainer(FiniteLossMixin):
    """Trainer of sentence-transformers whose examples are indices into the order of the training.

    ``may_have_unused`` tells whether the loss may not depend on some parameters.
    """

    arguments: ClassVar[type[SharedArguments]]
    may_have_unused: ClassVar[bool]

    @classmethod
    def build(
        cls,
        model: Any,
        loss: nn.Module,
        collate: Callable[[Any], dict[str, Any]],
        settings: FitSettings,
    ) -> Self:
        """Build a trainer that reads the examples in order, ``{"index": i}`` for ``collate``."""
        step = settings.batch_size * settings.accumulate * world_size()
        arguments = settings.arguments(
            cls.arguments, batch_sampler=_keep_order, ddp_find_unused_parameters=cls.may_have_unused
        )
        return cls(
            model=model,  # type: ignore[call-arg]
            args=arguments,
            train_dataset=Dataset.from_dict({"index": np.arange(settings.steps * step)}),
            loss=loss,
            data_collator=collate,
        )

    def add_model_card_callback(self, default_args_dict: Any) -> None:
        """Ignore ``default_args_dict``: ``card.toml`` replaces the library's model card."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], **others: Any) -> Any:
        """Return the loss and add it to the loss curve."""
        tokens = count_tokens(inputs)
        loss = super().compute_loss(model, inputs, **others)  # type: ignore[misc]
        self.meter.add({"loss": loss}, tokens)
        return loss


class RetrieverTrainer(IndexedTrainer, SentenceTransformerTrainer):  # type: ignore[misc]
    """Trainer of a SentenceTransformer, whose pooler may be unused."""

    arguments = RetrieverArguments
    may_have_unused = True


class RerankerTrainer(IndexedTrainer, CrossEncoderTrainer):  # type: ignore[misc]
    """Trainer of a CrossEncoder."""

    arguments = RerankerArguments
    may_have_unused = False


def _keep_order(dataset: Dataset, *, batch_size: int, **others: Any) -> BatchSampler:
    """Return batches of consecutive examples, without shuffling."""
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last=False)
