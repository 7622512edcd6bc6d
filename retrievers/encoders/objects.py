"""Python objects that encode, opened by name: a folder by sentence-transformers, a user's file.

Both become the `PythonEncoder` that a user's object becomes in `bench.evaluate`.
"""

import inspect
from typing import Any

import msgspec
import numpy as np

from foundation.errors import BenchError, wrap_errors
from foundation.sources import load_name
from retrievers.encoders.external import FIX_ENCODER, PythonEncoder, wrap_encoder
from retrievers.encoders.preflight import BATCH_TOLERANCE
from retrievers.encoders.tokens import probe_texts
from retrievers.models.read_settings import find_code
from retrievers.models.resolve import Model

# Fields of a recipe that an object does not state.
SHARED = ("prompts", "checkpoint", "revision", "files", "encoder", "options", "store_dtype")


def open_object(model: Model, device: str) -> PythonEncoder:
    """Open the encoder of a resolved model of kind ``python``, whose recipe gets its dimension.

    Args:
        model: result of `resolve_model`.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        BenchError: the folder cannot be loaded or lacks weights, the file does not define an
            encoder, or it returns another shape than one row for each text.
    """
    stated = model.recipe
    if model.document is None:
        made, similarity = _make_object(model.card.encoder, device), None
    else:
        made, similarity = _load_folder(model, device), stated.similarity
        model.check_unchanged()
    _, encoder = wrap_encoder(made, model.card.name, similarity=similarity)
    shared = {name: getattr(stated, name) for name in SHARED}
    encoder.recipe = msgspec.structs.replace(encoder.recipe, **shared)
    return encoder


def _make_object(encoder: str, device: str) -> Any:
    """Return the encoder that ``file.py:Name`` is, or the one it creates when called without
    arguments. A parameter ``device`` gets the device.
    """
    path, _, name = encoder.rpartition(":")
    made, arguments = load_name(path, name), dict[str, str]()
    is_made = not (inspect.isclass(made) or inspect.isfunction(made))
    with wrap_errors(f"{name} failed", FIX_ENCODER):
        parameters = {} if is_made else {**inspect.signature(made).parameters}
    if "device" in parameters:
        from retrievers.encoders.device import pick_device

        arguments["device"] = str(pick_device(device))
    elif device not in ("auto", "cpu"):
        raise BenchError(f"{name} has no parameter device for {device}", "Leave out --device.")
    needed = {each.name for each in parameters.values() if each.default is each.empty}
    if is_made or (inspect.isfunction(made) and needed - {"device"}):
        return made
    with wrap_errors(f"{name} failed", FIX_ENCODER):
        return made(**arguments)


def _load_folder(model: Model, device: str) -> Any:
    """Load a folder by sentence-transformers, twice: weights that it lacks would be random."""
    import torch
    from sentence_transformers import SentenceTransformer

    from retrievers.encoders.device import pick_device
    from retrievers.models.loading import silence_transformers

    root, dtype, texts = model.checkpoint.root, getattr(torch, model.card.dtype), probe_texts()[:8]
    settings: dict[str, Any] = {"device": str(pick_device(device)), "local_files_only": True}
    settings["trust_remote_code"] = bool(find_code(root))
    # A folder's own settings could ask for a pickle, or another precision.
    settings["model_kwargs"] = {"weights_only": True, "dtype": dtype}
    prompts, vectors = msgspec.structs.asdict(model.recipe.prompts), []
    opened: Any = None
    failure = wrap_errors(f"sentence-transformers on {root} failed", FIX_ENCODER)
    with torch.random.fork_rng(devices=[]), failure, silence_transformers():
        for seed in (0, 1):
            torch.manual_seed(seed)
            del opened  # one at a time in memory
            opened = SentenceTransformer(str(root), **settings).to(dtype)
            opened.prompts = {**opened.prompts, **prompts}
            vectors.append([opened.encode_query(texts), opened.encode_document(texts)])
    before, now = (np.array(sides, np.float32) for sides in vectors)
    if not np.abs(before - now).max() <= BATCH_TOLERANCE[model.card.dtype] * np.abs(now).max():
        problem = f"{root} lacks weights: loaded twice, it gives different vectors"
        raise BenchError(problem, "Check that its configuration belongs to its weights.")
    return opened
