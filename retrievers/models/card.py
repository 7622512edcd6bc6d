"""What is stated about a model: its card, and the recipe that determines its vectors.

A card is a strict TOML file. It states how text becomes a vector (checkpoint, pooling, prompts,
lengths), the model's training data, and published scores with their sources. A recipe is plain
data, which is stored with vectors and scores, compared and hashed. The location of files, the
device and the batch size are not part of it.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from foundation.errors import BenchError
from foundation.files import replace_file
from foundation.records import SUFFIX, Record, TomlFiles
from retrievers.models.kinds import KINDS, Kind, KindName

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
# Of searched documents, as sentence-transformers names them.
Precision = Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]
Role = Literal["document", "query"]
Normalization = Literal["min-max", "z-score", "raw"]
RRF_K: Literal[60] = 60  # of reciprocal ranks, as in their paper
MIN_MAX: Normalization = "min-max"
# Later additions, which are part of a fingerprint only if they differ from their defaults.
USAGE_ADDED_LATER = ("truncation_side", "lower_case")
ADDED_LATER = (*USAGE_ADDED_LATER, "compression")
# Settings of a Python object that does not state them, and of a model behind a URL.
UNKNOWN_SETTINGS: Mapping[str, Any] = {
    **dict.fromkeys(("pooling", "dtype"), "unknown"),
    **dict.fromkeys(("max_query_tokens", "max_document_tokens")),
}
# What is known about a Python object, for people, unless its files are hashed: the fingerprint in
# its options names its vectors.
PYTHON_OBJECT_SETTINGS = (*UNKNOWN_SETTINGS, "prompts", *USAGE_ADDED_LATER)
StageKind = Literal["dense", "layer-norm"]
AdapterKind = Literal["adapterhub", "peft", "routed"]
Option = bool | int | float | str

BRANCH = "main"  # default revision of a repository on the Hub
MAX_TOKENS = 1_000_000  # beyond any architecture
MAX_TOLERANCE = 0.05  # the rounding of a score with a single digit

CARD_FILE = "card.toml"  # in the folder of a checkpoint trained here
UNKNOWN_FINGERPRINT = "unknown-"  # begins that of an object whose content cannot be hashed
STATE = "state"  # option of a search system: a hash of its responses to queries of a collection


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
    """The library of an attached adapter, and the sha256 of each of its files."""

    kind: AdapterKind
    files: dict[str, str]


class Compression(Record, kw_only=True, omit_defaults=True):
    """How documents are compressed after they are encoded, and which of them are scored again.

    Attributes:
        dimensions: number of leading dimensions to search (Matryoshka: Kusupati et al., NeurIPS
            2022); None for all.
        precision: precision of the searched documents. ``int8`` and ``uint8`` have 256 steps in
            each dimension. ``binary`` and ``ubinary`` keep the signs, of queries too, and rank by
            Hamming distance. Other queries stay float32.
        rescore: number of candidates of each query that are found in the compressed documents and
            scored again by all dimensions; None to rank by the compressed documents.
        rescore_by: documents that candidates are scored again with: the stored vectors, or their
            int8 codes.
    """

    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    precision: Precision = "float32"
    rescore: Annotated[int, msgspec.Meta(ge=1)] | None = None
    rescore_by: Literal["stored", "int8"] = "stored"

    @property
    def settings(self) -> dict[str, str]:
        """Values of the options ``dimensions``, ``precision`` and ``rescore``, "" for none."""
        rescore = str(self.rescore or "") + (":int8" if self.rescore_by == "int8" else "")
        dimensions = str(self.dimensions or "")
        return {"dimensions": dimensions, "precision": self.precision, "rescore": rescore}

    @property
    def label(self) -> str:
        """Options in one line, such as ``dimensions=128 precision=int8``; "" for none."""
        if self == Compression():
            return ""
        return " ".join(f"{name}={value}" for name, value in self.settings.items() if value)


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
        kind: ``transformer``, ``hashing``, ``bm25``, ``python`` for an object that encodes (a
            user's own, or sentence-transformers on a folder), ``endpoint`` for a model behind a
            URL, ``vectors`` for ready vectors, ``system`` for a search system, ``fusion`` for the
            fused rankings of models, or ``rerank`` for a model with a reranker.
        dim: dimension of the vectors; 0 without vectors (BM25), or before the model is opened.
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
        encoder: class, function or object of a user's file, as ``file.py:Name``.
        options: settings of an encoder that is not a transformer.
        compression: what is searched instead of the vectors of the encoder, which has the recipe
            without it.
    """

    model: str
    kind: KindName
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
    compression: Compression = Compression()

    def __post_init__(self) -> None:
        """Mark settings that only an object, a server or a folder of vectors knows."""
        if self.traits.is_opaque and self.traits.makes_vectors and self.pooling == "none":
            for name, value in UNKNOWN_SETTINGS.items():
                msgspec.structs.force_setattr(self, name, value)

    @property
    def traits(self) -> Kind:
        """Properties of the kind."""
        return KINDS[self.kind]

    @property
    def fingerprint(self) -> str:
        """Hash (sha256, hex) of the canonical JSON of all fields that can change a vector.

        Names are omitted if files are hashed, so that a moved or downloaded copy of the same files
        is the same model. A user's class loads files by name, which are not hashed, so its names
        stay.
        """
        defaults = {field.name: field.default for field in msgspec.structs.fields(self)}
        names = {"model", *(n for n in ADDED_LATER if getattr(self, n) == defaults[n])}
        if self.files and not self.encoder:
            names |= {"checkpoint", "revision", "query_checkpoint", "query_revision"}
        fields = msgspec.structs.asdict(self)
        if not self.traits.is_stated and (self.encoder or not self.files):
            fields |= {name: defaults[name] for name in PYTHON_OBJECT_SETTINGS}
            names |= {*USAGE_ADDED_LATER}
        described = {name: value for name, value in fields.items() if name not in names}
        return hashlib.sha256(msgspec.json.encode(described, order="deterministic")).hexdigest()

    def side(self, role: Role) -> "Recipe":
        """Return the recipe of one side, ``role``, with the other side's fields at plain values.

        Equal fingerprints of a side mean equal vectors there, so that a change of the other side
        (such as a query prompt) encodes nothing again. A user's class may read any field, so both
        of its sides are the full recipe. Compression changes no vector of an encoder.
        """
        if self.encoder:
            return self.uncompressed
        own: dict[str, Any] = {"dataset_prompts": {}, "query_files": {}}
        own["compression"] = Compression()
        own |= {"query_checkpoint": "", "query_revision": ""}
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
    def uncompressed(self) -> "Recipe":
        """Recipe of the encoder, whose vectors every compression shares."""
        return msgspec.structs.replace(self, compression=Compression())

    @property
    def stateless(self) -> "Recipe":
        """This recipe without what is only valid once.

        It is the state of a search system, which only its responses tell, and the fingerprint of an
        object that has none.
        """
        dropped = {STATE} if self.is_identified else {STATE, "fingerprint"}
        options = {name: value for name, value in self.options.items() if name not in dropped}
        return msgspec.structs.replace(self, options=options)

    @property
    def is_identified(self) -> bool:
        """True if an equal recipe stands for equal vectors."""
        return not str(self.options.get("fingerprint", "")).startswith(UNKNOWN_FINGERPRINT)

    @property
    def across_datasets(self) -> "Recipe":
        """This recipe without what depends on the dataset: prompts, and the state of a system."""
        return msgspec.structs.replace(self.stateless, prompts=Prompts(), dataset_prompts={})

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
        chosen = next(prompts, self.prompts)
        return msgspec.structs.replace(self, prompts=chosen, dataset_prompts={})


