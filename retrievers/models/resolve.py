"""Resolve a model: its card, its recipe and its files, without a model library and weights."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Any, Literal

import msgspec

from foundation.errors import BenchError
from foundation.machine import has_vnni, library_version
from foundation.sources import SUFFIX, hash_sources, run_file
from retrievers.models.adapter_files import (
    Routing,
    adapter_folder,
    adapter_name,
    identify_adapter,
    read_routing,
)
from retrievers.models.card import (
    BRANCH,
    AdapterKind,
    Card,
    CardAdapter,
    Option,
    Prompts,
    Recipe,
    replace_fields,
)
from retrievers.models.checkpoint import Checkpoint, Parameters, count_file_parameters
from retrievers.models.folder import ModelFolder
from retrievers.models.kinds import KindName
from retrievers.models.locate import locate_card, locate_checkpoint
from retrievers.models.names import PYTHON_FILE, anchor_members, resolve_card
from retrievers.models.settings import SOURCES, ModelSettings

TRUST = "Read its code, then allow it with --trust-code."
LIBRARIES = ("sentence-transformers", "transformers")

CARD_DECIDES = ModelSettings()

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Model:
    """A resolved model.

    Attributes:
        card: settings stated about the model.
        recipe: everything that determines its vectors.
        document: files of the document encoder; None for models without a checkpoint.
        query: files of a separate query encoder, or None.
        adapter: folder of the adapter to attach, or None.
        routing: routing of its adapters; None if they are not routed.
        allow_unknown_tokens: whether to use it on texts whose tokens it mostly does not know.
        members: models whose rankings it fuses or reranks.
    """

    card: Card
    recipe: Recipe
    document: Checkpoint | None = None
    query: Checkpoint | None = None
    adapter: Path | None = None
    routing: Routing | None = None
    allow_unknown_tokens: bool = False
    members: tuple["Model", ...] = ()

    @property
    def checkpoint(self) -> Checkpoint:
        """Files of the document encoder; raises if there is no checkpoint."""
        if self.document is None:
            raise BenchError(f"{self.card.name} has no checkpoint")
        return self.document

    def for_dataset(self, name: str) -> "Model":
        """Return this model with the prompts of dataset ``name``."""
        members = tuple(member.for_dataset(name) for member in self.members)
        return replace_field(self, recipe=self.recipe.for_dataset(name), members=members)

    def check_unchanged(self) -> None:
        """Raise if a file of a checkpoint differs from the one that was hashed."""
        for checkpoint in filter(None, (self.document, self.query)):
            checkpoint.check_unchanged()

    def with_adapter(
        self, folder: Path | None, kind: AdapterKind | Literal["auto"] = "auto"
    ) -> "Model":
        """Return this model with the adapter in ``folder`` instead of its own, or with none."""
        routing = read_routing(folder) if folder else None
        blocks, before = (len(each.adapters) if each else 1 for each in (routing, self.routing))
        recipe = msgspec.structs.replace(
            self.recipe,
            dim=self.recipe.dim // before * blocks,
            normalize=self.card.normalize and routing is None,
            similarity="dot" if routing else self.card.similarity,
            adapter=identify_adapter(folder, self.checkpoint, kind) if folder else None,
        )
        return replace_field(self, recipe=recipe, adapter=folder, routing=routing)


def resolve_model(
    model: str, settings: ModelSettings = CARD_DECIDES, fused_in: tuple[str, ...] = ()
) -> Model:
    """Find a model and everything that determines its vectors.

    Args:
        model: card's name, ``.toml`` card, folder, Hub id, URL of an endpoint, or
            ``path/to/file.py:Name`` for a class, function or object in a file of Python code, which
            needs ``trust_code``.
        settings: replace those of the card.
        fused_in: fusions and rerankings that the model is a member of, from the outermost.

    Raises:
        BenchError: there is no such model or dtype, a plain checkpoint is named without ``like``, a
            checkpoint is damaged, has its own code or does not fit the card, or int8 cannot run it.
    """
    if model in fused_in:
        raise BenchError(f"{model} is a member of itself: {' > '.join((*fused_in, model))}")
    card, base = resolve_card(model, settings.like, settings.endpoint_model)
    return resolve_stated(card, base, settings, (*fused_in, model))


def resolve_stated(
    card: Card, base: Path, settings: ModelSettings = CARD_DECIDES, fused_in: tuple[str, ...] = ()
) -> Model:
    """Resolve a card, whose paths are relative to ``base``, as `resolve_model` does a name."""
    if card.missing:
        raise BenchError(f"{card.name} cannot be used: {card.missing}", card.source)
    card = _apply_settings(card, settings)
    if card.warning:
        logger.warning("%s: %s", card.name, card.warning)
    resolved = resolve_kind(card, base, settings.trust_code)
    if settings.dtype == "int8":
        _check_int8(resolved.recipe)
    recipe = msgspec.structs.replace(
        resolved.recipe,
        store_dtype=settings.store_dtype,
        compression=settings.compression(card.dimensions),
        backend="int8-calibrated" if settings.dtype == "int8" else "torch",
    )
    resolved = replace_field(
        resolved, recipe=recipe, allow_unknown_tokens=settings.allow_unknown_tokens
    )
    if not card.traits.has_members:
        return resolved
    within = ModelSettings(
        allow_unknown_tokens=settings.allow_unknown_tokens, trust_code=settings.trust_code
    )
    anchored = anchor_members(card, base)
    names = anchored.models or (anchored.model,)
    members = [resolve_model(name, within, fused_in) for name in names]
    return _with_members(resolved, members)


def _apply_settings(card: Card, settings: ModelSettings) -> Card:
    """Return a card with other settings. Raise if its kind does not honour one of them."""
    given = settings.changed
    card.traits.check_options(card.name, given.keys() - {*SOURCES, "allow_unknown_tokens"})
    names = {"max_query_tokens", "max_document_tokens"}
    names |= {"dtype"} if settings.dtype != "int8" else set()
    changes = {name: given[name] for name in names & given.keys()}
    card = replace_fields(card, changes)
    if settings.query_prompt is not None:
        card = with_query_prompt(card, settings.query_prompt)
    if settings.adapter:
        folder = Path(settings.adapter)
        name = adapter_name(folder)
        named = {"name": f"{card.name}+{name}", "title": f"{card.title}, with the adapter {name}"}
        adapter = CardAdapter(path=str(folder.resolve()))
        card = replace_fields(card, {**named, "adapter": adapter, "expected": ()})
    return card


def _with_members(model: Model, members: Sequence[Model]) -> Model:
    """Return the model of ``members``, in whose training data it is in-domain."""
    for name, times in Counter(member.card.name for member in members).items():
        if times > 1:
            raise BenchError(
                f"{model.card.name}: {times} of its models are called {name}",
                "Give each model of a fusion once, and different models different names.",
            )
    trained_on = dict.fromkeys(name for member in members for name in member.card.trained_on)
    card = replace_fields(model.card, {"trained_on": tuple(trained_on)})
    return replace_field(model, card=card, members=tuple(members))


def resolve_kind(card: Card, base: Path, trust_code: bool = False) -> Model:
    """Resolve a card, whose paths are relative to ``base``, by its kind."""
    resolve = _resolve_code if card.encoder else RESOLVERS.get(card.kind)
    return resolve(card, base, trust_code) if resolve else Model(card, _make_recipe(card))


def with_query_prompt(card: Card, text: str) -> Card:
    """Return the card with one prompt for the queries of all datasets."""
    datasets = {
        name: Prompts(query=text, document=prompts.document)
        for name, prompts in card.prompts.datasets.items()
    }
    prompts = msgspec.structs.replace(card.prompts, query=text, datasets=datasets)
    return replace_fields(card, {"prompts": prompts, "expected": ()})


def _resolve_transformer(card: Card, base: Path, _: bool) -> Model:
    """Resolve the checkpoints and the adapter of a transformer."""
    folders = [locate_card(card, base)]
    if card.query_checkpoint:
        folders += [locate_checkpoint(card.query_checkpoint, card.query_revision, base=base)]
    stages = [stage.folder for stage in card.stages if stage.folder]
    towers = [Checkpoint.of_network(folder, stages) for folder in folders]
    document, query = towers[0], towers[1] if card.query_checkpoint else None
    if card.weights_sha256 not in ("", document.weights_sha256):
        raise BenchError(
            f"{document.folder / document.weights} is not the checkpoint of {card.name}: sha256 "
            f"{document.weights_sha256}, not {card.weights_sha256}",
            f"To use it anyway: {document.root} --like {card.name}",
        )
    _check_length(card, card.max_document_tokens, document)
    _check_length(card, card.max_query_tokens, query or document)
    for folder in folders:
        folder.warn_of_contradictions(card)
    width = document.hidden_width
    layers = folders[0].read_stages(card.stages, width)
    fields: dict[str, Any] = {"stages": layers, "dim": layers[-1].width if layers else width}
    fields |= _describe_source(folders[0], document)
    if query is not None:
        source = _describe_source(folders[1], query)
        fields |= {f"query_{name}": value for name, value in source.items()}
    if document.is_length_dependent(card.max_tokens):
        fields["options"] = {"rotary_frequencies": "of each text"}
    model = Model(card, _make_recipe(card, **fields), document, query)
    if card.adapter is None:
        return model
    if query is not None:
        raise BenchError(f"{card.name} has two encoders: an adapter for both is unsupported")
    return model.with_adapter(adapter_folder(card.adapter, base), card.adapter.kind)


def _check_length(card: Card, length: int, checkpoint: Checkpoint) -> None:
    """Raise if a checkpoint has too few positions for inputs of ``length`` tokens."""
    limit = checkpoint.position_limit
    if limit is not None and length > limit:
        raise BenchError(
            f"{card.name}: inputs of {length} tokens do not fit {checkpoint.folder}, "
            f"which has positions for {limit}",
            f"Set max_query_tokens and max_document_tokens to at most {limit}.",
        )


def _describe_source(folder: ModelFolder, found: Checkpoint) -> dict[str, Any]:
    """Return the fields of a recipe about a checkpoint."""
    source = {"checkpoint": folder.checkpoint, "revision": folder.revision}
    return {**source, "files": found.hashes}


def _resolve_library(card: Card, base: Path, trust_code: bool) -> Model:
    """Resolve what sentence-transformers loads, a model or a reranker, by all files."""
    name = card.reranker or card.checkpoint
    folder = locate_checkpoint(name, card.revision, base=base)
    if not (card.reranker or folder.is_st):
        problem = f"{folder.root} has no modules.json"
        raise BenchError(problem, "Give a folder of sentence-transformers.")
    checkpoint = Checkpoint.of_library(folder)
    code = folder.find_code()
    if code and not trust_code:
        raise BenchError(f"{card.name} runs code of its own: {code}", TRUST)
    options: dict[str, Option] = {name: library_version(name) for name in LIBRARIES}
    options |= {"depth": card.depth} if card.reranker else {"dtype": card.dtype}
    recipe = _make_recipe(card, options=options, **_describe_source(folder, checkpoint))
    return Model(card, recipe, checkpoint)


def _make_recipe(card: Card, **fields: Any) -> Recipe:
    """Return the recipe that ``card`` states, with other ``fields`` that files determine."""
    dim = card.options.get("dim", 0)
    if not isinstance(dim, int) or dim < card.traits.fewest_dimensions:
        raise BenchError(
            f"card {card.name}: options.dim is the dimension of its vectors, 1 or more"
        )
    stated: dict[str, Any] = {
        "model": card.name,
        "kind": card.kind,
        "dim": dim,
        "prompts": Prompts(query=card.prompts.query, document=card.prompts.document),
        "dataset_prompts": dict(card.prompts.datasets),
        "options": card.fusion.options if card.models else dict(card.options),
        **card.usage,
    }
    return Recipe(**{**stated, **fields})


def resolve_endpoint(card: Card) -> Model:
    """Resolve a model behind a URL. Its dimension is 0 unless ``card`` states it."""
    address = {"endpoint": card.url.partition("://")[2], "endpoint_model": card.endpoint_model}
    recipe = _make_recipe(
        card,
        dim=card.dim,
        revision="" if card.revision == BRANCH else card.revision,
        options={**address, **card.options},
    )
    return Model(card, recipe)


def _resolve_vectors(card: Card, base: Path, _: bool) -> Model:
    """Resolve ready vectors by their files. Their dimension is known once they are opened."""
    path = Path(base, Path(card.checkpoint).expanduser())
    checkpoint = Checkpoint.of_vectors(path)
    recipe = _make_recipe(card, checkpoint=path.resolve().name, files=checkpoint.hashes)
    return Model(card, recipe, checkpoint)


def _resolve_code(card: Card, base: Path, trust_code: bool) -> Model:
    """Resolve what a user's file defines, by its sources."""
    path, encoder, files = _run_code(card.name, card.encoder, base, trust_code)
    card = replace_fields(card, {"encoder": path})
    return Model(card, _make_recipe(card, kind="python", files=files, encoder=encoder, dim=0))


