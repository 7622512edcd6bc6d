"""Everything that changes a vector, in one frozen record whose hash names the vectors.

A recipe is plain data: it can be stored with vectors and scores, compared, and hashed without
loading a model. The location of files, the device and the batch size are not part of it.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from foundation.records import Record

Pooling = Literal["none", "cls", "mean", "last", "pooler"]
# Poolings that one forward pass serves, in the order in which they are stored.
EVERY_POOLING: tuple[Pooling, ...] = ("cls", "mean", "last")
StoredPooling = Pooling | Literal["every", "unknown"]
Similarity = Literal["dot", "cos"]
TitleJoin = Literal["space", "pair", "sep", "none"]
TruncationSide = Literal["right", "left"]
Dtype = Literal["float32", "bfloat16", "float16"]
# int8: dense layers of a float32 network, on the CPU
ModelDtype = Literal["float32", "bfloat16", "float16", "int8"]
StoreDtype = Literal["float32", "float16"]
Role = Literal["document", "query"]
# Later additions, which are part of a fingerprint only if they differ from their defaults.
ADDED_LATER = ("truncation_side", "lower_case")
# Settings of a Python object that does not state them, and of a model behind a URL.
UNKNOWN_SETTINGS: Mapping[str, Any] = {
    **dict.fromkeys(("pooling", "dtype"), "unknown"),
    **dict.fromkeys(("max_query_tokens", "max_document_tokens")),
}
# Facts about a Python object, for people: the fingerprint in its options names its vectors.
PYTHON_OBJECT_FACTS = (*UNKNOWN_SETTINGS, "prompts", *ADDED_LATER)
StageKind = Literal["dense", "layer-norm"]
AdapterKind = Literal["adapterhub", "peft", "routed"]
Option = bool | int | float | str


class Prompts(Record):
    """Text put before a query and before a document (before its title, if it has one)."""

    query: str = ""
    document: str = ""


class Stage(Record):
    """A layer after pooling.

    Attributes:
        kind: type of the layer.
        source: location of its weights: ``key:NAME`` in the checkpoint's state dict, or
            ``folder:NAME`` for a folder in the layout of sentence-transformers.
        width: output dimension.
        activation: activation of a dense layer.
        eps: constant of a layer norm.
    """

    kind: StageKind
    source: str
    width: int
    activation: str = "identity"
    eps: float = 1e-5


class AdapterIdentity(Record, omit_defaults=True):
    """Identity of an attached adapter.

    Attributes:
        kind: its library; ``routed`` for several adapters, one of which encodes each query.
        files: sha256 of each of its files.
    """

    kind: AdapterKind
    files: dict[str, str]


class Usage(Record, kw_only=True):
    """How a model is used, as cards, recipes and folders state it.

    Attributes:
        pooling: ``every`` stands for the poolings of `EVERY_POOLING` side by side, see
            `retrievers.encoders.views`; no card has it. ``unknown``: a Python object does not state
            it.
        normalize: whether vectors are scaled to length 1.
        similarity: similarity of two vectors.
        title_join: how a title and its text become one input.
        segment_ids: whether the second segment of a pair gets token type 1.
        max_query_tokens, max_document_tokens: length at which texts are truncated; None if unknown.
        truncation_side: side on which long texts are truncated.
        lower_case: whether to lower-case texts and prompts before the tokenizer, which does not.
        dtype: dtype of weights and activations.
    """

    pooling: StoredPooling = "none"
    normalize: bool = False
    similarity: Similarity = "dot"
    title_join: TitleJoin = "space"
    segment_ids: bool = True
    max_query_tokens: int | None = 512
    max_document_tokens: int | None = 512
    truncation_side: TruncationSide = "right"
    lower_case: bool = False
    dtype: Dtype | Literal["unknown"] = "float32"

    @property
    def max_tokens(self) -> int:
        """Length of the longest input, a query or a document, in tokens; 0 if unknown."""
        return max(self.max_query_tokens or 0, self.max_document_tokens or 0)

    @property
    def usage(self) -> dict[str, Any]:
        """Fields of `Usage`, for another record that has them."""
        return {name: getattr(self, name) for name in Usage.__struct_fields__}


class Recipe(Usage, kw_only=True):
    """Everything that determines the vectors of an encoder.

    Attributes:
        model: short name for people; not part of the fingerprint.
        kind: ``transformer``, ``hashing``, ``bm25``, ``python`` for a user's own object, or
            ``endpoint`` for a model behind a URL.
        dim: dimension of the vectors; 0 without vectors (BM25).
        checkpoint, revision: Hub id or folder name, and its revision.
        query_checkpoint, query_revision: the same for the query encoder of an untied model.
        files: sha256 by file name: weights, configuration, tokenizer, stages.
        query_files: the same for the query encoder of an untied model; otherwise empty.
        stages: layers after pooling.
        prompts: prompts resolved for a dataset.
        dataset_prompts: prompts that ``for_dataset`` chooses from; empty once resolved.
        adapter: identity of the attached adapter.
        backend: engine that runs the model: PyTorch, or dense layers in int8 with calibrated
            scales.
        store_dtype: dtype of stored vectors: float16 rounds them before they are searched.
        encoder: third party's class, as ``package.module:Class``.
        options: settings of an encoder that is not a transformer.
    """

    model: str
    kind: Literal["transformer", "hashing", "bm25", "python", "endpoint"]
    dim: int
    checkpoint: str = ""
    revision: str = ""
    query_checkpoint: str = ""
    query_revision: str = ""
    files: dict[str, str] = {}
    query_files: dict[str, str] = {}
    stages: tuple[Stage, ...] = ()
    prompts: Prompts = Prompts()
    dataset_prompts: dict[str, Prompts] = {}
    adapter: AdapterIdentity | None = None
    backend: Literal["torch", "int8-calibrated"] = "torch"
    store_dtype: StoreDtype = "float32"
    encoder: str = ""
    options: dict[str, Option] = {}

    def __post_init__(self) -> None:
        """Mark settings that a Python object does not state."""
        if self.kind == "python" and not self.encoder and self.pooling == "none":
            for name, value in UNKNOWN_SETTINGS.items():
                msgspec.structs.force_setattr(self, name, value)

    @property
    def fingerprint(self) -> str:
        """Hash (sha256, hex) of the canonical JSON of all fields that can change a vector.

        Names are omitted if files are hashed, so that a moved or downloaded copy of the same files
        is the same model. A third party's class loads files by name, which are not hashed, so its
        names stay.
        """
        defaults = {field.name: field.default for field in msgspec.structs.fields(self)}
        names = {"model", *(n for n in ADDED_LATER if getattr(self, n) == defaults[n])}
        if self.files and not self.encoder:
            names |= {"checkpoint", "revision", "query_checkpoint", "query_revision"}
        fields = msgspec.structs.asdict(self)
        if self.kind == "python":
            fields |= {name: defaults[name] for name in PYTHON_OBJECT_FACTS}
            names |= {*ADDED_LATER}
        facts = {name: value for name, value in fields.items() if name not in names}
        return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()

    def side(self, role: Role) -> "Recipe":
        """Return the recipe of one side, ``role``, with the other side's fields at plain values.

        Equal fingerprints of a side mean equal vectors there, so that a change of the other side
        (such as a query prompt) encodes nothing again. A third party's class may read any field, so
        both of its sides are the full recipe.
        """
        if self.encoder:
            return self
        own: dict[str, Any] = dict.fromkeys(("query_checkpoint", "query_revision"), "")
        own |= dict.fromkeys(("dataset_prompts", "query_files"), {})
        if role == "document":
            own["prompts"] = Prompts(document=self.prompts.document)
            own["max_query_tokens"] = self.max_document_tokens
        else:
            own["prompts"] = Prompts(query=self.prompts.query)
            own["max_document_tokens"] = self.max_query_tokens
            own["title_join"] = "space"  # a query has no title
            if self.query_files:
                own |= {"checkpoint": self.query_checkpoint, "revision": self.query_revision}
                own["files"] = self.query_files
        return msgspec.structs.replace(self, **own)

    @property
    def precision(self) -> str:
        """``int8``, or the dtype of weights and activations."""
        return "int8" if self.backend == "int8-calibrated" else self.dtype

    def for_dataset(self, name: str) -> "Recipe":
        """Return this recipe with the prompts of dataset ``name`` (``beir/quora``) and no others.

        The most specific entry wins: ``beir/cqadupstack/tex``, then ``beir/cqadupstack``, then
        ``beir``, then the prompts for all datasets.
        """
        parts = name.split("/")
        candidates = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
        prompts = (self.dataset_prompts[c] for c in candidates if c in self.dataset_prompts)
        return msgspec.structs.replace(
            self, prompts=next(prompts, self.prompts), dataset_prompts={}
        )
