"""Resolve a model to its recipe and files.

This hashes files and reads JSON. It imports no model library, so that a run starts at once if all
vectors are stored.
"""

import copy
import importlib.util
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as replace_field
from math import prod
from pathlib import Path
from typing import Any, get_args

import msgspec

from foundation.errors import BenchError
from foundation.files import sha256_of_file
from foundation.machine import cpu_instructions
from retrievers.models.card import BRANCH, Card, CardAdapter, CardStage, replace_fields
from retrievers.models.checkpoint import (
    HEAD_WEIGHTS,
    Checkpoint,
    Parameters,
    open_checkpoint,
    read_safetensors_header,
    resolve_inside,
)
from retrievers.models.locate import describe_source, find_card, find_local, locate_checkpoint
from retrievers.models.read_adapter import (
    Routing,
    adapter_folder,
    adapter_name,
    identify_adapter,
    read_routing,
)
from retrievers.models.recipe import (
    UNKNOWN_SETTINGS,
    ModelDtype,
    Prompts,
    Recipe,
    Stage,
    StoreDtype,
)
from retrievers.models.st_folder import (
    find_transformer,
    is_st_folder,
    read_st_folder,
    read_stage_file,
    read_tokenizer_facts,
)

VNNI = {"avx512_vnni", "avx_vnni"}
BUFFER_DTYPES = ("I64", "I32", "BOOL")  # safetensors types of buffers such as positions
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
    """

    card: Card
    recipe: Recipe
    document: Checkpoint | None = None
    query: Checkpoint | None = None
    adapter: Path | None = None

    def for_dataset(self, name: str) -> "Model":
        """Return this model with the prompts of dataset ``name``."""
        return replace_field(self, recipe=self.recipe.for_dataset(name))

    @property
    def routing(self) -> Routing | None:
        """Routing of its adapters.

        None if they are not routed.
        """
        return read_routing(self.adapter) if self.adapter is not None else None

    def check_unchanged(self) -> None:
        """Raise if a file of a checkpoint differs from the one that was hashed.

        Raises:
            BenchError: a file was replaced or modified.
        """
        for checkpoint in filter(None, (self.document, self.query)):
            checkpoint.check_unchanged()

    def with_adapter(self, folder: Path | None) -> "Model":
        """Return this model with the adapter in ``folder`` instead of its routing, or with none."""
        if self.routing is None or self.document is None:
            raise ValueError(f"{self.card.name} has no routed adapters")
        recipe = msgspec.structs.replace(
            self.recipe,
            dim=self.recipe.dim // len(self.routing.adapters),
            normalize=self.card.normalize,
            similarity=self.card.similarity,
            adapter=identify_adapter(folder, None, self.document) if folder else None,
        )
        return replace_field(self, recipe=recipe, adapter=folder)


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
        trust_code: allow a card that names a third party's class.
        endpoint_model: name of the model on the endpoint.

    Raises:
        BenchError: there is no such model or dtype, a plain checkpoint is named without ``like``, a
            checkpoint is damaged, has its own code or does not fit the card, or int8 cannot run it.
    """
    if dtype not in (None, *get_args(ModelDtype)):
        raise BenchError(f"unknown dtype {dtype!r}", f"use {', '.join(get_args(ModelDtype))}")
    card, base = find_card(model, like, endpoint_model)
    if card.missing:
        raise BenchError(f"{card.name} cannot be used: {card.missing}", card.source)
    changes: dict[str, Any] = {
        "dtype": None if dtype == "int8" else dtype,
        "max_query_tokens": max_query_tokens,
        "max_document_tokens": max_document_tokens,
    }
    if adapter and (card.kind != "transformer" or card.encoder):
        raise BenchError(
            f"{card.name} is not a transformer, so no adapter can be attached",
            "Leave out --adapter, or name the model that it was trained on.",
        )
    card = replace_fields(
        card, {name: value for name, value in changes.items() if value is not None}
    )
    if query_prompt is not None:
        card = _with_query_prompt(card, query_prompt)
    if adapter:
        card = _add_adapter(card, Path(adapter))
    if card.warning:
        logger.warning("%s: %s", card.name, card.warning)
    resolved = _resolve(card, base, trust_code)
    recipe = msgspec.structs.replace(resolved.recipe, store_dtype=store_dtype)
    if dtype == "int8":
        check_int8(recipe)
        recipe = msgspec.structs.replace(recipe, backend="int8-calibrated")
    return replace_field(resolved, recipe=recipe)


def find_base(model: Model) -> Model | None:
    """Return ``model`` with the weights that it was trained from, if they are on this machine.

    The checkpoint's README names its base as ``base_model``, or its configuration as
    ``_name_or_path``. Nothing is downloaded. A model with layers after pooling has no base.
    """
    if model.document is None or model.recipe.stages:
        return None
    readme = model.document.root / "README.md"
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    named = re.findall(r"^base_model:\s+(?:- )?(\S+)$", text, re.MULTILINE)
    for name in filter(None, (*named, str(model.document.config.get("_name_or_path", "")))):
        root = Path(name) if Path(name).is_dir() else find_local(name, BRANCH)
        with suppress(BenchError):
            if root and not root.samefile(model.document.root):
                document = open_checkpoint(root, _inner_folder(root))
                card = replace_fields(model.card, {"name": Path(name).name})
                return replace_field(model, card=card, document=document, query=None, adapter=None)
    return None


