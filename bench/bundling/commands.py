"""The command that repeats a stored result.

A record has hashes instead of paths. Cards, folders and files with that content are looked for, and
a candidate counts only if its recipe has the fingerprint of the record.
"""

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import attrs
import msgspec

from bench.comparing.comparison import open_evaluated_dataset
from bench.evaluation.judging import resolve_measures
from bench.evaluation.result_record import Evaluation, Protocol, Result
from bench.evaluation.retriever import EvaluationOptions
from bench.requests.evaluating import RunRequest, ScoreRequest
from bench.requests.fields import typed_options
from bench.runner.workspace import Workspace
from datasets_cfg.catalogue import data_folders, dataset_names, facts_for
from datasets_cfg.dataset import Dataset, facts_of_folder
from foundation.errors import BenchError, UnavailableError
from foundation.files import sha256_of_file
from foundation.sources import SUFFIX
from retrievers.encoders.preflight import MOST_UNKNOWN
from retrievers.models.card import CARD_FILE, Compression, Recipe, all_cards
from retrievers.models.settings import ModelSettings

LIMITED = "/first"  # before the number of queries of a quick trial, in the name of its collection
EXPORTED = " (file "  # after the index of an exported folder
TRAINED_ON = " (trained on "  # after an index, before the device
TOML = ".toml"
OPTIONS, WHOLE = EvaluationOptions(), Compression()
SEARCH = "Name the folders of weights, cards and code with --search."


@dataclass(frozen=True)
class FileSearch:
    """Files below some folders, by content. Hidden folders are left out.

    Attributes:
        roots: the folders.
        models: what to type for models that were found, by their names in results.
    """

    roots: tuple[Path, ...]
    models: dict[str, tuple[str, ModelSettings]] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> Mapping[str, list[Path]]:
        """Paths of all files by their names."""
        found: dict[str, list[Path]] = {}
        for root in self.roots:
            for folder, inner, names in os.walk(root):
                inner[:] = sorted(name for name in inner if not name.startswith("."))
                for name in names:
                    found.setdefault(name, []).append(Path(folder, name))
        return found

    def folders(self, files: Mapping[str, str]) -> Iterator[Path]:
        """Yield each folder that has all ``files``, hashes by relative path."""
        anchor = min(files, key=lambda name: (name.endswith((".safetensors", ".bin")), name))
        for path in self.by_name.get(Path(anchor).name, ()):
            folder = path.parents[len(Path(anchor).parts) - 1]
            if all(_has_content(folder / name, sha256) for name, sha256 in files.items()):
                yield folder