def _run_code(
    model: str, code: str, base: Path, trust_code: bool
) -> tuple[str, str, dict[str, str]]:
    """Run the file of ``code``, ``file.py:NAME``, and return what it is.

    Returns:
        ``code`` with the whole path, ``code`` with the file's name alone, and hashes of sources.
    """
    if not trust_code:
        raise BenchError(f"{model} runs {code}, which is not part of this project", TRUST)
    module, _, name = code.rpartition(":")
    if not module.endswith(SUFFIX):
        problem = f"card {model}: {code} is not path/to/file.py:NAME"
        raise BenchError(problem, "A file can import the class of an installed package.")
    path = Path(base, Path(module).expanduser())
    run_file(str(path))
    return f"{path}:{name}", f"{path.name}:{name}", hash_sources(str(path))


def _resolve_reranker(card: Card, base: Path, trust_code: bool) -> Model:
    """Resolve a reranker by the files of its folder, or by the sources of its code."""
    if not PYTHON_FILE.fullmatch(card.reranker):
        return _resolve_library(card, base, trust_code)
    path, reranker, files = _run_code(card.name, card.reranker, base, trust_code)
    card, options = replace_fields(card, {"reranker": path}), {"depth": card.depth}
    return Model(card, _make_recipe(card, files=files, options={"reranker": reranker, **options}))