def _with_query_prompt(card: Card, text: str) -> Card:
    """Return the card with one prompt for the queries of all datasets.

    Raises:
        BenchError: the model reads no prompts.
    """
    if card.kind == "bm25":
        raise BenchError(f"{card.name} puts no prompt before queries", "Leave out query_prompt.")
    datasets = {
        name: Prompts(query=text, document=prompts.document)
        for name, prompts in card.prompts.datasets.items()
    }
    prompts = msgspec.structs.replace(card.prompts, query=text, datasets=datasets)
    return replace_fields(card, {"prompts": prompts, "expected": ()})


def _add_adapter(card: Card, folder: Path) -> Card:
    """Return the card of a base with an adapter attached."""
    name = adapter_name(folder)
    return replace_fields(
        card,
        {
            "name": f"{card.name}+{name}",
            "title": f"{card.title}, with the adapter {name}",
            "adapter": CardAdapter(path=str(folder.resolve())),
            "expected": (),
        },
    )


def _resolve(card: Card, base: Path, trust_code: bool) -> Model:
    if card.encoder:
        return Model(card, _third_party_recipe(card, trust_code))
    if card.kind == "endpoint":
        return resolve_endpoint(card)
    if card.kind != "transformer":
        return Model(card, _plain_recipe(card))
    return _resolve_transformer(card, base)


def _resolve_transformer(card: Card, base: Path) -> Model:
    folders = [stage.folder for stage in card.stages if stage.folder]
    root = locate_checkpoint(
        card.checkpoint, card.revision, base=base, package=card.package, sha=card.weights_sha256
    )
    document = open_checkpoint(root, _inner_folder(root), folders)
    query = None
    if card.query_checkpoint:
        query_root = locate_checkpoint(card.query_checkpoint, card.query_revision, base=base)
        query = open_checkpoint(query_root, _inner_folder(query_root), folders)
    if card.weights_sha256 not in ("", document.weights_sha256):
        raise BenchError(
            f"{document.folder / document.weights} is not the checkpoint of {card.name}: sha256 "
            f"{document.weights_sha256}, not {card.weights_sha256}",
            f"To use another checkpoint, name its folder, {root}, and add --like {card.name}.",
        )
    _check_fit(card, document, query)
    adapter = adapter_folder(card.adapter, base) if card.adapter else None
    if adapter is not None and query is not None:
        raise BenchError(f"{card.name} has two encoders: an adapter for both is unsupported")
    recipe = _transformer_recipe(card, base, document, query, adapter)
    routing = read_routing(adapter) if adapter else None
    if routing is not None:
        dim = len(routing.adapters) * recipe.dim
        recipe = msgspec.structs.replace(recipe, dim=dim, normalize=False, similarity="dot")
    return Model(card, recipe, document, query, adapter)


def _inner_folder(root: Path) -> str:
    """Return the transformer's path in its folder.

    Old sentence-transformers folders nest it.
    """
    in_root = (root / "config.json").exists() or not is_st_folder(root)
    return "" if in_root else find_transformer(root)


def _check_fit(card: Card, document: Checkpoint, query: Checkpoint | None) -> None:
    lengths = ((card.max_document_tokens, document), (card.max_query_tokens, query or document))
    for length, checkpoint in lengths:
        limit = checkpoint.position_limit
        if limit is not None and length > limit:
            raise BenchError(
                f"{card.name}: inputs of {length} tokens do not fit {checkpoint.folder}, "
                f"which has positions for {limit}",
                f"set max_query_tokens and max_document_tokens to at most {limit}",
            )
    for checkpoint in filter(None, (document, query)):
        for field, stated in _find_contradictions(card, checkpoint).items():
            used = getattr(card, field)
            logger.warning("%s states %s %s, but %s is used", checkpoint.root, field, stated, used)


