"""Settings of a model that replace those of its card, from a request to the recipe."""

from typing import Annotated, Any, Self

import msgspec

from foundation.records import Record, convert_table
from retrievers.models.card import Compression, ModelDtype, Precision, StoreDtype

Count = Annotated[int, msgspec.Meta(ge=1)]
SOURCES = ("like", "endpoint_model", "trust_code")  # which card, and whether its code may run


class CardSettings(Record, kw_only=True):
    """Fields of a card that the command line overrides by ``--set FIELD=VALUE``.

    Attributes:
        max_query_tokens, max_document_tokens: lengths at which texts are truncated; None for the
            card's.
        query_prompt: put before every query, instead of all prompts of the card.
        store_dtype: dtype of stored vectors.
        allow_unknown_tokens: use the model on texts whose tokens it mostly does not know.
    """

    max_query_tokens: Count | None = None
    max_document_tokens: Count | None = None
    query_prompt: str | None = None
    store_dtype: StoreDtype = "float32"
    allow_unknown_tokens: bool = False


class ModelSettings(CardSettings, kw_only=True):
    """How a model is used, as far as its card does not decide.

    Attributes:
        like: card whose recipe (pooling, prompts, lengths) a plain checkpoint or endpoint is used
            with.
        endpoint_model: name of the model on the endpoint.
        adapter: folder of an AdapterHub or PEFT adapter to attach. The model's name becomes
            ``NAME+ADAPTER``, and published scores of the base do not apply.
        dtype: replaces the card's; ``int8`` needs a card of float32.
        trust_code: allow a user's file of Python code, and the code of a folder.
        dimensions, precision: see `Compression`. Default: the dimensions of the card.
        rescore: ``N`` candidates, or ``N:int8``, see `Compression`.
    """

    like: str | None = None
    endpoint_model: str | None = None
    adapter: str | None = None
    dtype: ModelDtype | None = None
    trust_code: bool = False
    dimensions: int | None = None
    precision: Precision = "float32"
    rescore: str | None = None

    @classmethod
    def of(cls, source: Any) -> Self:
        """Return the settings that are attributes of ``source``, such as a request."""
        return msgspec.convert(source, cls, from_attributes=True)

    @property
    def changed(self) -> dict[str, Any]:
        """Settings with another value than their default, by name."""
        defaults = msgspec.structs.asdict(type(self)())
        given = msgspec.structs.asdict(self)
        return {name: value for name, value in given.items() if value != defaults[name]}

    def compression(self, dimensions: int | None = None) -> Compression:
        """Return the compression of documents, by default to the ``dimensions`` of a card."""
        count, colon, by = (self.rescore or "").partition(":")
        fields: dict[str, Any] = {
            "dimensions": dimensions if self.dimensions is None else self.dimensions,
            "precision": self.precision,
        }
        if self.rescore is not None:
            fields["rescore"] = int(count) if count.isdecimal() else count
        if colon:
            fields["rescore_by"] = by
        return convert_table(fields, Compression, "compression of documents")