class CardStage(Record, kw_only=True):
    """A layer between pooling and normalisation.

    Its weights are either inside the checkpoint (``key = "embeddingHead"`` stands for
    ``embeddingHead.weight`` and ``embeddingHead.bias``) or in a folder in the layout of
    sentence-transformers (``folder = "2_Dense"``), whose ``config.json`` states the activation.

    Attributes:
        kind: type of the layer.
        key: name of the weights in the checkpoint.
        folder: folder of the weights.
        width: output dimension; needed for a dense stage with a key.
        eps: constant of a layer norm.
    """

    kind: StageKind
    key: str = ""
    folder: str = ""
    width: int | None = None
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if bool(self.key) == bool(self.folder):
            raise ValueError("a stage needs either a key or a folder")
        if self.key and self.kind == "dense" and self.width is None:
            raise ValueError("a dense stage with a key needs its output width")


class CardPrompts(Record, kw_only=True):
    """Text put before every query and document; ``datasets`` overrides it by dataset or suite."""

    query: str = ""
    document: str = ""
    datasets: dict[str, Prompts] = {}


class CardAdapter(Record, kw_only=True):
    """An adapter to attach, in a folder relative to the card. ``auto`` finds out its library."""

    path: str
    kind: AdapterKind | Literal["auto"] = "auto"


