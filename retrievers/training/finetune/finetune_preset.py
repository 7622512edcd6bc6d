"""Presets of fine-tuning, strict TOML files: loss, negatives, batches, length of training.

Parts of an encoder that are trained alone: ``biases`` is BitFit, Ben Zaken, Ravfogel and Goldberg,
ACL 2022, https://arxiv.org/abs/2106.10199. Of every layer z = W x + b and every LayerNorm
g ⊙ x + b, the b are trained and all else is frozen. ``last-layers``: Lee, Tang and Lin, "What Would
Elsa Do? Freezing Layers During Transformer Fine-Tuning", 2019, https://arxiv.org/abs/1911.03090. Of
L layers, those after L − n are trained; the embeddings and the layers below are frozen.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from foundation.records import Record, TomlFiles
from retrievers.adapters.settings import AdapterSettings
from retrievers.models.card import Card, replace_fields
from retrievers.models.recipe import Pooling, Similarity, TitleJoin
from retrievers.training.engine.arguments import Above0, Count, Optimizer, Precision

PRESETS = Path(__file__).parents[1] / "presets" / "finetune"
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Source = Literal["bm25", "model"]


class Mining(Record, kw_only=True):
    """Where the negatives of one round of training come from.

    Attributes:
        sources: ``bm25``, ``model`` (the encoder as it is: before training, or that of the last
            round), both, or none for in-batch negatives alone.
        depth: documents that are searched for each query.
        skip: how many of the best are left out, once the relevant ones are.
        keep: negatives kept for each query and source, the best ones.
        margin: of the model's scores: a negative scores at least this much below the lowest
            relevant document; None for no such filter.
        refresh_steps: search again with the encoder as trained so far, every so many steps (ANCE:
            Xiong et al., ICLR 2021); 0 for never.
        epochs: how often the round shows each query; None for as often as the preset says, and
            where that sets steps.
    """

    sources: tuple[Source, ...] = ()
    depth: int = 200
    skip: int = 0
    keep: int = 50
    margin: float | None = None
    refresh_steps: int = 0
    epochs: Above0 | None = None

    def __post_init__(self) -> None:
        if min(self.depth, self.keep) < 1 or min(self.skip, self.refresh_steps) < 0:
            raise ValueError("depth and keep are 1 or more, skip and refresh_steps 0 or more")
        if len(set(self.sources)) < len(self.sources):
            raise ValueError("a source of negatives is named twice")
        if "model" not in self.sources and (self.margin is not None or self.refresh_steps):
            raise ValueError('margin and refresh_steps need the source "model"')


class Contrastive(Record, kw_only=True, tag_field="name", tag="contrastive"):
    """Cross-entropy over in-batch and hard negatives (Karpukhin et al., DPR, EMNLP 2020).

    Attributes:
        temperature: similarities are divided by it; None for 0.05 with cosine and 1 with dot.
        chunk: texts of one forward pass: the loss is still over the whole batch, whose vectors'
            gradients are cached (GradCache: Gao et al., RepL4NLP 2021); 0 for all at once.
        in_batch: documents of the batch's other queries are negatives too; False for a query's own
            hard negatives alone (ANCE: Xiong et al., ICLR 2021).
    """

    temperature: Above0 | None = None
    chunk: Annotated[int, msgspec.Meta(ge=0)] = 0
    in_batch: bool = True

    def __post_init__(self) -> None:
        if self.chunk and not self.in_batch:
            raise ValueError("chunk is for in-batch negatives: without them, lower batch_size")


class KL(Record, kw_only=True, tag_field="name", tag="kl"):
    """KL divergence from a cross-encoder's distribution over a query's own documents.

    Attributes:
        temperature: the retriever's similarities are divided by it; None as in `Contrastive`.
        contrastive_weight: of the contrastive loss of the same batch, which is added.
        teacher_temperature: the teacher's scores are divided by it.
    """

    temperature: Above0 | None = None
    contrastive_weight: NotNegative = 0.0
    teacher_temperature: Above0 = 1.0


Loss = Contrastive | KL
COSINE_TEMPERATURE = 0.05  # or its range of -1 to 1 could not rule out a single document


def loss_temperature(loss: Loss, similarity: Similarity) -> float:
    """Temperature: similarities are divided by it."""
    if loss.temperature is not None:
        return loss.temperature
    return COSINE_TEMPERATURE if similarity == "cos" else 1.0


class Teacher(Record, kw_only=True):
    """A cross-encoder that scores queries with their documents.

    Attributes:
        model: folder or Hub id of a trained one; without it one is trained on relevant documents
            and mined negatives.
        start: card, folder or Hub id of the encoder that its training starts from; without it the
            one that the retriever starts from.
        loss: ``binary`` cross-entropy of each pair; or ``listwise``, the cross-entropy of finding
            the relevant document among its negatives (Gao, Dai and Callan, "Rethink Training of
            BERT Rerankers in Multi-Stage Retrieval Pipeline", ECIR 2021).
        negatives: of each relevant document in its training; in a list that is short of them,
            random documents.
        batch_size: of one forward pass over all devices: pairs, or lists.
        accumulate: forward passes of a step.
        epochs: how often its training shows each query.
        max_tokens: of a pair.
        margin: negatives that it scores less than this below the lowest relevant document are
            dropped; None for no such filter.
    """

    model: str = ""
    start: str = ""
    optimizer: Optimizer = Optimizer(lr=2e-5)
    loss: Literal["binary", "listwise"] = "binary"
    negatives: Count = 4
    batch_size: Count = 32
    accumulate: Count = 1
    epochs: Above0 = 1.0
    max_tokens: Annotated[int, msgspec.Meta(ge=8)] = 512
    margin: float | None = None

    def __post_init__(self) -> None:
        if self.model and self.start:
            raise ValueError("a teacher is either a trained model or trained from a start")

    @property
    def pairs_at_once(self) -> int:
        """Pairs of one forward pass: a list has one for each of its documents."""
        return self.batch_size * (1 + self.negatives if self.loss == "listwise" else 1)


class Biases(Record, kw_only=True, tag_field="name", tag="biases"):
    """All biases, and nothing else.

    Attributes:
        lr: learning rate instead of the optimizer's: so few weights want a higher one.
    """

    lr: Above0 | None = None


class LastLayers(Record, kw_only=True, tag_field="name", tag="last-layers"):
    """The last layers of the encoder.

    Attributes:
        layers: how many.
        lr: see `Biases`.
    """

    layers: Count
    lr: Above0 | None = None


Part = Biases | LastLayers


class UsageSettings(Record, kw_only=True):
    """Use of the model, in training and ever after; None is as the start model is used.

    Attributes:
        lower_case: lower-case texts, where the tokenizer does not. Where it is not set, it is no
            part of what a training is known by: it came after trainings were stored.
    """

    pooling: Pooling | None = None
    normalize: bool | None = None
    similarity: Similarity | None = None
    title_join: TitleJoin | None = None
    segment_ids: bool | None = None
    max_query_tokens: Count | None = None
    max_document_tokens: Count | None = None
    lower_case: bool | msgspec.UnsetType = msgspec.UNSET

    def of(self, card: Card) -> Card:
        """A card with what is set here.

        Raises:
            BenchError: the card would contradict itself.
        """
        fields = msgspec.to_builtins(self).items()  # without what is unset
        return replace_fields(card, {name: set_ for name, set_ in fields if set_ is not None})


class Finetuning(Record, kw_only=True):
    """Everything that decides a fine-tuned checkpoint, but for its start and its collections.

    Attributes:
        title: in tables and reports.
        rounds: negatives of each round. Every round starts from the same weights; the encoder of
            one mines the negatives of the next, and that of the last is the result.
        loss: what is minimised.
        teacher: scores negatives, for a distillation or for its margin alone.
        adapter: what is trained instead of the encoder, which is frozen then.
        part: of the encoder that is trained, the rest being frozen; None for all of it.
        use: how the finished checkpoint makes vectors.
        batch_size: queries of one step, over all devices.
        hard_negatives: of each query in a batch.
        max_query_tokens: in training; None for as used afterwards.
        max_document_tokens: the same.
        steps: how many in each round; or
        epochs: how often a round shows each query, where the round does not say it itself.
        precision: of the forward pass; weights and optimizer are float32.
        gradient_checkpointing: less memory for about a third more time.
        source: paper and repository that the figures are from.
        unverified: what was not read in a first-party source.
    """

    title: str
    rounds: tuple[Mining, ...] = (Mining(),)
    loss: Loss = Contrastive()
    teacher: Teacher | None = None
    adapter: AdapterSettings | None = None
    part: Part | None = None
    use: UsageSettings = UsageSettings()
    optimizer: Optimizer = Optimizer(lr=2e-5)
    batch_size: Annotated[int, msgspec.Meta(ge=2)] = 32
    hard_negatives: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_query_tokens: Count | None = None
    max_document_tokens: Count | None = None
    steps: Count | None = None
    epochs: Above0 | None = None
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    precision: Precision = "float32"
    gradient_checkpointing: bool = False
    source: str = ""
    unverified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("set either steps or epochs")
        if not self.rounds:
            raise ValueError("there is at least one round")
        if isinstance(self.loss, Contrastive) and not (self.loss.in_batch or self.hard_negatives):
            raise ValueError("without in-batch negatives there must be hard_negatives")
        if any(bool(mining.sources) != bool(self.hard_negatives) for mining in self.rounds):
            raise ValueError("hard_negatives need sources in every round, and sources need them")
        adapter = self.adapter
        if adapter is not None and self.part is not None:
            raise ValueError("with an adapter the encoder is frozen: drop part, or the adapter")
        self._check_teacher()

    def _check_teacher(self) -> None:
        if isinstance(self.loss, Contrastive):
            if self.teacher is not None and self.teacher.margin is None:
                raise ValueError("a contrastive loss has use for a teacher only with its margin")
        elif self.teacher is None:
            raise ValueError("a distillation needs a [teacher]")
        if self.teacher is not None and not self.hard_negatives:
            raise ValueError("a teacher scores hard_negatives, and there are none")
        if self.teacher is not None and any(mining.refresh_steps for mining in self.rounds):
            raise ValueError("refreshed negatives have no scores of the teacher: drop one of them")

    def effective_optimizer(self) -> Optimizer:
        """The optimizer, as the adapter or the part needs it if there is one."""
        own = self.adapter or self.part
        if own is None:
            return self.optimizer
        return msgspec.structs.replace(self.optimizer, lr=own.lr or self.optimizer.lr)

    def steps_for(self, mining: Mining, queries: int) -> int:
        """Steps of a round with so many queries."""
        if self.steps is not None:
            return self.steps
        epochs = self.epochs if mining.epochs is None else mining.epochs
        return max(1, int((epochs or 0) * queries) // self.batch_size)


FILES = TomlFiles(
    kind="preset for fine-tuning",
    folder=PRESETS,
    record=Finetuning,
    choice="loss.name",
    instead_of={"steps": ("epochs",), "epochs": ("steps",)},
)
load_preset = FILES.load
from_table = FILES.convert
parse = FILES.parse
changed = FILES.changed
