"""A sentence-transformers folder, read and written as data.

``modules.json`` names Python classes. sentence-transformers imports what it names; here only the
module types below are understood, by name, and everything else is refused. Written by
sentence-transformers 2 to 6: the class paths and some keys differ between versions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import lexists  # a folder, or a link to nothing, is not read as if it were absent
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, cast, get_args

import msgspec

from foundation.errors import BenchError
from foundation.records import read_json
from retrievers.models.card import Card, CardPrompts, CardStage
from retrievers.models.checkpoint import inside, position_limit, read_config
from retrievers.models.recipe import Pooling, Recipe, Similarity, TruncationSide, Usage

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
ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
}
# Of the transformer's settings; sentence-transformers reads the first file that is there.
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
ONLY_TASK, ONLY_OUTPUT = "feature-extraction", "last_hidden_state"
ONLY_EMPTY = (
    *("processing_kwargs", "tokenizer_name_or_path"),
    *("query_length", "document_length", "query_expansion"),
)
NO_LIMIT = 1_000_000  # tokens; transformers writes 1e30 where a tokenizer has no limit
DEFAULT_LENGTH = 512  # tokens, where nothing states any
# Tokenizers that heed do_lower_case. The others, such as RoBERTa's, keep it and ignore it.
LOWER_CASING = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
WORD_PIECES = "vocab.txt"
COSINE_ASSUMED = (
    "the folder does not say which similarity it was trained for: cosine is used, as "
    "sentence-transformers does; use --like CARD for a model trained with dot products"
)
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
F = TypeVar("F")


class _File(msgspec.Struct, frozen=True):
    """Settings that another program wrote: fields that are not read here may be there."""


class _Module(_File, frozen=True):
    """One entry of ``modules.json``."""

    path: str
    type: str

    @property
    def name(self) -> str:
        return self.type.rpartition(".")[2]


class _Settings(_File, frozen=True):
    """``config_sentence_transformers.json``."""

    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None
    truncate_dim: int | None = None


class _Modality(_File, frozen=True):
    method: str = "forward"
    method_output_name: str | None = ONLY_OUTPUT


class _Transformer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of `TRANSFORMER_FILES`; as in sentence-transformers, no other settings may be there."""

    max_seq_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    do_lower_case: bool | None = None
    transformer_task: str = ONLY_TASK
    modality_config: dict[str, _Modality] = {}
    module_output_name: str | None = None
    unpad_inputs: bool | None = None
    processing_kwargs: dict[str, Any] | None = None
    tokenizer_name_or_path: str | None = None
    query_length: int | None = None
    document_length: int | None = None
    query_expansion: dict[str, Any] | None = None


class _Pooling(_File, frozen=True):
    """``config.json`` of a pooling module: a mode, or one flag for each (`LEGACY_POOLING`)."""

    pooling_mode: str | list[str] | None = None
    include_prompt: bool = True
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False


class StageFile(_File, frozen=True):
    """``config.json`` of a dense or layer-norm module; the width that it has is stated."""

    out_features: Count | None = None
    dimension: Count | None = None
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    module_input_name: str | None = "sentence_embedding"
    module_output_name: str | None = "sentence_embedding"

    @property
    def activation(self) -> str:
        """Name of the activation of a dense stage.

        Raises:
            BenchError: it is not supported.
        """
        if self.activation_function not in ACTIVATIONS:
            raise BenchError(
                f"the activation {self.activation_function!r} is not supported",
                f"supported: {', '.join(ACTIVATIONS)}",
            )
        return ACTIVATIONS[self.activation_function]


class _TokenizerConfig(_File, frozen=True):
    """``tokenizer_config.json``."""

    model_max_length: int | float | None = None
    truncation_side: str | None = None
    do_lower_case: bool | None = None
    tokenizer_class: str | None = None


class _Truncation(_File, frozen=True):
    direction: str = "right"


class _Tokenizer(_File, frozen=True):
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


@dataclass(frozen=True)
class StFolder:
    """Use of its model that a sentence-transformers folder states.

    Attributes:
        inner: path of the transformer inside the folder; empty when it is the folder itself.
        warnings: what is assumed, or set aside.
    """

    inner: str
    usage: Usage
    stages: tuple[CardStage, ...]
    prompts: CardPrompts
    warnings: tuple[str, ...]


def is_st_folder(folder: Path) -> bool:
    """True where the folder was saved by sentence-transformers."""
    return (folder / "modules.json").is_file()


