"""Lengths of texts that a network can read, from its ``config.json``."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from foundation.errors import BenchError, wrap_errors
from foundation.machine import library_version

CHECK_CONFIG = "Check model_type and the values in it."
# Position 0 of these architectures is pad_token_id + 1, so that many positions cannot be used.
OFFSET_POSITIONS = (
    *("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer"),
    *("data2vec-text", "esm", "ibert", "lilt", "luke", "markuplm", "roberta-prelayernorm", "xmod"),
)
POSITIONS = "max_position_embeddings"  # every architecture's name for its length, or an alias
# Networks that compute further positions, and one whose biases end at a length of its own.
GROWING = ("m2m_100", "xglm")
ENDS_OF_BIASES = {"mpt": "max_seq_len"}
ROTARY = re.compile(r"(global_|local_)?rope_\w+|rotary_pct")  # fields of networks without a table
ROTARY_BY_KIND = ("esm", "granitemoe", "granitemoehybrid", "granitemoeshared")  # if they state it
ROTARY_KINDS = ("rotary", "rope", "nope")
RELATIVE = ("relative_key", "relative_key_query")
ROPE_FIELDS = ("rope_parameters", "rope_scaling")
ROPE_TYPE = ("rope_type", "type")
# Kinds of rotary positions whose frequencies are the same for texts of every length.
FIXED_ROPE = ("default", "linear", "llama3", "mrope", "proportional", "yarn")


def position_limit(config: Mapping[str, Any]) -> int | None:
    """Return the longest input in tokens of a model with ``config``, or None without a limit.

    Rotary positions are computed, and DeBERTa's distances are clipped.
    """
    is_rotary = any(map(ROTARY.fullmatch, config)) or (
        config.get("position_embedding_type") in ("rotary", "rope")
    )
    has_table = not is_rotary and config.get("position_biased_input") is not False
    has_table = has_table and config.get("model_type") not in GROWING
    return stated_positions(config) if has_table else None


def check_position_kind(config: Mapping[str, Any], source: object) -> None:
    """Raise if transformers would ignore the kind of positions in ``config``, read from ``source``.

    It ignores a value that it does not know, and the network then reads no positions at all.
    """
    kind, stated = config.get("model_type"), config.get("position_embedding_type")
    is_rotary = any(map(ROTARY.fullmatch, config)) or kind in ROTARY_BY_KIND
    known = ["absolute", *RELATIVE, *(ROTARY_KINDS if is_rotary else ())]
    version = library_version("transformers")
    if stated in RELATIVE and version.partition(".")[0] >= "5":
        problem = f"{source}: transformers {version} ignores position_embedding_type {stated!r}"
        raise BenchError(problem, "Install transformers 4: pip install 'transformers<5'")
    if stated is not None and stated not in known:
        problem = f"{source}: unknown position_embedding_type {stated!r}"
        raise BenchError(problem, f"Write one of {', '.join(known)}.")


def stated_positions(config: Mapping[str, Any]) -> int | None:
    """Return the length in tokens that a model with ``config`` was made for, or None."""
    kind = config.get("model_type")
    own = ENDS_OF_BIASES.get(str(kind), POSITIONS)
    limit = config[own] if own in config else _default_positions(config)
    if not isinstance(limit, int | float) or limit == -1:  # XLNet's sign of no limit
        return None
    limit = int(limit)
    pad = config.get("pad_token_id", 1)
    return limit - (pad if isinstance(pad, int) else 1) - 1 if kind in OFFSET_POSITIONS else limit


def _default_positions(config: Mapping[str, Any]) -> object:
    """Return the positions that transformers reads from another key, or assumes, for ``config``.

    GPT-2 calls them ``n_positions``. T5 and BLOOM have none.
    """
    from transformers import CONFIG_MAPPING  # which imports torch

    if (kind := config.get("model_type")) not in CONFIG_MAPPING:
        return None
    made_by = CONFIG_MAPPING[kind]
    alias = made_by.attribute_map.get(POSITIONS)
    if alias in config:
        return config[alias]
    parts = {name: part for name, part in config.items() if name.endswith("_config")}
    parts = json.loads(json.dumps(parts), object_hook=_decode_float)
    with wrap_errors(f"config.json is not one of a {kind}", CHECK_CONFIG):
        return getattr(made_by.from_dict(parts), POSITIONS, None)


def _decode_float(item: dict[str, Any]) -> Any:
    """Return the number that transformers writes as an object, such as infinity."""
    return float(item["__float__"]) if item.keys() == {"__float__"} else item


def mixable_length(config: Mapping[str, Any]) -> int | None:
    """Return the longest text in tokens that other texts may share a batch with, or None.

    In longer texts, the frequencies of rotary positions of the kinds ``dynamic`` (NTK) and
    ``longrope`` depend on the longest text of the batch. None: all texts may share one.
    """
    fields = dict(_list_fields(config))
    kinds = [
        value
        for path, value in fields.items()
        if path[-1] in ROPE_TYPE and not {*path}.isdisjoint(ROPE_FIELDS)
    ]
    if all(kind in (*FIXED_ROPE, None) for kind in kinds):
        return None
    lengths = (
        value
        for path, value in fields.items()
        if path[-1] in (POSITIONS, f"original_{POSITIONS}") and isinstance(value, int)
    )
    return min(lengths, default=0)


def _list_fields(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and value of each field in ``table`` and in tables below."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from (((name, *path), inner) for path, inner in _list_fields(value))
        else:
            yield (name,), value
