"""Folders that sentence-transformers itself encodes, since a setting is not read here."""

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import sentence_transformers
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.util import import_from_string
from transformers import PreTrainedModel

from foundation.arrays import Float32Array
from foundation.errors import BenchError, wrap_errors
from foundation.records import read_object
from retrievers.encoders.device import pick_device
from retrievers.encoders.preflight import BATCH_TOLERANCE
from retrievers.encoders.tokens import probe_texts
from retrievers.encoders.tower import keep_frequencies
from retrievers.models.card import Dtype
from retrievers.models.folder import ModelFolder, find_transformer_file, is_known_module
from retrievers.models.loading import silence_transformers
from retrievers.models.positions import mixable_length
from retrievers.models.resolve import Model
from retrievers.models.st_files import Module

T = TypeVar("T")
FIX_FOLDER = "Fix the folder and run again."
CHECK_CONFIG = "Check that its configuration belongs to its weights, or use another model."
# Names of the transformer's settings in versions before 5, which later ones rename.
OLD_NAMES = ("model_args", "tokenizer_args", "config_args")
ROUTER = "router_config.json"


def load_folder(model: Model, device: str) -> SentenceTransformer:
    """Load a folder twice, since weights that it lacks would be random.

    Raises:
        BenchError: the folder cannot be loaded, lacks weights, or states a setting that this
            version of sentence-transformers does not read.
    """
    root, dtype, texts = model.checkpoint.root, getattr(torch, model.card.dtype), probe_texts()[:8]
    settings = _settings(root, device, dtype)
    prompts = msgspec.structs.asdict(model.recipe.prompts)

    def load() -> SentenceTransformer:
        opened = SentenceTransformer(str(root), **settings).to(dtype)
        _encode_one_by_one(opened)
        opened.prompts = {**opened.prompts, **prompts}
        return opened

    def probe(opened: SentenceTransformer) -> Float32Array:
        sides = [opened.encode_query(texts), opened.encode_document(texts)]
        return np.array(sides, np.float32)

    opened = _load_twice(root, load, probe, BATCH_TOLERANCE[model.card.dtype])
    _refuse_unread_keys(root)
    return opened


def load_cross_encoder(
    root: Path, device: str, dtype: Dtype, max_tokens: int | None = None
) -> CrossEncoder:
    """Load a cross-encoder twice, since weights that it lacks would be random.

    Pairs have up to ``max_tokens`` tokens; None for as many as the folder states.

    Raises:
        BenchError: the folder cannot be loaded, lacks weights, or has more than one score.
    """
    settings = {**_settings(root, device, getattr(torch, dtype)), "max_length": max_tokens}
    pairs = list(itertools.pairwise(probe_texts()[:8]))
    labels: list[int] = []

    def load() -> CrossEncoder:
        opened = CrossEncoder(str(root), **settings).to(getattr(torch, dtype))
        labels.append(opened.num_labels)
        return opened

    def probe(opened: CrossEncoder) -> Float32Array:
        return np.asarray(opened.predict(pairs, show_progress_bar=False), np.float32)

    opened = _load_twice(root, load, probe, BATCH_TOLERANCE[dtype])
    if labels[0] != 1:
        problem = f"{root} has {labels[0]} scores for a pair of query and document"
        raise BenchError(problem, "Give a cross-encoder that was trained to rank, with one score.")
    return opened


def _settings(root: Path, device: str, dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments that load a folder without its own ones.

    The folder's could ask for a pickle, or another precision.
    """
    return {
        "device": str(pick_device(device)),
        "local_files_only": True,
        "trust_remote_code": bool(ModelFolder(root).find_code()),
        "model_kwargs": {"weights_only": True, "dtype": dtype},
    }


def _load_twice(
    root: Path, load: Callable[[], T], probe: Callable[[T], Float32Array], tolerance: float
) -> T:
    """Load a folder with two seeds. Raise if the numbers of ``probe`` depend on the seed."""

    def load_with(seed: int) -> tuple[T, Float32Array]:
        torch.manual_seed(seed)
        opened = load()
        return opened, probe(opened)

    failure = wrap_errors(f"sentence-transformers on {root} failed", FIX_FOLDER)
    with torch.random.fork_rng(devices=[]), failure, silence_transformers():
        before = load_with(0)[1]  # one at a time in memory
        opened, now = load_with(1)
    if not np.abs(before - now).max() <= tolerance * np.abs(now).max():
        problem = f"{root} lacks weights: loaded twice, it gives different numbers"
        raise BenchError(problem, CHECK_CONFIG)
    return opened


def _encode_one_by_one(opened: SentenceTransformer) -> None:
    """Encode texts one by one if rotary frequencies depend on the longest text of a batch."""
    networks = [part for part in opened.modules() if isinstance(part, PreTrainedModel)]
    if all(mixable_length(network.config.to_dict()) is None for network in networks):
        return
    keep_frequencies(opened)
    for name in ("encode_query", "encode_document"):
        setattr(opened, name, partial(getattr(opened, name), batch_size=1))


def _refuse_unread_keys(root: Path) -> None:
    """Raise if a module's file has a key that its class in sentence-transformers ignores."""
    version = sentence_transformers.__version__
    for folder, module in _list_modules(root):
        if not module.type.startswith("sentence_transformers."):
            continue  # its own code decides
        kind: Any = import_from_string(module.type)
        path = _find_file(folder, kind)
        is_its_own = kind.config_keys or folder != root  # the main folder has others' files, too
        if path is None or not is_its_own or is_known_module(module, path):
            continue
        stated = read_object(path)
        stated = stated["parameters"] if path.name == ROUTER else stated
        known = {*kind.config_keys, *kind.config_key_renames, *OLD_NAMES}
        known |= {*inspect.signature(kind).parameters}
        if unread := sorted(set(stated) - known):
            problem = f"sentence-transformers {version} does not read {', '.join(unread)} in {path}"
            raise BenchError(problem, "Install the version that the folder was saved with.")


def _list_modules(root: Path) -> Iterator[tuple[Path, Module]]:
    """Yield the folder and entry of each module, those of a router's routes included."""
    for module in ModelFolder(root).modules:
        folder = root / module.path
        yield folder, module
        if (folder / ROUTER).is_file():
            types: Mapping[str, str] = read_object(folder / ROUTER)["types"]
            yield from ((folder / path, Module(path, kind)) for path, kind in types.items())


def _find_file(folder: Path, kind: Any) -> Path | None:
    """Return the file of settings that a module of the class ``kind`` has in ``folder``."""
    if kind.__name__ == "Transformer":
        return find_transformer_file(folder)
    path: Path = folder / kind.config_file_name
    return path if path.is_file() else None
