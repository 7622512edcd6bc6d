"""What a comparison of ways to learn a sequence is, as a strict TOML file.

::

    name = "two-domains"
    preset = "mlm-small"
    domains = ["beir/nfcorpus", "beir/scifact"]    # in the order that they are learnt

    [train]                                        # instead of the preset's
    steps = 100

    [methods.plain]                                # the first is what the others are against
    [methods.das]
    method = "das"
"""

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bench.ablation.grid import suggest
from bench.ablation.settings import merged
from bench.errors import BenchError
from retrievers.card import card_names
from retrievers.training.continual import Adaptation
from retrievers.training.preset import Pretraining, from_table, load_preset, to_table

SEQUENCES = Path(__file__).parents[1] / "sequences"

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Tokens = Annotated[int, msgspec.Meta(ge=1)]


class Use(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How checkpoints are evaluated.

    Attributes:
        like: card that they are used as; "" for the start, where that is one.
        measure: "" for the collections' main one.
        max_query_tokens, max_document_tokens: None for the card's.
    """

    like: str = ""
    measure: str = ""
    max_query_tokens: Tokens | None = None
    max_document_tokens: Tokens | None = None


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The same question at another scale: what is set here takes the file's own place."""

    title: str = ""
    domains: tuple[str, ...] = ()
    train: dict[str, Any] | None = None
    evaluate: Use | None = None


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A sequence, and the ways to learn it.

    Attributes:
        name: of the folder of its report.
        preset: of each training; for pre-training.
        domains: collections in the order that they are learnt.
        also: further ones, that no training reads and all checkpoints are evaluated on.
        train: instead of the preset's fields.
        methods: by names for tables. The first is what the others are compared with.
    """

    name: Name
    title: str = ""
    preset: str
    domains: tuple[str, ...]
    also: tuple[str, ...] = ()
    train: dict[str, Any] = {}
    evaluate: Use = Use()
    methods: dict[Name, Adaptation]
    variants: dict[Name, Variant] = {}

    def __post_init__(self) -> None:
        if len(self.domains) < 2:
            raise ValueError("a sequence has two domains or more")
        if not self.methods:
            raise ValueError("at least one method is needed")

    def pretraining(self) -> Pretraining:
        """The preset with its changes.

        Raises:
            RetrieverError: no such preset or field.
        """
        table = merged(to_table(load_preset(self.preset)), self.train)
        return from_table(table, self.name)

    def like(self, method: str) -> str | None:
        """The card that a method's checkpoints are used as; None where they say it themselves."""
        start = self.pretraining().start.model
        if self.methods[method].method == "adapter":
            return None
        return self.evaluate.like or (start if start in card_names() else None)


def comparison_names() -> tuple[str, ...]:
    """Names of the shipped ones, sorted."""
    return tuple(sorted(path.stem for path in SEQUENCES.glob("*.toml")))


def load_comparison(name_or_path: str, variant: str = "") -> Comparison:
    """The comparison of a ``.toml`` file, or a shipped one by its name.

    Raises:
        BenchError: no such file or variant, not TOML, an unknown key, or a value of a wrong type.
    """
    path = Path(name_or_path)
    if not path.is_file():
        path = SEQUENCES / f"{name_or_path.removesuffix('.toml')}.toml"
        if "/" in name_or_path or not path.is_file():
            raise BenchError(
                f"there is no sequence {name_or_path}: neither a file nor a shipped one",
                f"shipped: {', '.join(comparison_names())}",
            )
    found = parse(path.read_bytes(), name_or_path)
    return _varied(found, variant) if variant else found


def parse(content: bytes, source: str) -> Comparison:
    """A comparison from TOML; ``source`` names the file in messages.

    Raises:
        BenchError: see `load_comparison`.
    """
    try:
        return msgspec.toml.decode(content, type=Comparison)
    except msgspec.ValidationError as error:
        raise BenchError(f"{source}: {error}", _hint(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{source} is not TOML: {error}") from error


def _varied(found: Comparison, name: str) -> Comparison:
    if name not in found.variants:
        raise BenchError(
            f"{found.name} has no variant {name!r}",
            f"its variants: {', '.join(found.variants) or 'none'}",
        )
    fields = msgspec.structs.asdict(found.variants[name])
    changes = {key: value for key, value in fields.items() if value}
    return msgspec.structs.replace(found, name=f"{found.name}-{name}", **changes)


def _hint(problem: str) -> str:
    wrong = re.search(r"unknown field `(\w+)`", problem)
    if not wrong:
        return ""
    records = (Comparison, Variant, Use, Adaptation)
    return suggest(wrong[1], sorted({one for kind in records for one in kind.__struct_fields__}))
