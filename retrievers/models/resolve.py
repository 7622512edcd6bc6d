"""Resolve a model: its card, its recipe and its files, without a model library and weights.

A card's name, a card's file, a folder with a card and a sentence-transformers folder state how
vectors are made. A plain checkpoint does not and is refused, unless it is used like a named card.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Any

import msgspec

from foundation.errors import BenchError, format_names
from foundation.machine import has_vnni, library_version
from foundation.records import read_object
from foundation.sources import SUFFIX, hash_sources, run_file
from retrievers.models.card import (
    BRANCH,
    CARD_FILE,
    Card,
    CardAdapter,
    Prompts,
    Recipe,
    all_cards,
    load_card,
    make_card,
    make_card_like,
    replace_fields,
)
from retrievers.models.kinds import TEXTS
from retrievers.models.locate import (
    PYTHON_FILE,
    anchor_members,
    find_card,
    is_card,
    is_url,
    locate_card,
    locate_checkpoint,
)
from retrievers.models.read_checkpoint import (
    ADAPTER_CONFIG,
    Checkpoint,
    Parameters,
    Routing,
    adapter_folder,
    adapter_name,
    count_file_parameters,
    identify_adapter,
    is_length_dependent,
    read_checkpoint,
    read_folder,
    read_routing,
    read_vector_files,
)
from retrievers.models.read_settings import (
    find_code,
    is_st_folder,
    lacks_normalize,
    read_card,
    read_stages,
    warn_of_contradictions,
)
from retrievers.models.settings import SOURCES, ModelSettings

TRAINING_FILE = "training.json"  # in the folder of a training, whose card comes last
TRUST = "Read its code, then allow it with --trust-code."
BASE_NAMES = ("base_model_name_or_path", "model_name")  # in files of PEFT and of AdapterHub

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
    recipe = msgspec.structs.replace(
        resolved.recipe,
        store_dtype=settings.store_dtype,
        compression=settings.compression(card.dimensions),
    )
    if settings.dtype == "int8":
        _check_int8(recipe)
        recipe = msgspec.structs.replace(recipe, backend="int8-calibrated")
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
    """Resolve a card, whose paths are relative to ``base``, by the kind of its encoder."""
    if card.encoder:
        return _resolve_code(card, base, trust_code)
    if not card.traits.is_stated:
        return _resolve_library(card, card.checkpoint, base, trust_code, dtype=card.dtype)
    if card.traits.is_remote:
        return resolve_endpoint(card)
    if card.traits.reads_ids:
        return _resolve_vectors(card, base)
    if card.reranker:
        return _resolve_reranker(card, base, trust_code)
    if card.traits.is_network:
        return _resolve_transformer(card, base)
    return Model(card, _make_recipe(card))


def resolve_card(
    model: str, like: str | None = None, endpoint_model: str | None = None
) -> tuple[Card, Path]:
    """Return the card to use for a model, and the folder that its paths are relative to.

    ``like`` and ``endpoint_model`` are those of `ModelSettings`.
    """
    if is_url(model):
        usage = {name: getattr(load_card(like), name) for name in TEXTS} if like else {}
        return card_of_endpoint(model, endpoint_model or "", **usage), Path.cwd()
    if endpoint_model is not None:
        raise BenchError(
            f"{model} is not a URL, so --endpoint-model has no effect", "Leave it out."
        )
    if like is not None:
        if is_card(model):
            problem = f"{model} is a card, but --like {like} needs a checkpoint without one"
            raise BenchError(problem, "Leave --like out, or give the folder of a checkpoint.")
        return _card_like(load_card(like), model), Path.cwd()
    return find_card(model) or (_declared_card(model), Path.cwd())


def card_of_endpoint(url: str, endpoint_model: str, **fields: Any) -> Card:
    """Return the card of a model behind a URL, with other ``fields``.

    Its name is the last part of ``endpoint_model``, the name on the server.
    """
    if not endpoint_model:
        problem = "the URL of a server needs the name of one of its models"
        raise BenchError(problem, "Add --endpoint-model NAME, as listed at /v1/models")
    named = {"name": endpoint_model.rpartition("/")[2], "title": f"{endpoint_model} at {url}"}
    address = {"kind": "endpoint", "url": url, "endpoint_model": endpoint_model}
    return make_card({**named, **address, **fields})


def _declared_card(name: str) -> Card:
    """Return the card of a checkpoint whose files state how vectors are made."""
    is_folder = Path(name).expanduser().is_dir()
    known = next((card for card in all_cards().values() if card.checkpoint == name), None)
    if known is not None and not is_folder:
        raise BenchError(f"{name} has a card", f"Use its card: {known.name}")
    folder = locate_checkpoint(name, base=Path.cwd(), with_weights=False)
    card = read_card(folder, name)
    if card is None:
        raise _explain_missing_settings(folder, name)
    changes = {"name": Path(name).name, "title": f"{name} (sentence-transformers)"}
    return replace_fields(card, changes | ({} if is_folder else {"checkpoint": name}))


def _card_like(card: Card, checkpoint: str) -> Card:
    """Return a card for another checkpoint, without what the card says of its own."""
    if not card.traits.is_network:
        problem = f"--like {card.name}: its card does not describe a transformer checkpoint"
        raise BenchError(problem, "See `python -m bench list models`.")
    if card.query_checkpoint:
        problem = f"--like {card.name}: that model has two encoders, but one checkpoint was given"
        raise BenchError(problem, "Write a card with checkpoint and query_checkpoint, and pass it.")
    path = Path(checkpoint).expanduser()
    root = locate_checkpoint(checkpoint, base=Path.cwd(), with_weights=False)
    # ANCE's weights state a classifier, and its card a stage instead.
    stated = read_card(root, checkpoint, may_classify=bool(card.stages))
    if stated is not None and not stated.traits.is_stated:
        raise BenchError(f"--like {card.name} does not apply: {stated.warning}", "Leave it out.")
    if stated is not None and not stated.pretrained_only:
        _check_like(card, stated, root)
    return make_card_like(
        card,
        name=path.name,
        title=f"{path.name}, like {card.title}",
        checkpoint=str(root) if path.is_dir() else checkpoint,
        trained_on=stated.trained_on if stated else (),
        dimensions=stated.dimensions if stated else None,
    )


def _check_like(card: Card, stated: Card, root: Path) -> None:
    """Raise if a card contradicts the folder that is used like it.

    Lengths only cause a warning, since users choose them. So does normalisation without a module
    for it: sentence-transformers writes cosine even if nobody chose it.
    """
    used, open_to_choice = _list_settings(card), {"max_query_tokens", "max_document_tokens"}
    if lacks_normalize(root):
        open_to_choice.add("normalize")
    for name, value in _list_settings(stated).items():
        chosen = used.get(name, "none")
        if value == chosen:
            continue
        if name not in open_to_choice:
            problem = f"--like {card.name} contradicts {root}: its {name} is {value}, not {chosen}"
            raise BenchError(problem, "Leave --like out, or correct the folder's settings.")
        logger.warning("%s states %s %s, but %s is used", root, name, value, chosen)


def _list_settings(card: Card) -> dict[str, Any]:
    """Return the settings of a card that change vectors, without empty prompts."""
    names = ("truncation_side", "lower_case", "max_query_tokens", "max_document_tokens")
    prompts = {"query prompt": card.prompts.query, "document prompt": card.prompts.document}
    return {
        "pooling": card.pooling,
        "normalize": card.normalize,
        "stages": [stage.folder or stage.key for stage in card.stages],
        **{name: getattr(card, name) for name in names},
        **{name: repr(text) for name, text in prompts.items() if text},
    }


def _explain_missing_settings(folder: Path, typed: str) -> BenchError:
    """Return the error for a folder that does not state how vectors are made."""
    if (folder / ADAPTER_CONFIG).is_file():
        stated = read_object(folder / ADAPTER_CONFIG)
        base = next((stated[name] for name in BASE_NAMES if stated.get(name)), "BASE")
        return BenchError(
            f"{typed} is an adapter without its base model",
            f"Give its base as the model, and the folder as --adapter: {base} --adapter {typed}",
        )
    if (folder / TRAINING_FILE).is_file():
        models = Path(typed).glob(f"checkpoints/checkpoint-*/model/{CARD_FILE}")
        latest = max(models, key=lambda path: path.stat().st_mtime, default=None)
        evaluate = f"; or evaluate its last checkpoint: --model {latest.parent}" if latest else ""
        problem = f"{typed} is an interrupted training"
        return BenchError(problem, f"Run the same command again to continue it{evaluate}")
    if not (folder / "config.json").exists():
        files = (path for name in ("config.json", CARD_FILE) for path in folder.glob(f"*/{name}"))
        names = [str(Path(typed) / name) for name in sorted({path.parent.name for path in files})]
        return BenchError(
            f"{typed} is not the folder of a model: it has no config.json",
            f"Give a model in it: {format_names(names)}"
            if names
            else "Give the folder of a model.",
        )
    return BenchError(
        f"{typed} is a plain checkpoint: it does not state how vectors are made (pooling, "
        "normalisation, prompts, lengths), and a guess gives wrong scores",
        "Look up how it was trained, then add --like CARD with a card that is used in the same "
        "way (`python -m bench list models`), or write card.toml into its folder.",
    )


def with_query_prompt(card: Card, text: str) -> Card:
    """Return the card with one prompt for the queries of all datasets."""
    datasets = {
        name: Prompts(query=text, document=prompts.document)
        for name, prompts in card.prompts.datasets.items()
    }
    prompts = msgspec.structs.replace(card.prompts, query=text, datasets=datasets)
    return replace_fields(card, {"prompts": prompts, "expected": ()})


def _resolve_transformer(card: Card, base: Path) -> Model:
    """Resolve the checkpoints and the adapter of a card, whose paths are relative to ``base``."""
    folders = [stage.folder for stage in card.stages if stage.folder]
    document = read_checkpoint(locate_card(card, base), folders)
    query = None
    if card.query_checkpoint:
        root = locate_checkpoint(card.query_checkpoint, card.query_revision, base=base)
        query = read_checkpoint(root, folders)
    if card.weights_sha256 not in ("", document.weights_sha256):
        raise BenchError(
            f"{document.folder / document.weights} is not the checkpoint of {card.name}: sha256 "
            f"{document.weights_sha256}, not {card.weights_sha256}",
            f"To use it anyway: {document.root} --like {card.name}",
        )
    _check_length(card, card.max_document_tokens, document)
    _check_length(card, card.max_query_tokens, query or document)
    for checkpoint in filter(None, (document, query)):
        warn_of_contradictions(card, checkpoint.root, checkpoint.folder)
    model = Model(card, _transformer_recipe(card, base, document, query), document, query)
    return _attach_adapter(model, card.adapter, base) if card.adapter else model


def _attach_adapter(model: Model, adapter: CardAdapter, base: Path) -> Model:
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
            f"Set max_query_tokens and max_document_tokens to at most {limit}.",
        )


def _transformer_recipe(
    card: Card, base: Path, document: Checkpoint, query: Checkpoint | None
) -> Recipe:
    name, revision = _describe_source(card.checkpoint, card.revision, base, document)
    of_query: dict[str, Any] = {}
    if query is not None:
        of_query["query_files"] = dict(query.hashes)
        of_query["query_checkpoint"], of_query["query_revision"] = _describe_source(
            card.query_checkpoint, card.query_revision, base, query
        )
    if is_length_dependent(document, card.max_tokens):
        of_query["options"] = {"rotary_frequencies": "of each text"}
    width = document.hidden_width
    stages = read_stages(card.stages, document.root, width)
    return _make_recipe(
        card,
        dim=stages[-1].width if stages else width,
        checkpoint=name,
        revision=revision,
        files=dict(document.hashes),
        stages=stages,
        **of_query,
    )


def _resolve_library(card: Card, name: str, base: Path, trust_code: bool, **options: Any) -> Model:
    """Resolve the folder or Hub id ``name`` that sentence-transformers loads, by all its files."""
    root = locate_checkpoint(name, card.revision, base=base)
    if not (card.reranker or is_st_folder(root)):
        raise BenchError(f"{root} has no modules.json", "Give a folder of sentence-transformers.")
    checkpoint = read_folder(root)
    code = find_code(root)
    if code and not trust_code:
        raise BenchError(f"{card.name} runs code of its own: {code}", TRUST)
    source, revision = _describe_source(name, card.revision, base, checkpoint)
    versions = {each: library_version(each) for each in ("sentence-transformers", "transformers")}
    recipe = _make_recipe(
        card,
        checkpoint=source,
        revision=revision,
        files=dict(checkpoint.hashes),
        options={**versions, **options},
    )
    return Model(card, recipe, checkpoint)


def _describe_source(
    checkpoint: str, revision: str, base: Path, found: Checkpoint
) -> tuple[str, str]:
    """Return the name and revision of a checkpoint for display.

    A branch changes, so it is not shown as a revision; without a known commit, none is shown.
    """
    folder = base / Path(checkpoint).expanduser()
    if folder.is_dir():
        return folder.resolve().name, ""
    return checkpoint, found.revision or ("" if revision == BRANCH else revision)


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
        "checkpoint": card.checkpoint,
        "revision": card.revision if card.checkpoint else "",
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


def _resolve_vectors(card: Card, base: Path) -> Model:
    """Resolve ready vectors by their files. Their dimension is known once they are opened."""
    folder = Path(base, Path(card.checkpoint).expanduser())
    checkpoint = read_vector_files(folder)
    source = {"checkpoint": folder.resolve().name, "revision": ""}
    recipe = _make_recipe(card, files=dict(checkpoint.hashes), **source)
    return Model(card, recipe, checkpoint)


def _resolve_code(card: Card, base: Path, trust_code: bool) -> Model:
    """Resolve what a user's file defines, by its sources."""
    path, name = _find_code(card.name, card.encoder, base, trust_code)
    card = replace_fields(card, {"encoder": f"{path}:{name}"})
    files, encoder = hash_sources(str(path)), f"{path.name}:{name}"
    return Model(card, _make_recipe(card, kind="python", files=files, encoder=encoder, dim=0))


