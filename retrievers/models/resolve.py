"""Resolve a model to its recipe and files.

The steps before are `locate` (from a name to a folder), `read_settings`, `read_checkpoint` and
`read_adapter` (what its files state and contain) and `resolve_card`; the step after is
`retrievers.encoders.open`. No model library is imported, so that a run starts at once if all
vectors are stored.
"""

import importlib.util
import logging
from dataclasses import dataclass
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Any, get_args

import msgspec

from foundation.errors import BenchError
from foundation.machine import has_vnni
from foundation.sources import hash_sources
from retrievers.models.card import BRANCH, Card, CardAdapter, replace_fields
from retrievers.models.locate import describe_source, locate_checkpoint
from retrievers.models.read_adapter import (
    Routing,
    adapter_folder,
    identify_adapter,
    read_routing,
)
from retrievers.models.read_checkpoint import (
    Checkpoint,
    Parameters,
    count_file_parameters,
    read_checkpoint,
)
from retrievers.models.read_settings import read_stages, warn_of_contradictions
from retrievers.models.recipe import (
    UNKNOWN_SETTINGS,
    ModelDtype,
    Prompts,
    Recipe,
    StoreDtype,
)
from retrievers.models.resolve_card import resolve_card, with_adapter, with_query_prompt

# Fields of a card's usage that no other kind of encoder heeds.
TRANSFORMER_FIELDS = ("pooling", "segment_ids", "truncation_side", "lower_case")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Model:
    """A resolved model.

    Attributes:
        card: facts stated about the model.
        recipe: everything that determines its vectors.
        document: files of the document encoder; None for models without a checkpoint.
        query: files of a separate query encoder, or None.
        adapter: folder of the adapter to attach, or None.
        routing: routing of its adapters; None if they are not routed.
        allow_unknown_tokens: whether to use it on texts whose tokens it mostly does not know.
    """

    card: Card
    recipe: Recipe
    document: Checkpoint | None = None
    query: Checkpoint | None = None
    adapter: Path | None = None
    routing: Routing | None = None
    allow_unknown_tokens: bool = False

    @property
    def checkpoint(self) -> Checkpoint:
        """Files of the document encoder.

        Raises:
            BenchError: the model has no checkpoint.
        """
        if self.document is None:
            raise BenchError(f"{self.card.name} has no checkpoint")
        return self.document

    def for_dataset(self, name: str) -> "Model":
        """Return this model with the prompts of dataset ``name``."""
        return replace_field(self, recipe=self.recipe.for_dataset(name))

    def check_unchanged(self) -> None:
        """Raise if a file of a checkpoint differs from the one that was hashed.

        Raises:
            BenchError: a file was replaced or modified.
        """
        for checkpoint in filter(None, (self.document, self.query)):
            checkpoint.check_unchanged()

    def with_adapter(self, folder: Path | None) -> "Model":
        """Return this model with the adapter in ``folder`` instead of its own, or with none."""
        recipe = msgspec.structs.replace(
            self.recipe,
            dim=self.recipe.dim // (len(self.routing.adapters) if self.routing else 1),
            normalize=self.card.normalize,
            similarity=self.card.similarity,
            adapter=identify_adapter(folder, self.checkpoint) if folder else None,
        )
        return replace_field(self, recipe=recipe, adapter=folder, routing=None)


