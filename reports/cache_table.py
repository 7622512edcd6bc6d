"""Stored vectors by model, as a table."""

from collections.abc import Sequence

from bench.store.usage import ModelUsage
from reports.markdown import table
from reports.tables import size

DAY_S = 86_400
SHOWN = 8  # letters of a fingerprint: enough to tell models apart, and to prune by


def cache_table(rows: Sequence[ModelUsage], now: float) -> str:
    """What each model's vectors take, and all together; ``now`` in seconds since the epoch."""
    headers = ["model", "fingerprint", "texts", "size", "dtype", "last used"]
    cells = [
        [
            row.model,
            row.fingerprint[:SHOWN],
            "" if row.texts is None else f"{row.texts:,}",
            size(row.bytes),
            row.dtype,
            _ago(now - row.last_used),
        ]
        for row in rows
    ]
    cells.append(["together", "", "", size(sum(row.bytes for row in rows)), "", ""])
    return table(headers, cells, "llrrl")


def _ago(seconds: float) -> str:
    days = int(seconds // DAY_S)
    if days < 1:
        return "today"
    return "yesterday" if days == 1 else f"{days:,} days ago"
