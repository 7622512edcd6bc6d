"""Ids that the columns of a run file cannot carry, because white space separates those.

A stored run writes them percent-encoded, and says so in its second column, where TREC has the
constant ``Q0``. All other run files are plain, also where an id holds a per cent sign.
"""

import re
from urllib.parse import quote, unquote

import pyarrow as pa

MARK = "percent-encoded"
_ENCODED = re.compile(r"[%\s]")


def encode(id_: str) -> str:
    """The id without white space: that, and the per cent sign, as the %XX of their UTF-8."""
    return _ENCODED.sub(lambda character: quote(character[0], safe=""), id_)


def decode(ids: pa.Array | pa.ChunkedArray) -> pa.LargeStringArray:
    """The ids that `encode` was given, ``large_string`` ``(n,)``."""
    return pa.array([unquote(id_) for id_ in ids.to_pylist()], pa.large_string())