class ExpectedScore(Record, kw_only=True):
    """A published score of exactly this checkpoint.

    Attributes:
        dataset: name of the collection.
        measure: name of the measure.
        value: score from 0 to 1.
        source: where it was published; empty for the card's ``expected_source``.
        tolerance: at most `MAX_TOLERANCE`; a wider one would accept another model.
    """

    dataset: str
    measure: str
    value: Annotated[float, msgspec.Meta(ge=0, le=1)]
    source: str = ""
    tolerance: Annotated[float, msgspec.Meta(ge=0, le=MAX_TOLERANCE)] = 0.001


class Fusion(Record, kw_only=True):
    """Settings that combine several rankings of a query.

    A document that a ranking lacks has no reciprocal rank there, and otherwise the lowest score of
    that ranking.

    Attributes:
        method: ``rrf`` adds ``1 / (k + rank)`` (Cormack, Clarke and Büttcher, SIGIR 2009), and
            ``weighted`` adds normalised scores.
        k: constant of ``rrf``.
        normalization: of ``weighted``, of the scores of each query: by the least and greatest one,
            by mean and standard deviation, or none.
        weights: of ``weighted``, factor of each ranking, 1 by default.
        depth: number of documents that are used of each ranking.
    """

    method: Literal["rrf", "weighted"] = "rrf"
    k: Annotated[int, msgspec.Meta(ge=0)] = RRF_K
    normalization: Normalization = MIN_MAX
    weights: tuple[float, ...] = ()
    depth: Annotated[int, msgspec.Meta(ge=1)] = 100

    def check(self, rankings: int) -> None:
        """Raise a `ValueError` unless the fields fit the method and the number of rankings."""
        if self.method == "rrf" and (self.normalization != MIN_MAX or self.weights):
            raise ValueError('normalization and weights belong to method = "weighted"')
        if self.method == "weighted" and self.k != RRF_K:
            raise ValueError('k belongs to method = "rrf"')
        if self.weights and len(self.weights) != rankings:
            raise ValueError(f"{len(self.weights)} weights for {rankings} models")
        if self.weights and not (min(self.weights) >= 0 < max(self.weights) < math.inf):
            raise ValueError("weights are 0 or more, finite, and not all 0")

    @property
    def options(self) -> dict[str, Option]:
        """Settings that its method reads, as options of a recipe."""
        common: dict[str, Option] = {"method": self.method, "depth": self.depth}
        if self.method == "rrf":
            return {**common, "k": self.k}
        weights = " ".join(map(repr, self.weights))
        return {**common, "normalization": self.normalization, "weights": weights}


