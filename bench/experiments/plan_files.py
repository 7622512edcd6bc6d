"""Plans of long work as strict TOML files, shipped or one's own, some with variants by name."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec

from foundation.errors import BenchError

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Planned(Protocol):
    """What every plan has."""

    @property
    def name(self) -> str:
        """Of the folder of its report."""
        ...

    @property
    def variants(self) -> Mapping[str, Any]:
        """The same at another scale: records whose fields, where set, take the plan's place."""
        ...


Plan = TypeVar("Plan", bound=Planned)


@dataclass(frozen=True)
class PlanFiles(Generic[Plan]):
    """The plans of one kind.

    Attributes:
        kind: in messages.
        folder: of the shipped ones.
        record: a strict msgspec Struct.
        parts: the records that it consists of, itself among them.
    """

    kind: str
    folder: Path
    record: type[Plan]
    parts: tuple[type[msgspec.Struct], ...]

    def names(self) -> tuple[str, ...]:
        """Names of the shipped ones, sorted."""
        return tuple(sorted(path.stem for path in self.folder.glob("*.toml")))

    def load(self, name_or_path: str) -> Plan:
        """The plan of a ``.toml`` file, or a shipped one by its name with or without ``.toml``.

        Raises:
            BenchError: no such file, not TOML, an unknown key, or a value of a wrong type.
        """
        path = Path(name_or_path)
        if not path.is_file():
            path = self.folder / f"{name_or_path.removesuffix('.toml')}.toml"
            if "/" in name_or_path or not path.is_file():
                raise self._unknown(name_or_path)
        return self.parse(path.read_bytes(), name_or_path)

    def parse(self, content: bytes, source: str) -> Plan:
        """A plan from TOML; ``source`` names the file in messages.

        Raises:
            BenchError: see `load`.
        """
        try:
            return msgspec.toml.decode(content, type=self.record)
        except msgspec.ValidationError as error:
            raise BenchError(f"{source}: {error}", self._meant(str(error))) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BenchError(f"{source} is not TOML: {error}") from error

    def _meant(self, problem: str) -> str:
        """The field that a misspelt one was meant to be, from msgspec's message."""
        found = re.search(r"unknown field `(\w+)`", problem)
        if not found:
            return ""
        known = {field for part in self.parts for field in part.__struct_fields__}
        return suggest(found[1], sorted(known))

    def _unknown(self, name: str) -> BenchError:
        close = difflib.get_close_matches(name.removesuffix(".toml"), self.names(), n=1)
        known = f"did you mean {close[0]}?" if close else f"shipped: {', '.join(self.names())}"
        problem = f"there is no {self.kind} {name}: neither a file nor a shipped one"
        return BenchError(problem, known)


def changes_of(plan: Planned, variant: str) -> dict[str, Any]:
    """Fields of a plan as a variant of it sets them, and its name.

    Raises:
        BenchError: it has no such variant.
    """
    if variant not in plan.variants:
        known = ", ".join(plan.variants) or "none"
        raise BenchError(f"{plan.name} has no variant {variant!r}", f"its variants: {known}")
    fields = msgspec.structs.asdict(plan.variants[variant])
    set_there = {name: value for name, value in fields.items() if value}
    return {**set_there, "name": f"{plan.name}-{variant}"}


def suggest(wrong: str, known: Sequence[str]) -> str:
    """What was probably meant, or all that there is."""
    close = difflib.get_close_matches(wrong, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(known)}"
