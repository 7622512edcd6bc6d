"""Python objects that encode, opened by name: a folder by sentence-transformers, a user's file.

Both become the `PythonEncoder` that a user's object becomes in `bench.evaluate`.
"""

import inspect
from typing import Any

import msgspec
import numpy as np

from foundation.arrays import Float32Array
from foundation.errors import BenchError, first_line
from foundation.sources import load_name
from retrievers.encoders.external import PythonEncoder, name_encoder_in_errors, wrap_encoder
from retrievers.encoders.preflight import BATCH_TOLERANCE
from retrievers.encoders.tokens import probe_texts
from retrievers.models.read_settings import find_code
from retrievers.models.resolve import Model

FIXED_TEXTS = 8  # that two loads of a folder must encode equally


def open_object(model: Model, device: str) -> PythonEncoder:
    """Open the encoder of a resolved model of kind ``python``, whose recipe gets its dimension.

    Args:
        model: result of `resolve_model`.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        BenchError: the folder cannot be loaded or lacks weights, the file does not define an
            encoder, or it returns another shape than one row for each text.
    """
    name, stated = model.card.name, model.recipe
    if model.document is None:
        _, encoder = wrap_encoder(_make_object(model.card.encoder, device), name)
    else:
        opened = _load_folder(model, device)
        _, encoder = wrap_encoder(opened, name, similarity=stated.similarity)
        model.check_unchanged()
    encoder.recipe = msgspec.structs.replace(
        encoder.recipe,
        prompts=stated.prompts,
        checkpoint=stated.checkpoint,
        revision=stated.revision,
        files=stated.files,
        encoder=stated.encoder,
        options=stated.options,
        store_dtype=stated.store_dtype,
    )
    return encoder


def _make_object(encoder: str, device: str) -> Any:
    """Return what ``path/to/file.py:Name`` names, or makes if it is called without arguments.

    A parameter ``device`` gets the device.
    """
    path, _, name = encoder.rpartition(":")
    made = load_name(path, name)
    if not (inspect.isclass(made) or inspect.isfunction(made)):
        return made
    parameters = inspect.signature(made).parameters
    if "device" in parameters:
        from retrievers.encoders.device import pick_device

        with name_encoder_in_errors(name):
            return made(device=str(pick_device(device)))
    if device not in ("auto", "cpu"):
        raise BenchError(
            f"{name} chooses its device itself, so --device {device} has no effect",
            "Leave it out, or give the function or class a parameter called device.",
        )
    needed = [each for each in parameters.values() if each.default is each.empty]
    if inspect.isfunction(made) and needed:
        return made
    with name_encoder_in_errors(name):
        return made()


def _load_folder(model: Model, device: str) -> Any:
    """Load a folder by sentence-transformers, twice: weights that it lacks would be random."""
    import torch

    with torch.random.fork_rng(devices=[]):
        opened = [_load_once(model, device, seed) for seed in (0, 1)]
        before, now = (_encode_fixed_texts(each, model) for each in opened)
    scale = np.abs(now).max(initial=1e-30)
    if not np.abs(before - now).max(initial=0) <= BATCH_TOLERANCE[model.card.dtype] * scale:
        raise BenchError(
            f"{model.checkpoint.root} lacks weights: loaded twice, it gives different vectors",
            "Check that its configuration belongs to its weights, and save it again.",
        )
    return opened[-1]


def _load_once(model: Model, device: str, seed: int) -> Any:
    import torch
    from sentence_transformers import SentenceTransformer

    from retrievers.encoders.device import pick_device
    from retrievers.models.loading import silence_transformers

    root, dtype = model.checkpoint.root, getattr(torch, model.card.dtype)
    torch.manual_seed(seed)
    try:
        with silence_transformers():
            opened = SentenceTransformer(
                str(root),
                device=str(pick_device(device)),
                trust_remote_code=bool(find_code(root)),
                local_files_only=True,
                # A folder's own settings could ask for a pickle, or another precision.
                model_kwargs={"weights_only": True, "dtype": dtype},
            ).to(dtype)
    except Exception as error:
        raise BenchError(
            f"sentence-transformers cannot load {root}: {first_line(error)}", model.card.warning
        ) from error
    prompts = model.recipe.prompts
    opened.prompts = {**opened.prompts, "query": prompts.query, "document": prompts.document}
    return opened


def _encode_fixed_texts(opened: Any, model: Model) -> Float32Array:
    texts = probe_texts()[:FIXED_TEXTS]
    with name_encoder_in_errors(model.card.name):
        sides = [opened.encode_query(texts), opened.encode_document(texts)]
    return np.concatenate([np.asarray(side, np.float32) for side in sides])