def _find_code(model: str, code: str, base: Path, trust_code: bool) -> tuple[Path, str]:
    """Return the file and the name of ``code``, ``file.py:NAME``, after the file was run."""
    if not trust_code:
        raise BenchError(f"{model} runs {code}, which is not part of this project", TRUST)
    module, _, name = code.rpartition(":")
    if not module.endswith(SUFFIX):
        problem = f"card {model}: {code} is not path/to/file.py:NAME"
        raise BenchError(problem, "A file can import the class of an installed package.")
    path = Path(base, Path(module).expanduser())
    run_file(str(path))
    return path, name


def _resolve_reranker(card: Card, base: Path, trust_code: bool) -> Model:
    """Resolve a reranker by the files of its folder, or by the sources of its code."""
    if PYTHON_FILE.fullmatch(card.reranker):
        path, name = _find_code(card.name, card.reranker, base, trust_code)
        card = replace_fields(card, {"reranker": f"{path}:{name}"})
        options = {"reranker": f"{path.name}:{name}", "depth": card.depth}
        return Model(card, _make_recipe(card, files=hash_sources(str(path)), options=options))
    return _resolve_library(card, card.reranker, base, trust_code, depth=card.depth)


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
    network = sum(
        count_file_parameters(tower.root / name) for tower in towers for name in tower.hashes
    )
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
