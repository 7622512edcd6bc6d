"""Presets of pre-training and fine-tuning: strict TOML files with everything but texts.

Parts of an encoder that can be fine-tuned alone: ``biases`` is BitFit, Ben Zaken, Ravfogel and
Goldberg, ACL 2022, https://arxiv.org/abs/2106.10199. In every layer z = W x + b and every LayerNorm
g ⊙ x + b, only b is trained. ``last-layers`` follows Lee, Tang and Lin, "What Would Elsa Do?
Freezing Layers During Transformer Fine-Tuning", 2019, https://arxiv.org/abs/1911.03090. Of L
layers, the last n are trained. The embeddings and the layers below are frozen.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from foundation.records import Record, TomlFiles
from retrievers.adapters.adapter import AdapterSettings
from retrievers.models.card import Card, Pooling, Similarity, TitleJoin, replace_fields
from retrievers.training.objectives.objective import Objective, read_objective

FOLDER = Path(__file__).parent / "presets"
COSINE_TEMPERATURE = 0.05  # cosines of -1 to 1 alone give a nearly uniform softmax

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Above0 = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Precision = Literal["float32", "bfloat16", "float16"]
Source = Literal["bm25", "model", "file"]


class Optimizer(Record, kw_only=True):
    """AdamW (Loshchilov and Hutter, 2019) with a schedule: the ``[optimizer]`` table of presets.

    Attributes:
        algorithm: ``adamw``, the only one. The field is part of the identity of stored trainings.
        lr: highest learning rate.
        warmup: share of the steps during which the learning rate rises from 0.
        weight_decay: weight decay of AdamW.
        schedule: decay to 0 after the warm-up; ``constant`` does not decay.
        max_grad_norm: gradients are clipped to this norm.
    """

    algorithm: Literal["adamw"] = "adamw"
    lr: Above0 = 1e-4
    warmup: Share = 0.1
    weight_decay: Share = 0.01
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    max_grad_norm: Above0 = 1.0


class Scratch(Record, kw_only=True):
    """New BERT with random weights. Set either ``tokenizer`` or ``vocabulary``.

    Attributes:
        tokenizer: card, folder or Hub id whose tokenizer and vocabulary it gets.
        vocabulary: size of a WordPiece vocabulary that is trained on the texts themselves.
        layers: number of layers.
        width: dimension of the hidden states.
        heads: attention heads of each layer.
        intermediate: width of the feed-forward networks.
        positions: longest input in tokens.
    """

    tokenizer: str = ""
    vocabulary: Count | None = None
    layers: Count
    width: Count
    heads: Count
    intermediate: Count
    positions: Count = 512

    def __post_init__(self) -> None:
        if bool(self.tokenizer) == bool(self.vocabulary):
            raise ValueError("set either tokenizer or vocabulary")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be split among {self.heads} heads")


class Start(Record, kw_only=True):
    """Initial weights. Set either ``model`` or ``scratch``.

    Attributes:
        model: card, folder or Hub id.
        scratch: settings of a new model.
    """

    model: str = ""
    scratch: Scratch | None = None

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.scratch):
            raise ValueError("start from either a model or scratch")


class Pretraining(Record, kw_only=True):
    """Preset of a pre-training: everything that decides the checkpoint except the texts.

    Set the length with one of ``steps``, ``epochs`` and ``tokens``.

    Attributes:
        title: title in tables and reports.
        start: initial weights.
        objective: objective and its settings.
        optimizer: optimizer and schedule.
        batch_size: texts of one forward pass on one device.
        accumulate: forward passes of one step.
        max_tokens: longest text in tokens, including special tokens.
        long_texts: ``split`` turns a longer document into several blocks, each a text. ``truncate``
            drops the end of a longer document. Objectives that draw spans read complete documents.
        steps: optimizer steps.
        epochs: number of times that each text is read.
        tokens: number of tokens read, as counted in the loss curve: equal for all objectives.
        seed: seed of new weights, of the order of texts, of masks and of dropout.
        precision: precision of the forward pass; weights and optimizer states are float32, and TF32
            is off. On a CPU, float16 trains in float32.
        gradient_checkpointing: save memory at the cost of about a third more time.
        source: paper and section of the settings.
    """

    title: str
    start: Start
    objective: Objective
    optimizer: Optimizer = Optimizer()
    batch_size: Count = 32
    accumulate: Count = 1
    max_tokens: Annotated[int, msgspec.Meta(ge=8)] = 512
    long_texts: Literal["split", "truncate"] = "split"
    steps: Count | None = None
    epochs: Above0 | None = None
    tokens: Count | None = None
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    precision: Precision = "float32"
    gradient_checkpointing: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        if sum(length is not None for length in (self.steps, self.epochs, self.tokens)) != 1:
            raise ValueError("set one of steps, epochs and tokens")


PRETRAIN_PRESETS = TomlFiles(
    kind="preset for pre-training",
    folder=FOLDER / "pretrain",
    record=Pretraining,
    dec_hook=lambda _, objective: read_objective(objective),
    instead_of={
        "steps": ("epochs", "tokens"),
        "epochs": ("steps", "tokens"),
        "tokens": ("steps", "epochs"),
        "start.model": ("scratch",),
        "start.scratch": ("model",),
        "start.scratch.tokenizer": ("vocabulary",),
        "start.scratch.vocabulary": ("tokenizer",),
    },
)


class Mining(Record, kw_only=True):
    """Source of the negatives of one round of training.

    Attributes:
        sources: ``bm25``, ``model`` (the encoder before training, or the encoder of the previous
            round), ``file`` (the negatives that come with the queries), several of them, or none
            for in-batch negatives only.
        depth: documents retrieved for each query.
        skip: number of top-ranked documents to leave out, after relevant ones were removed.
        keep: negatives kept for each query and source, the best ones.
        margin: a negative must score at least this much below the lowest relevant document, by the
            model's scores. None for no such filter.
        refresh_steps: steps between two searches with the encoder as trained so far (ANCE: Xiong et
            al., ICLR 2021). 0 for never.
        epochs: number of times that the round shows each query. None for the preset's epochs or
            steps.
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
            raise ValueError("depth and keep must be at least 1, skip and refresh_steps at least 0")
        if len(set(self.sources)) < len(self.sources):
            raise ValueError("a source of negatives is listed twice")
        if "model" not in self.sources and (self.margin is not None or self.refresh_steps):
            raise ValueError('margin and refresh_steps need the source "model"')


