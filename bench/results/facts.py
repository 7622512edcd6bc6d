"""Protocol and recipe of results as names and values for people, and what tells results apart."""

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import msgspec

from bench.results.result import Protocol, Result
from retrievers.models.recipe import Prompts

HASH_DIGITS = 12
RUN_FILE_FACT = "run file"
FILES = ("files", "query_files", "adapter.files")  # by one hash each


def recipe_key(result: Result) -> Hashable:
    """Equal where the recipe, but for prompts, and the index are the same.

    Prompts are resolved by collection, so they differ between results of one recipe.
    """
    if result.recipe is None:
        return None
    plain = msgspec.structs.replace(result.recipe, prompts=Prompts(), dataset_prompts={})
    return plain.fingerprint, result.index


def facts(result: Result) -> dict[str, str]:
    """Protocol, recipe and index as names and values for people.

    Nested fields have dotted names; hashes are cut, and a table of them is one hash.
    """
    return {**protocol_facts(result.protocol), **recipe_facts(result)}


def protocol_facts(protocol: Protocol) -> dict[str, str]:
    """The protocol in words: all that must be equal for two results to be compared."""
    return _flat(msgspec.to_builtins(protocol))


def recipe_facts(result: Result) -> dict[str, str]:
    """The recipe and the index in words, which may differ between models; without the name."""
    if result.recipe is None:
        return run_file_facts(result.fingerprint)
    fields = msgspec.to_builtins(result.recipe)
    adapter = fields["adapter"] or {"kind": "", "files": {}}
    files = (fields.pop("files"), fields.pop("query_files"), adapter.pop("files"))
    hashed = dict(zip(FILES, map(_digest, files), strict=True))
    del fields["model"]
    return {"index": result.index, **_flat({**fields, "adapter": adapter}), **hashed}


def run_file_facts(sha256: str) -> dict[str, str]:
    """All that is known of a run file's making: its content hash."""
    return {RUN_FILE_FACT: sha256[:HASH_DIGITS]}


def is_hash(name: str) -> bool:
    """True for the hash of a collection or of a run file."""
    return name.endswith("sha256") or name == RUN_FILE_FACT


def _flat(fields: Mapping[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{above}{name}.")
        elif name.endswith("sha256"):
            flat[above + name] = value[:HASH_DIGITS]
        elif isinstance(value, list | tuple):
            flat[above + name] = msgspec.json.encode(value).decode() if value else ""
        else:
            flat[above + name] = "" if value is None else str(value)
    return flat


def _digest(files: Mapping[str, str]) -> str:
    content = msgspec.json.encode(files, order="deterministic")
    return hashlib.sha256(content).hexdigest()[:HASH_DIGITS] if files else ""


def differing(told: Iterable[Mapping[str, str]]) -> list[str]:
    """Names of the facts that are not the same everywhere."""
    told = list(told)
    names = dict.fromkeys(name for fact in told for name in fact)
    return [name for name in names if len({fact.get(name, "") for fact in told}) > 1]