def resolve_model(
    model: str,
    *,
    like: str | None = None,
    adapter: str | None = None,
    dtype: ModelDtype | None = None,
    store_dtype: StoreDtype = "float32",
    query_prompt: str | None = None,
    max_query_tokens: int | None = None,
    max_document_tokens: int | None = None,
    allow_unknown_tokens: bool = False,
    trust_code: bool = False,
    endpoint_model: str | None = None,
) -> Model:
    """Find a model and everything that determines its vectors.

    Args:
        model: card's name, ``.toml`` card, folder, Hub id, or URL of an endpoint.
        like: card whose recipe (pooling, prompts, lengths) a plain checkpoint or endpoint is used
            with.
        adapter: folder of an AdapterHub or PEFT adapter to attach. The model's name becomes
            ``NAME+ADAPTER``, and published scores of the base do not apply.
        dtype: replaces the card's; ``int8`` needs a card of float32.
        store_dtype: dtype of stored vectors.
        query_prompt: put before every query, instead of all prompts of the card.
        max_query_tokens: replaces the card's.
        max_document_tokens: replaces the card's.
        allow_unknown_tokens: see `Model`.
        trust_code: allow a card that names a third party's class.
        endpoint_model: name of the model on the endpoint.

    Raises:
        BenchError: there is no such model or dtype, a plain checkpoint is named without ``like``, a
            checkpoint is damaged, has its own code or does not fit the card, or int8 cannot run it.
    """
    if dtype not in (None, *get_args(ModelDtype)):
        raise BenchError(f"unknown dtype {dtype!r}", f"use {', '.join(get_args(ModelDtype))}")
    card, base = resolve_card(model, like, endpoint_model)
    if card.missing:
        raise BenchError(f"{card.name} cannot be used: {card.missing}", card.source)
    changes: dict[str, Any] = {
        "dtype": None if dtype == "int8" else dtype,
        "max_query_tokens": max_query_tokens,
        "max_document_tokens": max_document_tokens,
    }
    if given := {name: value for name, value in changes.items() if value is not None}:
        card = replace_fields(card, given)
    if query_prompt is not None:
        card = with_query_prompt(card, query_prompt)
    if adapter:
        card = with_adapter(card, Path(adapter))
    if card.warning:
        logger.warning("%s: %s", card.name, card.warning)
    resolved = _resolve(card, base, trust_code)
    recipe = msgspec.structs.replace(resolved.recipe, store_dtype=store_dtype)
    if dtype == "int8":
        check_int8(recipe)
        recipe = msgspec.structs.replace(recipe, backend="int8-calibrated")
    return replace_field(resolved, recipe=recipe, allow_unknown_tokens=allow_unknown_tokens)


def _resolve(card: Card, base: Path, trust_code: bool) -> Model:
    if card.encoder:
        return Model(card, _third_party_recipe(card, trust_code))
    if card.kind == "endpoint":
        return resolve_endpoint(card)
    if card.kind != "transformer":
        return Model(card, _plain_recipe(card))
    return _resolve_transformer(card, base)


def _resolve_transformer(card: Card, base: Path) -> Model:
    """Resolve the checkpoints and the adapter of a card.

    Raises:
        BenchError: they are missing or damaged, or do not fit the card.
    """
    folders = [stage.folder for stage in card.stages if stage.folder]
    document = read_checkpoint(
        locate_checkpoint(
            card.checkpoint, card.revision, base=base, package=card.package, sha=card.weights_sha256
        ),
        folders,
    )
    query = None
    if card.query_checkpoint:
        root = locate_checkpoint(card.query_checkpoint, card.query_revision, base=base)
        query = read_checkpoint(root, folders)
    if card.weights_sha256 not in ("", document.weights_sha256):
        raise BenchError(
            f"{document.folder / document.weights} is not the checkpoint of {card.name}: sha256 "
            f"{document.weights_sha256}, not {card.weights_sha256}",
            f"To use another checkpoint, name its folder, {document.root}, and add "
            f"--like {card.name}.",
        )
    _check_length(card, card.max_document_tokens, document)
    _check_length(card, card.max_query_tokens, query or document)
    for checkpoint in filter(None, (document, query)):
        warn_of_contradictions(card, checkpoint.root, checkpoint.folder)
    model = Model(card, _transformer_recipe(card, base, document, query), document, query)
    return _attach_adapter(model, card.adapter, base) if card.adapter else model


def _attach_adapter(model: Model, adapter: CardAdapter, base: Path) -> Model:
    """Return the model with an adapter, whose folder is relative to ``base``."""
    folder = adapter_folder(adapter, base)
    if model.query is not None:
        raise BenchError(f"{model.card.name} has two encoders: an adapter for both is unsupported")
    identity = identify_adapter(folder, model.checkpoint, adapter.kind)
    recipe, routing = msgspec.structs.replace(model.recipe, adapter=identity), read_routing(folder)
    if routing is not None:
        dim = len(routing.adapters) * recipe.dim
        recipe = msgspec.structs.replace(recipe, dim=dim, normalize=False, similarity="dot")
    return replace_field(model, recipe=recipe, adapter=folder, routing=routing)


def _check_length(card: Card, length: int, checkpoint: Checkpoint) -> None:
    """Raise if a checkpoint has too few positions for inputs of ``length`` tokens."""
    limit = checkpoint.position_limit
    if limit is not None and length > limit:
        raise BenchError(
            f"{card.name}: inputs of {length} tokens do not fit {checkpoint.folder}, "
            f"which has positions for {limit}",
            f"set max_query_tokens and max_document_tokens to at most {limit}",
        )