class Card(Usage, kw_only=True):
    """Everything that is stated about one model.

    Attributes:
        name: name that users type: the file's, or for ``card.toml`` its folder's. It may be left
            out of a file.
        title: name in tables; the name if it is left out.
        parameters: approximate number for display, of both encoders of an untied model; 0 if not
            stated. Results contain the number counted in the checkpoint.
        dim: dimension of the vectors for display; 0 if not stated.
        dimensions: leading dimensions that are searched if no others are wanted; None for all.
        kind: type of the encoder.
        checkpoint: Hub id, or a folder (relative to the card's file).
        revision: branch, tag or commit on the Hub. For an endpoint, a name of your choice for the
            state of the server.
        query_checkpoint: second encoder of an untied model (DPR); empty if tied.
        query_revision: its revision.
        package: ``package/folder`` of an installed package with the same weights.
        weights_sha256: hash of the file of weights, checked wherever it comes from.
        stages: layers between pooling and normalisation.
        prompts: text put before queries and documents.
        adapter: adapter to attach.
        encoder: class, function or object of a file as ``path/to/file.py:Name``, relative to the
            card.
        url: address of an endpoint up to ``/v1``, without user, password and query.
        endpoint_model: name of the model on the endpoint.
        connections: requests to an endpoint at a time.
        options: settings of an encoder that is not a transformer. For an endpoint, further fields
            of each request; ``query.NAME`` and ``document.NAME`` are fields in one role.
        models: models whose rankings a fusion reads, as users name them; files are relative to the
            card.
        method, k, normalization, weights: see `Fusion`.
        model: model whose first documents are reranked, named as those of a fusion.
        reranker: folder or Hub id of a cross-encoder that sentence-transformers loads, or
            ``path/to/file.py:Name`` of an object with ``rerank(query, texts)``; relative to the
            card.
        depth: documents of each ranking that are fused, or reranked.
        trained_on: datasets or suites whose scores are in-domain for this model.
        licence, citation, source: licence of the weights, paper, and page of the model.
        unverified: names of fields that were not read in a first-party source.
        expected_source: source of expected scores without their own; empty for ``source``. It is
            filled in at each score when a card is read.
        expected: published scores.
        warning: shown when the model is used, such as "pre-trained only".
        missing: information that nobody published; such a card cannot be used.
    """

    name: str = ""
    title: str = ""
    parameters: int = 0
    dim: int = 0
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    kind: KindName = "transformer"
    checkpoint: str = ""
    revision: str = BRANCH
    query_checkpoint: str = ""
    query_revision: str = BRANCH
    package: str = ""
    weights_sha256: str = ""
    pooling: Pooling = "none"
    stages: tuple[CardStage, ...] = ()
    prompts: CardPrompts = CardPrompts()
    adapter: CardAdapter | None = None
    encoder: str = ""
    url: str = ""
    endpoint_model: str = ""
    connections: int = 16
    options: dict[str, Option] = {}
    models: tuple[str, ...] = ()
    method: Literal["rrf", "weighted"] = "rrf"
    k: Annotated[int, msgspec.Meta(ge=0)] = RRF_K
    normalization: Normalization = MIN_MAX
    weights: tuple[float, ...] = ()
    model: str = ""
    reranker: str = ""
    depth: Annotated[int, msgspec.Meta(ge=1)] = 100
    trained_on: tuple[str, ...] = ()
    licence: str = ""
    citation: str = ""
    source: str = ""
    unverified: tuple[str, ...] = ()
    expected_source: str = ""
    expected: tuple[ExpectedScore, ...] = ()
    warning: str = ""
    missing: str = ""
    max_query_tokens: int = 512
    max_document_tokens: int = 512
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        unknown = set(self.unverified) - set(self.__struct_fields__)
        if unknown:
            raise ValueError(f"unverified names fields that do not exist: {sorted(unknown)}")
        if self.encoder and self.traits.is_network:
            msgspec.structs.force_setattr(self, "kind", "python")
        lengths = self.max_query_tokens, self.max_document_tokens
        if min(lengths) < 1 or max(lengths) > MAX_TOKENS:
            raise ValueError(f"lengths are from 1 to {MAX_TOKENS:,} tokens")
        if not self.missing:
            self._check_usable()
        common = self.expected_source or self.source
        filled = tuple(
            score if score.source else msgspec.structs.replace(score, source=common)
            for score in self.expected
        )
        if not all(score.source for score in filled):
            raise ValueError("expected scores need a source: theirs, expected_source or source")
        msgspec.structs.force_setattr(self, "expected", filled)

    @property
    def pretrained_only(self) -> bool:
        """True if the checkpoint was not trained for retrieval, from the start of its warning."""
        return self.warning.startswith("pre-trained only")

    @property
    def traits(self) -> Kind:
        """Properties of the kind."""
        return KINDS[self.kind]

    @property
    def fusion(self) -> Fusion:
        """How its models are fused."""
        return Fusion(**{name: getattr(self, name) for name in Fusion.__struct_fields__})

    def is_in_domain(self, collection: str) -> bool:
        """Return True if the model was trained on ``collection``, or on its family."""
        return any(f"{collection}/".startswith(f"{name}/") for name in self.trained_on)

    def _check_usable(self) -> None:
        self._check_fields()
        if self.traits.is_network and not self.checkpoint:
            raise ValueError("a transformer needs a checkpoint")
        if self.traits.is_network and self.pooling == "none":
            raise ValueError("a transformer needs a pooling: cls, mean, last or pooler")
        if self.traits.is_network and self.options:
            raise ValueError("options belong to hashing, bm25 and endpoints")
        if self.traits.is_remote:
            self._check_endpoint()
        if self.traits.has_members:
            self._check_members()
        if self.similarity == "cos" and not self.normalize and not self.traits.reads_ids:
            raise ValueError("similarity cos needs normalize = true: scores are inner products")

    def _check_endpoint(self) -> None:
        if not (self.url and self.endpoint_model) or self.connections < 1:
            raise ValueError("an endpoint needs a url, an endpoint_model and connections")
        msgspec.structs.force_setattr(self, "url", normalize_url(self.url))
        self._check_title_join("an endpoint")

    def _check_title_join(self, what: str) -> None:
        if self.title_join not in ("space", "none"):
            raise ValueError(f"title_join of {what} is space or none, not {self.title_join}")

    def _check_members(self) -> None:
        if "reranker" in self.traits.fields:
            if not (self.model and self.reranker):
                raise ValueError("a reranking needs model and reranker: a name of each")
            self._check_title_join("a reranker")
        else:
            if len(self.models) < 2:
                raise ValueError("a fusion needs models: the names of two or more")
            for name, times in Counter(self.models).items():
                if times > 1:
                    raise ValueError(f"models names {name} {times} times")
            self.fusion.check(len(self.models))
        if self.options:
            raise ValueError(f"a {self.kind} card has no options: leave them out")

    def _check_fields(self) -> None:
        """Raise if a field is stated that the kind does not have."""
        known = {"encoder"} if self.encoder else self.traits.fields
        blank = Card(missing="-")
        for name in sorted({name for kind in KINDS.values() for name in kind.fields} - known):
            if getattr(self, name) != getattr(blank, name):
                if self.encoder:
                    raise ValueError(f"{name} cannot be set for {self.name}, whose code decides it")
                kinds = " or ".join(f'"{n}"' for n, kind in KINDS.items() if name in kind.fields)
                where = f'kind = "{self.kind}", which {self.traits.title}'
                raise ValueError(f"{name} does not apply to {where}, but to kind = {kinds}")
        if self.prompts.datasets and not self.traits.is_stated:
            raise ValueError(f'prompts.datasets does not apply to kind = "{self.kind}"')


