"""Hashes that tell checkpoints apart: of their files, and of the settings of their use."""

import hashlib

import msgspec

from retrievers.models.recipe import Recipe


def settings_of(recipe: Recipe) -> str:
    """Hash of how a checkpoint is used, whatever its weights are."""
    named = msgspec.structs.replace(recipe, files={}, query_files={}, checkpoint="", revision="")
    return named.fingerprint


def files_sha256(recipe: Recipe) -> str:
    """One hash of all files that decide a model's vectors."""
    content = msgspec.json.encode((recipe.files, recipe.query_files), order="deterministic")
    return hashlib.sha256(content).hexdigest()