def find_transformer(folder: Path) -> str:
    """Path of the transformer inside a folder; empty when it is the folder itself.

    Raises:
        BenchError: ``modules.json`` is damaged, or does not begin with a transformer.
    """
    first = next(iter(_read_modules(folder / "modules.json")), None)
    if first is None or first.name != "Transformer":
        raise BenchError(f"{folder / 'modules.json'} does not begin with a Transformer")
    inside(folder, first.path)
    return first.path


def read_st_folder(folder: Path) -> StFolder:
    """Read modules, prompts, lengths and what is done to texts.

    Raises:
        BenchError: a file is damaged, a module's class is not of sentence-transformers, or
            something is stated that is not supported.
    """
    modules = _read_modules(folder / "modules.json")
    names = [module.name for module in modules]
    order = _stage_slice(names)
    if order is None:
        raise BenchError(
            f"{folder}: the modules {' > '.join(names)} are not supported",
            "supported: Transformer, Pooling, any Dense and LayerNorm, then Normalize",
        )
    settings = _optional(folder / "config_sentence_transformers.json", _Settings)
    if settings.truncate_dim is not None:
        raise BenchError(
            f"{folder}: truncate_dim = {settings.truncate_dim} is not supported",
            "take it out of config_sentence_transformers.json to use whole vectors",
        )
    inner = inside(folder, modules[0].path)
    transformer, tokenizer = _read_transformer(inner), read_tokenizer_facts(inner)
    length = _length(inner, transformer.max_seq_length or tokenizer.max_tokens)
    similarity, normalize = _read_similarity(settings.similarity_fn_name), names[-1] == "Normalize"
    usage = Usage(
        pooling=_read_pooling(inside(folder, modules[1].path) / "config.json"),
        normalize=normalize or similarity != "dot",
        similarity=similarity or "cos",
        max_query_tokens=length,
        max_document_tokens=length,
        truncation_side=tokenizer.truncation_side,
        lower_case=bool(transformer.do_lower_case) and not tokenizer.lower_cases,
    )
    return StFolder(
        inner=modules[0].path,
        usage=usage,
        stages=tuple(_read_stage(folder, module) for module in modules[order]),
        prompts=_read_prompts(folder, settings),
        warnings=tuple(_warnings(settings, sure=bool(similarity) or normalize)),
    )


def _length(inner: Path, stated: int | None) -> int:
    """Length at which texts are cut: the shorter of what is stated and of the positions."""
    limit = position_limit(read_config(inner)) if (inner / "config.json").is_file() else None
    known = [n for n in (stated, limit) if n is not None and n < NO_LIMIT]
    length = min(known, default=DEFAULT_LENGTH)
    if length < 1:
        raise BenchError(f"{inner / 'config.json'} has no positions for texts")
    return length


def _warnings(settings: _Settings, sure: bool) -> list[str]:
    prompts = settings.prompts or {}
    unused = [name for name in prompts if prompts[name] and name not in RETRIEVAL_PROMPTS]
    warnings = [] if sure else [COSINE_ASSUMED]
    if unused:
        warnings.append(
            f"its prompts {', '.join(unused)} are not used: retrieval uses those called query and "
            "document, as encode_query and encode_document of sentence-transformers do; to use "
            "others, write a card"
        )
    return warnings


def read_stage_file(folder: Path) -> StageFile:
    """Settings of a stage, from the ``config.json`` in its folder.

    Raises:
        BenchError: it is missing or damaged.
    """
    return read_json(folder / "config.json", StageFile)


def _read_modules(path: Path) -> list[_Module]:
    modules = read_json(path, list[_Module])
    for module in modules:
        if module.type.partition(".")[0] != "sentence_transformers":
            raise BenchError(
                f"{path} names the class {module.type!r}, which is not of sentence-transformers",
                "code that arrives with weights is not run",
            )
    return modules


def _stage_slice(names: Sequence[str]) -> slice | None:
    """Where the stages are, or None when the modules are not of the supported form."""
    end = len(names) - 1 if names[-1:] == ["Normalize"] else len(names)
    stages = names[2:end]
    fits = names[:2] == ["Transformer", "Pooling"] and set(stages) <= {"Dense", "LayerNorm"}
    return slice(2, end) if fits else None


