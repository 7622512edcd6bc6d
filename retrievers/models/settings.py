"""Settings of a model that replace those of its card, from a request to the recipe.

Requests inherit these classes, so a setting is declared and described only here.
"""

from pathlib import Path
from typing import Annotated, Any, Self

import attrs
import msgspec
from attrs import field, frozen

from foundation.records import convert_table
from retrievers.models.card import Compression, ModelDtype, Precision, StoreDtype

Count = Annotated[int, msgspec.Meta(ge=1)]
SOURCES = ("like", "endpoint_model", "trust_code")  # which card, and whether its code may run
# Fields of a card, which the command line overrides by --set FIELD=VALUE.
CARD_FIELDS = (
    "max_query_tokens",
    "max_document_tokens",
    "query_prompt",
    "store_dtype",
    "allow_unknown_tokens",
)


def to_optional_text(path: str | Path | None) -> str | None:
    """Return a path as text, and None as it is."""
    return None if path is None else str(path)


@frozen(kw_only=True, slots=False)
class LikeSettings:
    """How a checkpoint without a card is used.

    Attributes:
        like: Card whose pooling, prompts and lengths a plain checkpoint uses (see `list models`).
            Models with a card of their own are not affected.
    """

    like: str | None = None


@frozen(kw_only=True, slots=False)
class VectorSettings(LikeSettings):
    """How the vectors of a model are made, as far as its card does not decide.

    Attributes:
        endpoint_model: Name of the model on a server, if the model is a URL such as
            http://localhost:8000/v1. The key of the server comes from $BENCH_API_KEY.
        adapter: Folder of an AdapterHub or PEFT adapter to attach.
        dtype: Precision of weights and activations; int8 is a faster back end for the CPU. Results
            are kept separately. Default: the card's.
        max_query_tokens: Length at which queries are truncated, in tokens.
        max_document_tokens: Length at which documents are truncated, in tokens.
        query_prompt: Prefix of every query.
        store_dtype: Precision of stored vectors. float16 halves their disk space; results are kept
            separately.
        allow_unknown_tokens: Evaluate a model even if more than half of the tokens of a sample of
            documents are unknown to it.
        trust_code: Allow code that is not of this program: path/to/file.py:NAME, or code that a
            card or a folder names.
    """

    endpoint_model: str | None = None
    adapter: str | None = field(default=None, converter=to_optional_text)
    dtype: ModelDtype | None = None
    max_query_tokens: int | None = None
    max_document_tokens: int | None = None
    query_prompt: str | None = None
    store_dtype: StoreDtype = "float32"
    allow_unknown_tokens: bool = False
    trust_code: bool = False


@frozen(kw_only=True, slots=False)
class ModelSettings(VectorSettings):
    """How a model is used, as far as its card does not decide.

    Attributes:
        dimensions: Search the first N dimensions only (Matryoshka), scaled to unit length again if
            the model's vectors have it. Default: the card's, usually all.
        precision: Precision of the searched documents. Scores are those of float32 queries and
            decoded documents, except for binary and ubinary, which compare signs.
        rescore: Find N candidates per query in the compressed documents and score them again with
            the stored vectors, or with their int8 codes (N:int8). Rankings end after N documents.
    """

    dimensions: int | None = None
    precision: Precision = "float32"
    rescore: str | None = field(default=None, converter=to_optional_text)

    @classmethod
    def of(cls, source: Any) -> Self:
        """Return the settings that are attributes of ``source``, such as a request."""
        names = [each.name for each in attrs.fields(cls)]
        return cls(**{name: getattr(source, name) for name in names if hasattr(source, name)})

    @property
    def changed(self) -> dict[str, Any]:
        """Settings with another value than their default, by name."""
        given = ((each, getattr(self, each.name)) for each in attrs.fields(ModelSettings))
        return {each.name: value for each, value in given if value != each.default}

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
