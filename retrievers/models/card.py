"""Model cards: strict TOML files with what is stated about a model.

A card states how text becomes a vector (checkpoint, pooling, prompts, lengths), the model's
training data, and published scores with their sources.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from foundation.errors import BenchError
from foundation.files import replace_file
from foundation.records import SUFFIX, Record, TomlFiles
from retrievers.models.recipe import AdapterKind, Dtype, Option, Pooling, Prompts, StageKind, Usage

# Settings of a model behind a URL that the client applies. The server decides the rest of `Usage`.
CLIENT_DECIDES = ("prompts", "title_join", "normalize", "similarity")
NETWORK_FIELDS = ("checkpoint", "query_checkpoint", "stages", "adapter", "encoder")
BRANCH = "main"  # default revision of a repository on the Hub
MAX_TOKENS = 1_000_000  # beyond any architecture
MAX_TOLERANCE = 0.05  # the rounding of a score with a single digit

CARD_FILE = "card.toml"  # in the folder of a checkpoint trained here


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


class Card(Usage, kw_only=True):
    """Everything that is stated about one model.

    Attributes:
        name: name that users type: the file's, or for ``card.toml`` its folder's.
        title: name in tables.
        parameters: approximate number for display, of both encoders of an untied model; 0 if not
            stated. Results contain the number counted in the checkpoint.
        dim: dimension of the vectors for display; 0 if not stated.
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
        encoder: class of a third party as ``package.module:Class``.
        url: address of an endpoint up to ``/v1``, without user, password and query.
        endpoint_model: name of the model on the endpoint.
        connections: requests to an endpoint at a time.
        options: settings of an encoder that is not a transformer. For an endpoint, further fields
            of each request; ``query.NAME`` and ``document.NAME`` are fields in one role.
        trained_on: datasets or suites whose scores are in-domain for this model.
        licence, citation, source: licence of the weights, paper, and page of the model.
        unverified: names of fields that were not read in a first-party source.
        expected_source: source of expected scores without their own; empty for ``source``. It is
            filled in at each score when a card is read.
        expected: published scores.
        warning: shown when the model is used, such as "pre-trained only".
        missing: information that nobody published; such a card cannot be used.
    """

    name: str
    title: str
    parameters: int = 0
    dim: int = 0
    kind: Literal["transformer", "hashing", "bm25", "python", "endpoint"] = "transformer"
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

    def _check_usable(self) -> None:
        transformer = self.kind == "transformer" and not self.encoder
        if transformer and not self.checkpoint:
            raise ValueError("a transformer needs a checkpoint")
        if transformer and self.pooling == "none":
            raise ValueError("a transformer needs a pooling: cls, mean, last or pooler")
        if transformer and self.options:
            raise ValueError("options belong to hashing, bm25, endpoints and third-party encoders")
        if self.kind == "endpoint":
            self._check_endpoint()
        elif self.url or self.endpoint_model:
            raise ValueError('url and endpoint_model belong to kind = "endpoint"')
        if self.similarity == "cos" and not self.normalize and self.kind != "bm25":
            raise ValueError("similarity cos needs normalize = true: scores are inner products")

    def _check_endpoint(self) -> None:
        if not (self.url and self.endpoint_model) or self.connections < 1:
            raise ValueError("an endpoint needs a url, an endpoint_model and connections")
        msgspec.structs.force_setattr(self, "url", normalize_url(self.url))
        if self.title_join not in ("space", "none"):
            raise ValueError(f"title_join of an endpoint is space or none, not {self.title_join}")
        defaults = {field.name: field.default for field in msgspec.structs.fields(self)}
        for name in sorted({*Usage.__struct_fields__, *NETWORK_FIELDS} - {*CLIENT_DECIDES}):
            if getattr(self, name) != defaults[name]:
                raise ValueError(f"the server of an endpoint decides its {name}: leave {name} out")


def normalize_url(url: str) -> str:
    """Return the ``url`` of an endpoint up to ``/v1``.

    Raises:
        ValueError: it is not an HTTP URL, or has a user, password, query or fragment.
    """
    parts = urlsplit(url)
    has_host = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    if not has_host or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "the URL of an endpoint is like http://localhost:8000/v1, without user, password and "
            "query: put the key into the environment variable BENCH_API_KEY"
        )
    path = parts.path.rstrip("/").removesuffix("/embeddings") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"


FILES = TomlFiles("model card", Path(__file__).parent / "cards", Card)


def load_card(name_or_path: str | Path) -> Card:
    """Load a card by its name or ``.toml`` file.

    Raises:
        BenchError: there is no such card, it is not TOML, or a key or value is not valid.
    """
    card = FILES.load(name_or_path)
    file = Path(name_or_path).name
    name = file.removesuffix(SUFFIX)
    if card.name != name and file != CARD_FILE:  # which has the name of its folder
        raise BenchError(
            f"card {name_or_path} is named {card.name!r}",
            f'write name = "{name}", or rename the file',
        )
    return card


def card_names() -> tuple[str, ...]:
    """Return the names of the built-in cards, sorted."""
    return FILES.names()


def all_cards() -> Mapping[str, Card]:
    """Return all built-in cards by name, sorted."""
    return {name: load_card(name) for name in card_names()}


def replace_fields(card: Card, changes: Mapping[str, Any]) -> Card:
    """Return ``card`` with ``changes`` in some fields, validated again.

    Raises:
        BenchError: the card contradicts itself.
    """
    try:
        return msgspec.structs.replace(card, **changes)
    except ValueError as error:
        raise BenchError(f"{card.name}: {error}") from error


def make_card_like(card: Card, **fields: Any) -> Card:
    """Return a card with other ``fields`` of another checkpoint that is used as ``card`` is."""
    shared = {name: getattr(card, name) for name in ("name", "stages", "prompts", "adapter")}
    try:
        return Card(**{**card.usage, **shared, **fields})
    except ValueError as error:
        raise BenchError(f"{card.name}: {error}") from error


def write_card(card: Card, folder: Path, checkpoint: str = ".") -> Path:
    """Write the card of a checkpoint and return its path. Fields with default values are omitted.

    Args:
        card: its name and checkpoint are replaced.
        folder: folder to write to, whose name the card gets.
        checkpoint: path of the checkpoint, relative to the folder.
    """
    card = msgspec.structs.replace(card, name=folder.resolve().name, checkpoint=checkpoint)
    blank = msgspec.to_builtins(Card(name="", title="", missing="-")) | {"missing": ""}
    fields = {"name": card.name, "title": card.title, **msgspec.to_builtins(card)}
    with replace_file(folder / CARD_FILE) as file:
        for field, value in fields.items():
            if value != blank[field]:
                file.write(f"{field} = {_format_toml(value)}\n".encode())
    return folder / CARD_FILE


def _format_toml(value: Any) -> str:
    """Format a value as inline TOML, whose strings, numbers and booleans are JSON's."""
    if isinstance(value, Mapping):
        pairs = (f"{_format_toml(key)} = {_format_toml(inner)}" for key, inner in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_format_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
