"""Files of sentence-transformers, versions 2 to 6, as records, and its words for what they state.

The names of Python classes in them are data: nothing is imported. A record that refuses unknown
fields, or has one allowed value, guards a setting that would change vectors.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

from retrievers.models.card import Pooling, StageKind, TruncationSide

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
# Of the transformer's settings; sentence-transformers reads the first file that states any.
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
POOLING: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
ST_POOLING: Mapping[str, str] = MappingProxyType({ours: mode for mode, ours in POOLING.items()})
LEGACY_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
RETRIEVAL_PROMPTS = ("query", "document")
STAGE_MODULES: dict[str, StageKind] = {"Dense": "dense", "LayerNorm": "layer-norm"}
# Keys of classes, the classes that need no permission, and keys of code or files outside a folder.
CLASS_KEYS = ("type", "tokenizer_class", "activation_function")
LIBRARY_CLASS = re.compile(r"(sentence_transformers|torch\.nn)(\.\w+)+")
AUTO_MAP, TOKENIZER_PATH = "auto_map", "tokenizer_name_or_path"
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Activation = Literal[
    "torch.nn.modules.linear.Identity",
    "torch.nn.modules.activation.Tanh",
    "torch.nn.modules.activation.ReLU",
    "torch.nn.modules.activation.GELU",
]


class Module(msgspec.Struct, frozen=True):
    """Entry of ``modules.json``: the module's folder and class."""

    path: str
    type: str

    @property
    def kind(self) -> str:
        """Name of the module's class."""
        return self.type.rpartition(".")[2]


class KnownModule(Module, frozen=True, forbid_unknown_fields=True):
    """A module whose entry has no setting that changes vectors."""

    name: str = ""
    idx: int = 0
    kwargs: Annotated[list[str], msgspec.Meta(max_length=0)] = []


class Requirement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Versions of a library, with the reason."""

    specifier: str
    reason: str = ""


class Settings(msgspec.Struct, frozen=True):
    """``config_sentence_transformers.json``."""

    prompts: dict[str, str | None] | None = None
    similarity_fn_name: Literal["cosine", "dot", "euclidean", "manhattan"] | None = None
    truncate_dim: int | None = None
    model_type: Literal["SentenceTransformer"] = "SentenceTransformer"
    requirements: dict[str, str | Requirement] = {}


class KnownSettings(Settings, frozen=True, forbid_unknown_fields=True):
    """Settings without a field that a later version may have added."""

    default_prompt_name: str | None = None
    version: dict[str, Any] = msgspec.field(name="__version__", default={})


class Modality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Call of the network for one modality."""

    method: Literal["forward"] = "forward"
    method_output_name: Literal["last_hidden_state"] = "last_hidden_state"


class Modalities(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Modalities. A model with ``message`` reads each text through its chat template."""

    text: Modality = Modality()


class TransformerFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of `TRANSFORMER_FILES`. Of all but the first two fields, one value is supported."""

    max_seq_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    do_lower_case: bool | None = None
    transformer_task: Literal["feature-extraction"] = "feature-extraction"
    modality_config: Modalities = Modalities()
    module_output_name: Literal["token_embeddings"] | None = None
    unpad_inputs: bool | None = None
    processing_kwargs: Annotated[dict[str, Any], msgspec.Meta(max_length=0)] | None = None
    tokenizer_name_or_path: Literal[""] | None = None
    query_length: Literal[0] | None = None
    document_length: Literal[0] | None = None
    query_expansion: Annotated[dict[str, Any], msgspec.Meta(max_length=0)] | None = None


class PoolingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``config.json`` of a pooling module: a mode, or one flag for each (`LEGACY_POOLING`)."""

    embedding_dimension: int | None = None
    word_embedding_dimension: int | None = None
    pooling_mode: str | list[str] | None = None
    include_prompt: bool = True
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False

    @property
    def modes(self) -> list[str]:
        """Names of the modes, in the words of version 6."""
        if self.pooling_mode is None:
            return [mode for key, mode in LEGACY_POOLING.items() if getattr(self, key)]
        return [self.pooling_mode] if isinstance(self.pooling_mode, str) else self.pooling_mode


class StageFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``config.json`` of a dense or layer-norm module (``dimension`` is the latter's)."""

    in_features: int | None = None
    out_features: Count | None = None
    dimension: Count | None = None
    bias: bool = True
    activation_function: Activation = "torch.nn.modules.activation.Tanh"
    module_input_name: Literal["sentence_embedding"] | None = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] | None = "sentence_embedding"
    use_residual: Literal[False] | None = None

    @property
    def activation(self) -> str:
        """Name of the activation of a dense stage."""
        return self.activation_function.rpartition(".")[2].lower()


class NormalizeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``config.json`` of a module for length 1, which version 6 writes."""

    module_input_name: Literal["sentence_embedding"] = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] | None = "sentence_embedding"


class DropoutFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``config.json`` of a dropout module, which does nothing when texts are encoded."""

    dropout: float = 0.0


# Modules whose files are read only to find out whether they have unknown settings.
PLAIN_MODULES: Mapping[str, Any] = MappingProxyType(
    {"Normalize": NormalizeFile, "Dropout": DropoutFile}
)


class TokenizerConfig(msgspec.Struct, frozen=True):
    """``tokenizer_config.json``, which transformers writes."""

    model_max_length: int | float | None = None
    truncation_side: TruncationSide | None = None
    do_lower_case: bool | None = None
    tokenizer_class: str | None = None


class Truncation(msgspec.Struct, frozen=True):
    """Truncation of ``tokenizer.json``."""

    direction: Literal["Right", "Left"] = "Right"


class TokenizerFile(msgspec.Struct, frozen=True):
    """``tokenizer.json``."""

    truncation: Truncation | None = None
