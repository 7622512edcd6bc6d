"""The base of every record that is read from a file or kept in one."""

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Frozen, and strict when decoded: an unknown field or a wrong type is refused."""