@cache
def _has_content(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_of_file(path) == sha256


def typed_words(command: str, fields: Mapping[str, Any], *positional: str) -> tuple[str, ...]:
    """Return the words of a command line that give ``fields``, the ``positional`` ones first."""
    named = {name: value for name, value in fields.items() if name not in positional}
    first = [fields[name] for name in positional]
    typed = [word for value in first for word in ([value] if isinstance(value, str) else value)]
    return (command, *typed, *typed_options(named))


def find_request(
    stored: Evaluation, workspace: Workspace, files: FileSearch
) -> RunRequest | ScoreRequest:
    """Return the request that repeats a result.

    Raises:
        BenchError: no model, file or collection here has the content that the result states, or a
            Python object made it.
    """
    result = stored.record
    recipe = result.recipe
    if result.protocol.overlay:
        raise BenchError("imported judgements count in it", "Repeat `judge import`.")
    if EXPORTED in result.index:
        raise BenchError("it searched an exported index", "Repeat `index`, then `run --index`.")
    opens, dataset = find_collection(result.protocol, workspace)
    fields = _protocol_fields(result, dataset)
    if recipe is None:
        return ScoreRequest(stored.run_file, opens, name=result.model, **fields)
    model, settings = find_model(result, recipe, workspace, files)
    if Path(model).name.removesuffix(TOML) != result.model or Path(model).is_dir():
        fields["name"] = result.model
    if recipe.traits.makes_vectors:
        fields["index"] = result.index.partition(TRAINED_ON)[0]
    if (result.preflight.get("unknown") or 0) > MOST_UNKNOWN:
        fields["allow_unknown_tokens"] = True
    if result.latency and result.latency.concurrency > 1:
        fields["concurrency"] = result.latency.concurrency
    passages = str(recipe.options.get("passages", ""))
    return RunRequest(
        names=(opens,),
        model=(model,),
        recall_queries=result.recall_queries,
        passages=passages,
        **fields,
        **settings.changed,
    )


def find_collection(protocol: Protocol, workspace: Workspace) -> tuple[str, Dataset | None]:
    """Return what to type for the collection of a result, and the collection if it is here."""
    name, limited, _ = protocol.collection.partition(LIMITED)
    if limited:  # what was evaluated is a part of it in the cache
        return name, None
    try:
        dataset = open_evaluated_dataset(protocol, workspace)
    except UnavailableError:
        return name, None
    if dataset.name in dataset_names():
        return name, dataset
    folder = dataset.reader.folder.resolve()
    for root in (*data_folders(workspace.data_dir), Path.cwd()):
        if folder.is_relative_to(root.resolve()):
            return folder.relative_to(root.resolve()).as_posix(), dataset
    return folder.name, dataset


def _protocol_fields(result: Result, dataset: Dataset | None) -> dict[str, Any]:
    """Return the fields of a request that give the protocol and the measures of a result."""
    protocol = result.protocol
    _, limited, count = protocol.collection.partition(LIMITED)
    fields: dict[str, Any] = {"allow_mismatch": protocol.is_altered and not limited}
    if limited:
        fields["limit"] = int(count)
    facts = None
    if dataset is not None:
        declared = dataset.name in dataset_names()
        facts = facts_for(dataset.name) if declared else facts_of_folder(dataset.reader.folder)
    if facts is None or facts.split != protocol.split:
        fields["split"] = protocol.split
    if facts is None or facts.depth != protocol.depth:
        fields["depth"] = protocol.depth
    rescore = result.recipe.compression.rescore if result.recipe else None
    usual: tuple[str, ...] = ()
    if dataset is not None:
        with suppress(BenchError):  # the usual measures cannot be computed
            usual = resolve_measures(dataset, None, protocol.depth, rescore)
    if usual != tuple(result.measures):
        fields["measure"] = tuple(result.measures)
    return fields


def find_model(
    result: Result, recipe: Recipe, workspace: Workspace, files: FileSearch
) -> tuple[str, ModelSettings]:
    """Return what to type for the model of a result, and its settings.

    Code of the user is found by the hash of its file, and not run.

    Raises:
        BenchError: no card, folder or file has the content of the recipe.
    """
    code = recipe.encoder or str(recipe.options.get("code", ""))
    if SUFFIX in code:
        file, _, name = code.rpartition(":")
        for folder in files.folders({file: recipe.files[file]}):
            plain = msgspec.structs.replace(recipe, store_dtype="float32", compression=WHOLE)
            trusted = ModelSettings(trust_code=True)
            return f"{folder / file}:{name}", _settings_of(recipe, plain, trusted)
        raise BenchError(f"no file {file} with its content was found", SEARCH)
    if SUFFIX in str(recipe.options.get("reranker", "")):
        raise BenchError("code of the user reranks it, which is not looked for")
    if not recipe.is_identified or not (recipe.traits.is_stated or recipe.files):
        raise BenchError("a Python object made it, which no command can repeat")
    found = files.models.get(result.model)
    candidates = (
        (name, sources)
        for name in _candidate_names(result.model, recipe, files)
        for sources in _candidate_sources(name, recipe, files)
    )
    for name, sources in itertools.chain([found] if found else [], candidates):
        with suppress(BenchError):
            opened = workspace.load(name, sources).for_dataset(result.protocol.collection)
            settings = _settings_of(recipe, opened.recipe, sources)
            model = workspace.load(name, settings).configured(OPTIONS, workspace.resources)
            here = model.for_dataset(result.protocol.collection).recipe
            if here.stateless.fingerprint == recipe.stateless.fingerprint:
                files.models[result.model] = name, sources
                return name, settings
    raise BenchError("no card and no weights with the content that it states were found", SEARCH)


def _candidate_names(model: str, recipe: Recipe, files: FileSearch) -> Iterator[str]:
    """Yield names that could stand for a model: of cards, files, folders and addresses."""
    cards = [c for c in all_cards().values() if not c.missing and c.kind == recipe.kind]
    alike = [card.name for card in cards if card.checkpoint == recipe.checkpoint]
    yield from sorted(alike, key=lambda name: name != model)
    if recipe.traits.has_members:
        parts = [_locate_member(part, files) for part in model.split("+")]
        yield "+".join(parts)
    if recipe.traits.is_remote:
        yield from (f"{scheme}://{recipe.options['endpoint']}" for scheme in ("http", "https"))
    hashed = recipe.files or (recipe.adapter.files if recipe.adapter else {})
    for folder in files.folders(hashed) if hashed else ():
        if recipe.traits.reads_ids:
            yield from (f"vectors:{folder}{end}" for end in ("", ":cos", ":dot"))
        else:
            yield str(folder)
    for folder in files.folders(recipe.adapter.files) if recipe.adapter else ():
        yield from (str(where) for where in (folder, folder.parent) if (where / CARD_FILE).exists())
    for name, paths in files.by_name.items():
        if name.endswith(TOML) and name != CARD_FILE:
            yield from map(str, paths)
    if recipe.checkpoint.count("/") == 1:
        yield recipe.checkpoint


def _locate_member(name: str, files: FileSearch) -> str:
    """Return what to type for a model of a fusion: a card, or the first folder of its name."""
    named = (path.parent for path in files.by_name.get(CARD_FILE, ()) if path.parent.name == name)
    return name if name in all_cards() else str(next(named, name))


def _candidate_sources(name: str, recipe: Recipe, files: FileSearch) -> Iterator[ModelSettings]:
    """Yield what decides the card of a model: nothing, its adapter, or a card to use it like."""
    if recipe.traits.is_remote:
        yield ModelSettings(endpoint_model=str(recipe.options["endpoint_model"]))
    adapters = files.folders(recipe.adapter.files) if recipe.adapter else ()
    likes = list[str | None]([None])
    if Path(name).is_dir() or name == recipe.checkpoint:
        cards = [card for card in all_cards().values() if card.is_network and not card.missing]
        likes += [card.name for card in cards if card.pooling == recipe.pooling]
    for adapter in (None, *adapters):
        yield from (ModelSettings(like=like, adapter=adapter) for like in likes)


def _settings_of(recipe: Recipe, plain: Recipe, sources: ModelSettings) -> ModelSettings:
    """Return ``sources`` with the settings that turn the ``plain`` recipe of a model into another.

    Both are resolved for one collection.
    """
    given = {
        name: getattr(recipe, name)
        for name in ("max_query_tokens", "max_document_tokens", "store_dtype")
        if getattr(recipe, name) != getattr(plain, name)
    }
    if (dtype := recipe.options.get("dtype", recipe.precision)) != plain.options.get(
        "dtype", plain.precision
    ):
        given["dtype"] = dtype
    if recipe.prompts.query != plain.prompts.query:
        given["query_prompt"] = recipe.prompts.query
    ours, theirs = recipe.compression, plain.compression
    if ours.dimensions != theirs.dimensions:
        given["dimensions"] = ours.dimensions or recipe.dim
    given |= {"precision": ours.precision, "rescore": ours.facts["rescore"] or None}
    return attrs.evolve(sources, **given)