class LossSettings(Record, kw_only=True, tag_field="name"):
    """Settings that all losses have.

    Attributes:
        temperature: similarities are divided by it. None for 0.05 with cosine and 1 with dot
            product.
        matryoshka: fewer dimensions, in descending order. The loss of the leading dimensions of the
            vectors, scaled to unit length, is added to that of whole vectors, so that vectors can
            be cut afterwards (Kusupati et al., NeurIPS 2022, https://arxiv.org/abs/2205.13147). If
            unset, it is not part of a training's identity.
    """

    temperature: Above0 | None = None
    matryoshka: tuple[Count, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        given = tuple(self.matryoshka or ())
        if list(given) != sorted(set(given), reverse=True):
            raise ValueError("write the dimensions of matryoshka in descending order")

    def dimensions(self, whole: int) -> tuple[int, ...]:
        """Return the dimensions at which a model with ``whole`` dimensions is trained."""
        return tuple(dict.fromkeys((whole, *(self.matryoshka or ()))))

    def temperature_for(self, similarity: Similarity) -> float:
        """Return the temperature for a model with ``similarity``."""
        if self.temperature is not None:
            return self.temperature
        return COSINE_TEMPERATURE if similarity == "cos" else 1.0


class Contrastive(LossSettings, kw_only=True, tag="contrastive"):
    """Cross-entropy over in-batch and hard negatives (Karpukhin et al., DPR, EMNLP 2020).

    Attributes:
        chunk: texts of one forward pass. The loss is still over the whole batch, whose vectors'
            gradients are cached (GradCache: Gao et al., RepL4NLP 2021). 0 encodes the batch at
            once.
        in_batch: whether documents of the batch's other queries are negatives too. False uses only
            a query's own hard negatives (ANCE: Xiong et al., ICLR 2021).
    """

    chunk: Annotated[int, msgspec.Meta(ge=0)] = 0
    in_batch: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk and not self.in_batch:
            raise ValueError("chunk needs in-batch negatives: without them, lower batch_size")


class KL(LossSettings, kw_only=True, tag="kl"):
    """KL divergence from a cross-encoder's distribution over a query's own documents.

    Attributes:
        contrastive_weight: weight of the contrastive loss of the same batch, which is added.
        teacher_temperature: the teacher's scores are divided by it.
    """

    contrastive_weight: NotNegative = 0.0
    teacher_temperature: Above0 = 1.0


class MarginMSE(LossSettings, kw_only=True, tag="margin-mse"):
    """Squared difference between the margins (positive minus negative) of model and cross-encoder.

    Hofstätter et al., "Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge
    Distillation", 2020, https://arxiv.org/abs/2010.02666.
    """


Distillation = KL | MarginMSE  # losses that need a teacher's scores
Loss = Contrastive | Distillation


class Teacher(Record, kw_only=True):
    """Cross-encoder that scores queries with their documents.

    Attributes:
        model: folder or Hub id of a trained cross-encoder. Without it, one is trained on relevant
            documents and mined negatives.
        start: card, folder or Hub id of the encoder that its training starts from. Without it, the
            retriever's start model is used.
        optimizer: optimizer and schedule of its training.
        loss: ``binary`` cross-entropy of each pair, or ``listwise``, the cross-entropy of finding
            the relevant document among its negatives (Gao, Dai and Callan, "Rethink Training of
            BERT Rerankers in Multi-Stage Retrieval Pipeline", ECIR 2021).
        negatives: negatives for each relevant document in its training. A list that is too short is
            filled with random documents.
        batch_size: pairs or lists of one forward pass over all devices.
        accumulate: forward passes of a step.
        epochs: number of times that its training shows each query.
        max_tokens: longest pair in tokens.
        margin: negatives that score less than this below the lowest relevant document are dropped.
            None for no such filter.
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
            raise ValueError("set either model or start of the teacher")

    @property
    def pairs_at_once(self) -> int:
        """Pairs of one forward pass. A list has one pair for each of its documents."""
        return self.batch_size * (1 + self.negatives if self.loss == "listwise" else 1)


class Biases(Record, kw_only=True, tag_field="name", tag="biases"):
    """Train only the biases.

    Attributes:
        lr: learning rate instead of the optimizer's. So few weights need a higher one.
    """

    lr: Above0 | None = None


class LastLayers(Record, kw_only=True, tag_field="name", tag="last-layers"):
    """Train only the last layers of the encoder.

    Attributes:
        layers: number of layers.
        lr: learning rate instead of the optimizer's.
    """

    layers: Count
    lr: Above0 | None = None


Part = Biases | LastLayers


class UsageSettings(Record, kw_only=True):
    """Changes to how the model makes vectors, in training and afterwards.

    None keeps the setting of the start model.

    Attributes:
        pooling: pooling of token states.
        normalize: whether vectors are scaled to unit length.
        similarity: ``dot`` or ``cos``.
        title_join: rule that joins title and text.
        segment_ids: whether title and text have different segment ids.
        max_query_tokens: longest query in tokens.
        max_document_tokens: longest document in tokens.
        lower_case: lower-case texts even if the tokenizer does not. If unset, it is not part of a
            training's identity, because it was added after trainings had been stored.
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
        """Return ``card`` with these settings applied, or raise if it would contradict itself."""
        fields = msgspec.to_builtins(self).items()  # leaves out unset fields
        return replace_fields(card, {name: set_ for name, set_ in fields if set_ is not None})


class Finetuning(Record, kw_only=True):
    """Preset of a fine-tuning: everything that decides the checkpoint except start and collections.

    Set the length with either ``steps`` or ``epochs``.

    Attributes:
        title: title in tables and reports.
        rounds: source of negatives of each round. Every round starts from the same weights. The
            encoder of one round mines the negatives of the next, and the encoder of the last is the
            result.
        loss: loss and its settings.
        teacher: cross-encoder that scores negatives, for a distillation or only for its margin.
        adapter: adapter to train instead of the encoder, which is frozen.
        part: part of the encoder to train. None trains all of it.
        use: changes to how the finished checkpoint makes vectors.
        optimizer: optimizer and schedule.
        batch_size: queries of one step, over all devices.
        hard_negatives: hard negatives of each query in a batch.
        max_query_tokens: longest query in training, in tokens. None for the length used afterwards.
        max_document_tokens: longest document in training, in tokens. None for the length used
            afterwards.
        steps: optimizer steps of each round.
        epochs: number of times that a round shows each query, unless the round sets it.
        seed: seed of the order, of negatives and of new weights.
        precision: precision of the forward pass; weights and optimizer states are float32, and TF32
            is off. On a CPU, float16 trains in float32.
        gradient_checkpointing: save memory at the cost of about a third more time.
        source: paper and repository of the settings.
        unverified: settings that were not found in a first-party source.
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
            raise ValueError("set at least one round")
        if isinstance(self.loss, Contrastive) and not (self.loss.in_batch or self.hard_negatives):
            raise ValueError("without in-batch negatives, hard_negatives must be at least 1")
        counted, sources = self.hard_negatives, [mining.sources for mining in self.rounds]
        if counted and not all(sources):
            raise ValueError(
                f"hard_negatives is {counted}, but a round has no sources of negatives: start from "
                "dpr-small, which takes BM25's, or set hard_negatives to 0"
            )
        if not counted and any(sources):
            raise ValueError(
                "hard_negatives is 0, but a round has sources of negatives: start from "
                "in-batch-small, which has none, or set hard_negatives to 1 or more"
            )
        adapter = self.adapter
        if adapter is not None and self.part is not None:
            raise ValueError("set either adapter or part: an adapter freezes the encoder")
        self._check_teacher()

    def _check_teacher(self) -> None:
        if isinstance(self.loss, Contrastive):
            if self.teacher is not None and self.teacher.margin is None:
                raise ValueError("with a contrastive loss, a teacher needs a margin")
        elif self.teacher is None and any(mining.sources != ("file",) for mining in self.rounds):
            raise ValueError('a distillation needs a [teacher], such as teacher = {model = "DIR"}')
        if self.teacher is not None and not self.hard_negatives:
            raise ValueError("a teacher needs hard_negatives to score")
        if self.teacher is not None and any(mining.refresh_steps for mining in self.rounds):
            raise ValueError("refreshed negatives have no teacher's scores: drop refresh_steps")

    def with_file(self, scored: bool) -> "Finetuning":
        """Return the preset for queries that come with negatives, ``scored`` by a teacher or not.

        These replace BM25's. For a distillation, scores in the file replace the teacher, and then
        the negatives of all rounds are the file's.
        """
        if any("file" in mining.sources for mining in self.rounds) or not self.hard_negatives:
            return self
        if scored and isinstance(self.loss, Distillation):
            given = [Mining(sources=("file",), keep=r.keep, epochs=r.epochs) for r in self.rounds]
            return msgspec.structs.replace(self, rounds=tuple(given), teacher=None)
        rounds = []
        for mining in self.rounds:
            sources = tuple("file" if each == "bm25" else each for each in mining.sources)
            rounds.append(msgspec.structs.replace(mining, sources=sources))
        return msgspec.structs.replace(self, rounds=tuple(rounds))

    def effective_optimizer(self) -> Optimizer:
        """Return the optimizer, with the learning rate of the adapter or part if it sets one."""
        trained = self.adapter or self.part
        if trained is None:
            return self.optimizer
        return msgspec.structs.replace(self.optimizer, lr=trained.lr or self.optimizer.lr)

    def steps_for(self, mining: Mining, queries: int) -> int:
        """Return the number of steps of a round with this ``mining`` on so many ``queries``."""
        if self.steps is not None:
            return self.steps
        epochs = self.epochs if mining.epochs is None else mining.epochs
        return max(1, int((epochs or 0) * queries) // self.batch_size)


FINETUNE_PRESETS = TomlFiles(
    kind="preset for fine-tuning",
    folder=FOLDER / "finetune",
    record=Finetuning,
    instead_of={"steps": ("epochs",), "epochs": ("steps",)},
)