def _read_pooling(path: Path) -> Pooling:
    config = read_json(path, _Pooling)
    modes = config.pooling_mode
    if modes is None:
        modes = [mode for key, mode in LEGACY_POOLING.items() if getattr(config, key)]
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) != 1 or modes[0] not in POOLING:
        raise BenchError(
            f"{path}: pooling by {' + '.join(modes) or 'nothing'} is not supported",
            f"supported: one of {', '.join(POOLING)}",
        )
    if not config.include_prompt:
        raise BenchError(f"{path}: pooling without the prompt's tokens is not supported")
    return POOLING[modes[0]]


def _read_transformer(folder: Path) -> _Transformer:
    path = next((folder / name for name in TRANSFORMER_FILES if lexists(folder / name)), None)
    settings = read_json(path, _Transformer) if path else _Transformer()
    text = settings.modality_config.get("text", _Modality())
    unsupported = {
        "transformer_task": settings.transformer_task != ONLY_TASK,
        "modality_config": (text.method, text.method_output_name) != ("forward", ONLY_OUTPUT),
        **{name: bool(getattr(settings, name)) for name in ONLY_EMPTY},
    }
    names = [name for name, stated in unsupported.items() if stated]
    if names:
        raise BenchError(
            f"{path}: {', '.join(names)} of another value than usual is not supported",
            "write a card that says how vectors are made, and name its file: path/to/card.toml",
        )
    return settings


def _read_stage(folder: Path, module: _Module) -> CardStage:
    if not module.path:
        raise BenchError(f"{folder / 'modules.json'}: the module {module.name} has no folder")
    config = read_stage_file(inside(folder, module.path))
    for name in (config.module_input_name, config.module_output_name):
        if name not in (None, "sentence_embedding"):
            raise BenchError(f"{folder / module.path}: a stage of {name!r} is not supported")
    return CardStage(kind="dense" if module.name == "Dense" else "layer-norm", folder=module.path)


def _read_similarity(name: object) -> Similarity | None:
    if name in ("cosine", "dot"):
        return "cos" if name == "cosine" else "dot"
    if name is None:
        return None
    raise BenchError(f"similarity {name!r} is not supported", "supported: cosine, dot")


def _read_prompts(folder: Path, settings: _Settings) -> CardPrompts:
    """The prompts that ``encode_query`` and ``encode_document`` of version 5.7 put before texts.

    Those are always the ones called ``query`` and ``document``: a model is given both names, empty
    where its files have none, so that other names and the default prompt are never reached.
    """
    prompts, default = settings.prompts or {}, settings.default_prompt_name
    if default is not None and default not in {*prompts, *RETRIEVAL_PROMPTS}:
        raise BenchError(
            f"{folder}: the default prompt {default!r} is not one of its prompts",
            f"its prompts: {', '.join(prompts) or 'none'}",
        )
    return CardPrompts(query=prompts.get("query") or "", document=prompts.get("document") or "")


def _optional(path: Path, kind: type[F]) -> F:
    return read_json(path, kind) if lexists(path) else kind()


def read_tokenizer_facts(folder: Path) -> TokenizerFacts:
    """Read ``tokenizer_config.json`` and, where that is silent, ``tokenizer.json``.

    Raises:
        BenchError: a file is damaged, or a value makes no sense.
    """
    path = folder / "tokenizer_config.json"
    config = read_json(path, _TokenizerConfig) if lexists(path) else _TokenizerConfig()
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


def _truncation_side(folder: Path, config: _TokenizerConfig) -> TruncationSide:
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


def write_st_files(folder: Path, settings: Card | Recipe, width: int) -> None:
    """Write ``modules.json`` and what it names: pooling, lengths, normalisation and prompts.

    Args:
        settings: without stages, of a pooling in `ST_POOLING`.
        width: of the encoder's vectors.
    """
    kinds = ["Transformer", "Pooling", *(["Normalize"] if settings.normalize else [])]
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{kind}" if place else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for place, kind in enumerate(kinds)
    ]
    modes = {key: mode == ST_POOLING[settings.pooling] for key, mode in LEGACY_POOLING.items()}
    uses = {
        "prompts": {"query": settings.prompts.query, "document": settings.prompts.document},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if settings.similarity == "cos" else "dot",
    }
    lengths = {
        "max_seq_length": max(settings.max_query_tokens, settings.max_document_tokens),
        "do_lower_case": settings.lower_case,
    }
    _write_json(folder / "modules.json", modules)
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **modes})
    if settings.normalize:
        (folder / "2_Normalize").mkdir()
    _write_json(folder / "sentence_bert_config.json", lengths)
    _write_json(folder / "config_sentence_transformers.json", uses)


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