def normalize_url(url: str) -> str:
    """Return the ``url`` of an endpoint up to ``/v1``.

    Raises:
        ValueError: it is not an HTTP URL, or has a user, password, query or fragment.
    """
    parts = urlsplit(url)
    has_host = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    if not has_host or "@" in parts.netloc or parts.query or parts.fragment:
        example = "http://localhost:8000/v1, and its key in the environment variable BENCH_API_KEY"
        raise ValueError(f"the URL of an endpoint is like {example}")
    path = parts.path.rstrip("/").removesuffix("/embeddings") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"


FILES = TomlFiles("model card", Path(__file__).parent / "cards", Card)


def load_card(name_or_path: str | Path) -> Card:
    """Load a card by its name or ``.toml`` file, and fill in its name and title."""
    card, path = FILES.load(name_or_path), Path(name_or_path)
    in_folder = path.name == CARD_FILE
    name = path.resolve().parent.name if in_folder else path.name.removesuffix(SUFFIX)
    if card.name not in ("", name) and not in_folder:
        rename = f'Write name = "{name}", or rename the file.'
        raise BenchError(f"card {name_or_path} is named {card.name!r}", rename)
    named = card.name or name
    return msgspec.structs.replace(card, name=named, title=card.title or named)


def card_names() -> tuple[str, ...]:
    """Return the names of the built-in cards, sorted."""
    return FILES.names()


def all_cards() -> Mapping[str, Card]:
    """Return all built-in cards by name, sorted."""
    return {name: load_card(name) for name in card_names()}


def make_card(fields: Mapping[str, Any]) -> Card:
    """Return the card with these ``fields``, or raise a `BenchError` if they contradict."""
    try:
        return Card(**fields)
    except ValueError as error:
        raise BenchError(f"{fields['name']}: {error}") from error


def replace_fields(card: Card, changes: Mapping[str, Any]) -> Card:
    """Return ``card`` with ``changes`` in some fields, validated again."""
    return make_card({**msgspec.structs.asdict(card), **changes})


def make_card_like(card: Card, **fields: Any) -> Card:
    """Return a card with other ``fields`` of another checkpoint that is used as ``card`` is."""
    shared = {name: getattr(card, name) for name in ("name", "stages", "prompts", "adapter")}
    return make_card({**card.usage, **shared, **fields})


def write_card(card: Card, folder: Path, checkpoint: str = ".") -> Path:
    """Write the card of a checkpoint and return its path. Fields with default values are omitted.

    The card gets the name of ``folder`` and the path ``checkpoint``, relative to it.
    """
    card = msgspec.structs.replace(card, name=folder.resolve().name, checkpoint=checkpoint)
    with replace_file(folder / CARD_FILE) as file:
        file.write(format_card(card).encode())
    return folder / CARD_FILE


def format_card(card: Card) -> str:
    """Return the TOML of a card. Fields with default values are omitted."""
    blank = msgspec.to_builtins(Card(missing="-")) | {"missing": ""}
    fields = {"name": card.name, "title": card.title, **msgspec.to_builtins(card)}
    changed = {name: value for name, value in fields.items() if value != blank[name]}
    return format_toml(changed)


def format_toml(table: Mapping[str, Any]) -> str:
    """Return the TOML of a table whose keys are plain words, a line each."""
    return "".join(f"{name} = {_format_toml(value)}\n" for name, value in table.items())


def _format_toml(value: Any) -> str:
    """Format a value as inline TOML, whose strings, numbers and booleans are JSON's."""
    if isinstance(value, Mapping):
        pairs = (f"{_format_toml(key)} = {_format_toml(inner)}" for key, inner in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_format_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
