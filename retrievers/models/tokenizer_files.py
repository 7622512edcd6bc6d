"""Settings in the files of a tokenizer, read without loading it."""

from dataclasses import dataclass
from os.path import lexists  # a folder, or a link to nothing, is not read as if it were absent
from pathlib import Path
from typing import cast, get_args

import msgspec

from foundation.errors import BenchError
from foundation.records import read_json
from retrievers.models.recipe import TruncationSide

NO_LIMIT = 1_000_000  # tokens; transformers writes 1e30 where a tokenizer has no limit
# Tokenizers that heed do_lower_case. The others, such as RoBERTa's, keep it and ignore it.
LOWER_CASING = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
WORD_PIECES = "vocab.txt"


class _Config(msgspec.Struct, frozen=True):
    """``tokenizer_config.json``."""

    model_max_length: int | float | None = None
    truncation_side: str | None = None
    do_lower_case: bool | None = None
    tokenizer_class: str | None = None


class _Truncation(msgspec.Struct, frozen=True):
    direction: str = "right"


class _Tokenizer(msgspec.Struct, frozen=True):
    """``tokenizer.json``."""

    truncation: _Truncation | None = None


@dataclass(frozen=True)
class TokenizerFacts:
    """Settings of use that a tokenizer was saved with.

    Attributes:
        max_tokens: its length limit, None where it has none.
        truncation_side: where a text that is too long loses its tokens.
        lower_cases: whether it lower-cases texts because its files say so.
    """

    max_tokens: int | None
    truncation_side: TruncationSide
    lower_cases: bool


def read_tokenizer_facts(folder: Path) -> TokenizerFacts:
    """Read ``tokenizer_config.json`` and, where that is silent, ``tokenizer.json``.

    Raises:
        BenchError: a file is damaged, or a value makes no sense.
    """
    path = folder / "tokenizer_config.json"
    config = read_json(path, _Config) if lexists(path) else _Config()
    length = config.model_max_length
    if length is not None and not length >= 1:
        raise BenchError(f"{path}: model_max_length is {length}", "it is a number of tokens from 1")
    heeds = lexists(folder / WORD_PIECES) or (
        (config.tokenizer_class or "").removesuffix("Fast") in LOWER_CASING
    )
    return TokenizerFacts(
        max_tokens=int(length) if length is not None and length < NO_LIMIT else None,
        truncation_side=_truncation_side(folder, config),
        lower_cases=bool(config.do_lower_case) and heeds,
    )


def _truncation_side(folder: Path, config: _Config) -> TruncationSide:
    side, path = config.truncation_side, folder / "tokenizer.json"
    if side is None and lexists(path):
        truncation = read_json(path, _Tokenizer).truncation
        side = truncation.direction.lower() if truncation else None
    side = side or "right"
    if side not in get_args(TruncationSide):
        raise BenchError(
            f"{folder}: the tokenizer cuts texts on the side {side!r}", "right or left"
        )
    return cast(TruncationSide, side)