def _transformer_recipe(
    card: Card, base: Path, document: Checkpoint, query: Checkpoint | None
) -> Recipe:
    name, revision = describe_source(card.checkpoint, card.revision, base, document)
    query_name, query_revision = "", ""
    if query is not None:
        query_name, query_revision = describe_source(
            card.query_checkpoint, card.query_revision, base, query
        )
    width = document.hidden_width
    stages = read_stages(card.stages, document.root, width)
    return Recipe(
        model=card.name,
        kind="transformer",
        dim=stages[-1].width if stages else width,
        checkpoint=name,
        revision=revision,
        query_checkpoint=query_name,
        query_revision=query_revision,
        files=dict(document.hashes),
        query_files=dict(query.hashes) if query else {},
        stages=stages,
        **_prompt_fields(card),
        **card.usage,
    )


def _prompt_fields(card: Card) -> dict[str, Any]:
    return {
        "prompts": Prompts(query=card.prompts.query, document=card.prompts.document),
        "dataset_prompts": dict(card.prompts.datasets),
    }


def _plain_recipe(card: Card) -> Recipe:
    """Return the recipe of a model without a checkpoint, which its options determine."""
    dim = card.options.get("dim", 0)
    if not isinstance(dim, int) or dim < (1 if card.kind == "hashing" else 0):
        raise BenchError(
            f"card {card.name}: options.dim is the dimension of its vectors, 1 or more"
        )
    usage = {name: value for name, value in card.usage.items() if name not in TRANSFORMER_FIELDS}
    return Recipe(
        model=card.name,
        kind=card.kind,
        dim=dim,
        checkpoint=card.checkpoint,
        revision=card.revision if card.checkpoint else "",
        options=dict(card.options),
        **_prompt_fields(card),
        **usage,
    )


def resolve_endpoint(card: Card) -> Model:
    """Resolve a model behind a URL. Its dimension is 0 unless ``card`` states it."""
    address = {"endpoint": card.url.partition("://")[2], "endpoint_model": card.endpoint_model}
    recipe = msgspec.structs.replace(
        _plain_recipe(card),
        dim=card.dim,
        revision="" if card.revision == BRANCH else card.revision,
        options={**address, **card.options},
        **UNKNOWN_SETTINGS,
    )
    return Model(card, recipe)


def _third_party_recipe(card: Card, trust_code: bool) -> Recipe:
    if not trust_code:
        raise BenchError(
            f"{card.name} runs {card.encoder}, which is not part of this project",
            "Read its code, then allow it with --trust-code.",
        )
    recipe = _plain_recipe(card)
    if recipe.dim < 1:
        raise BenchError(f"card {card.name}: options.dim, the dimension of its vectors, is missing")
    module = card.encoder.partition(":")[0]
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # not a name, or the package around it is absent or cannot be imported
        spec = None
    if spec is None or spec.origin is None:
        raise BenchError(f"card {card.name}: there is no module {module!r}", "install it")
    return msgspec.structs.replace(recipe, encoder=card.encoder, files=hash_sources(module))


def count_parameters(model: Model) -> Parameters | None:
    """Count the parameters of a resolved model.

    None if a class or object does not state them. Pre-training heads and buffers of positions are
    not counted. A pooler is, as in published sizes of BERT.

    Args:
        model: resolved model.

    Raises:
        BenchError: a file is damaged or holds more than tensors.
    """
    if model.recipe.encoder:
        return None
    if model.recipe.kind in ("python", "endpoint"):
        return Parameters(model.card.parameters) if model.card.parameters else None
    towers = [tower for tower in (model.document, model.query) if tower is not None]
    network = sum(
        count_file_parameters(tower.root / name) for tower in towers for name in tower.hashes
    )
    identity, folder = model.recipe.adapter, model.adapter
    files = [folder / name for name in identity.files] if identity and folder else []
    adapter = sum(map(count_file_parameters, files))
    return Parameters(network + adapter, adapter)


def check_int8(recipe: Recipe) -> None:
    """Raise if the model of ``recipe`` cannot run in int8 here.

    Raises:
        BenchError: its kind, adapter, dtype, pooling or this processor prevents it.
    """
    none = recipe.kind != "transformer" or bool(recipe.encoder)
    problems = {
        f"{recipe.model} is not a transformer that int8 can run": none,
        "int8 does not support adapters": recipe.adapter is not None,
        f"int8 needs float32 weights, not {recipe.dtype}": recipe.dtype != "float32",
        "int8 overflows on this CPU (no VNNI)": (not has_vnni()),
    }
    for problem, is_one in problems.items():
        if is_one:
            raise BenchError(problem, "Leave out --dtype int8.")