# By kind of model. The recipe of a kind that is not listed is what its card states.
RESOLVERS: Mapping[KindName, Callable[[Card, Path, bool], Model]] = {
    "transformer": _resolve_transformer,
    "python": _resolve_library,
    "endpoint": lambda card, base, trust_code: resolve_endpoint(card),
    "vectors": _resolve_vectors,
    "rerank": _resolve_reranker,
}


def count_parameters(model: Model) -> Parameters | None:
    """Count the parameters of a resolved model, or return None if its class does not state them.

    Pre-training heads and buffers of positions are not counted. A pooler is, as in published sizes
    of BERT.
    """
    if model.recipe.encoder:
        return None
    traits = model.recipe.traits
    if traits.reads_ids or (traits.is_opaque and model.document is None):
        return Parameters(model.card.parameters) if model.card.parameters else None
    towers = [tower for tower in (model.document, model.query) if tower is not None]
    network = sum(count_file_parameters(path) for tower in towers for path in tower.files)
    identity, folder = model.recipe.adapter, model.adapter
    files = [folder / name for name in identity.files] if identity and folder else []
    adapter = sum(map(count_file_parameters, files))
    return Parameters(network + adapter, adapter)


def _check_int8(recipe: Recipe) -> None:
    """Raise if the model of ``recipe`` cannot run in int8 on this processor."""
    needs = {
        f"{recipe.model} is not a transformer that int8 can run": recipe.traits.is_network,
        "int8 does not support adapters": recipe.adapter is None,
        f"int8 needs float32 weights, not {recipe.dtype}": recipe.dtype == "float32",
        "int8 overflows on this CPU (no VNNI)": has_vnni(),
    }
    for problem, is_met in needs.items():
        if not is_met:
            raise BenchError(problem, "Leave out --dtype int8.")