def _find_contradictions(card: Card, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return settings in a checkpoint's files that differ from its card, which takes precedence."""
    stated: dict[str, Any] = {
        "truncation_side": read_tokenizer_facts(checkpoint.folder).truncation_side
    }
    if is_st_folder(checkpoint.root):
        try:
            usage = read_st_folder(checkpoint.root).usage
            stated |= {"pooling": usage.pooling, "lower_case": usage.lower_case or card.lower_case}
        except BenchError as error:
            logger.warning("ignored: %s", error)
    return {field: value for field, value in stated.items() if getattr(card, field) != value}


def _transformer_recipe(
    card: Card, base: Path, document: Checkpoint, query: Checkpoint | None, adapter: Path | None
) -> Recipe:
    name, revision = describe_source(card.checkpoint, card.revision, base, document)
    query_name, query_revision = (
        describe_source(card.query_checkpoint, card.query_revision, base, query)
        if query
        else ("", "")
    )
    stages = _resolve_stages(card.stages, document)
    return Recipe(
        model=card.name,
        kind="transformer",
        dim=stages[-1].width if stages else document.hidden_width,
        checkpoint=name,
        revision=revision,
        query_checkpoint=query_name,
        query_revision=query_revision,
        files=dict(document.hashes),
        query_files=dict(query.hashes) if query else {},
        stages=stages,
        adapter=identify_adapter(adapter, card.adapter, document) if adapter else None,
        **_prompt_fields(card),
        **card.usage,
    )


def _prompt_fields(card: Card) -> dict[str, Any]:
    return {
        "prompts": Prompts(query=card.prompts.query, document=card.prompts.document),
        "dataset_prompts": dict(card.prompts.datasets),
    }


def _resolve_stages(stages: tuple[CardStage, ...], checkpoint: Checkpoint) -> tuple[Stage, ...]:
    resolved: list[Stage] = []
    for stage in stages:
        width = resolved[-1].width if resolved else checkpoint.hidden_width
        resolved.append(_resolve_stage(stage, checkpoint, width))
    return tuple(resolved)


def _resolve_stage(stage: CardStage, checkpoint: Checkpoint, width: int) -> Stage:
    if stage.key:
        return Stage(stage.kind, f"key:{stage.key}", stage.width or width, eps=stage.eps)
    folder = resolve_inside(checkpoint.root, stage.folder)
    config = read_stage_file(folder)
    dense = stage.kind == "dense"
    stated = config.out_features if dense else config.dimension
    if stated is None:
        key = "out_features" if dense else "dimension"
        raise BenchError(f"{folder / 'config.json'} states no {key}")
    activation = config.activation if dense else "identity"
    return Stage(stage.kind, f"folder:{stage.folder}", stated, activation, stage.eps)


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
    source = Path(spec.origin)
    files = {source.name: sha256_of_file(source)}
    return msgspec.structs.replace(recipe, encoder=card.encoder, files=files)


def count_parameters(model: Model) -> Parameters | None:
    """Count the parameters of a resolved model.

    None if a class or object does not state them. Pre-training heads and buffers of positions are
    not counted. A pooler is, as in published sizes of BERT. Safetensors headers suffice; a pickle
    is opened with torch, restricted to tensors.

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
    network = sum(_count_file(tower.root / name) for tower in towers for name in tower.hashes)
    identity, folder = model.recipe.adapter, model.adapter
    files = [folder / name for name in identity.files] if identity and folder else []
    adapter = sum(map(_count_file, files))
    return Parameters(network + adapter, adapter)


def _count_file(path: Path) -> int:
    if path.suffix == ".safetensors":
        return sum(_safetensors_sizes(path))
    return sum(_pickle_sizes(path)) if path.suffix == ".bin" else 0


def _safetensors_sizes(path: Path) -> Iterator[int]:
    for name, tensor in read_safetensors_header(path).items():
        if tensor.dtype not in BUFFER_DTYPES and not HEAD_WEIGHTS.search(name):
            yield prod(tensor.shape)


def _pickle_sizes(path: Path) -> Iterator[int]:
    """Yield the size of each tensor of a pickle, once if it has several names."""
    from retrievers.models.loading import load_tensors

    seen = set()
    for name, tensor in load_tensors(path).items():
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape)
        if tensor.is_floating_point() and place not in seen and not HEAD_WEIGHTS.search(name):
            seen.add(place)
            yield tensor.numel()


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


def has_vnni() -> bool:
    """Return whether 8-bit products are known to be summed without saturation.

    False if the processor does not tell, or oneDNN is restricted to fewer instructions.
    """
    return bool(VNNI & cpu_instructions()) and "ONEDNN_MAX_CPU_ISA" not in os.environ


class SharedNetworks:
    """Loaded networks that the encoders of several adapters share.

    Each encoder gets its own modules with the parameter tensors of the base: an adapter attached to
    one does not affect the others, and the base is in memory once. Weights must not be changed.
    """

    def __init__(self) -> None:
        self._loaded: dict[tuple[Path, str, str, bool], Any] = {}

    def network(self, checkpoint: Checkpoint, recipe: Recipe) -> Any:
        """Return the transformer of ``checkpoint`` for ``recipe``, with shared parameters."""
        from retrievers.models.loading import load_network

        pooler = recipe.pooling == "pooler"
        key = (checkpoint.folder, checkpoint.weights_sha256, recipe.dtype, pooler)
        if key not in self._loaded:
            self._loaded[key] = load_network(checkpoint, recipe)
        network = self._loaded[key]
        shared = [*network.parameters(), *network.buffers()]
        return copy.deepcopy(network, {id(tensor): tensor for tensor in shared})
