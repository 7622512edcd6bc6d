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

from pathlib import Path
from typing import Annotated, Any

import msgspec

from bench.experiments.settings import merged
from foundation.records import Record
from foundation.toml_files import Name, TomlFiles, variant_fields
from retrievers.models.card import card_names
from retrievers.training.continual.continual import Adaptation
from retrievers.training.pretrain.preset import Pretraining, from_table, load_preset, to_table

Tokens = Annotated[int, msgspec.Meta(ge=1)]


class Use(Record, kw_only=True):
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


class Variant(Record, kw_only=True):
    """The same question at another scale: what is set here takes the file's own place."""

    title: str = ""
    domains: tuple[str, ...] = ()
    train: dict[str, Any] | None = None
    evaluate: Use | None = None


class Comparison(Record, kw_only=True):
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
            BenchError: no such preset or field.
        """
        table = merged(to_table(load_preset(self.preset)), self.train)
        return from_table(table, self.name)

    def like(self, method: str) -> str | None:
        """The card that a method's checkpoints are used as; None where they say it themselves."""
        start = self.pretraining().start.model
        if self.methods[method].method == "adapter":
            return None
        return self.evaluate.like or (start if start in card_names() else None)


FILES = TomlFiles("sequence", Path(__file__).parents[1] / "sequence_plans", Comparison)


def load_comparison(name_or_path: str, variant: str = "") -> Comparison:
    """The comparison of a ``.toml`` file, or a shipped one by its name.

    Raises:
        BenchError: see `TomlFiles.load`; or no such variant.
    """
    found = FILES.load(name_or_path)
    return msgspec.structs.replace(found, **variant_fields(found, variant)) if variant else found
