"""A sentence-transformers folder, read as data.

``modules.json`` names Python classes. sentence-transformers imports what it names; here only the
module types below are understood, by name, and everything else is refused. Written by
sentence-transformers 2 to 6: the class paths and some keys differ between versions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import lexists  # a folder, or a link to nothing, is not read as if it were absent
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from foundation.errors import BenchError
from foundation.records import read_json
from retrievers.models.card import CardPrompts, CardStage
from retrievers.models.checkpoint import inside
from retrievers.models.recipe import Pooling, Similarity, TruncationSide
from retrievers.models.tokenizer_files import NO_LIMIT, read_tokenizer_facts

POOLING: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
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


@dataclass(frozen=True)
class StFolder:
    """Settings that a sentence-transformers folder states about its model.

    Attributes:
        inner: path of the transformer inside the folder; empty when it is the folder itself.
        max_tokens: its length limit, None where it states none.
        similarity: as stated; None where the folder does not say.
        unused_prompts: names of prompts that retrieval does not use, in this library as in
            sentence-transformers.
        lower_case: whether texts are lower-cased, where the tokenizer itself does not.
    """

    inner: str
    pooling: Pooling
    stages: tuple[CardStage, ...]
    normalize: bool
    similarity: Similarity | None
    prompts: CardPrompts
    unused_prompts: tuple[str, ...]
    max_tokens: int | None
    truncation_side: TruncationSide
    lower_case: bool


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
    stated = transformer.max_seq_length or tokenizer.max_tokens
    return StFolder(
        inner=modules[0].path,
        pooling=read_pooling(inside(folder, modules[1].path) / "config.json"),
        stages=tuple(_read_stage(folder, module) for module in modules[order]),
        normalize=names[-1] == "Normalize",
        similarity=_read_similarity(settings.similarity_fn_name),
        prompts=_read_prompts(folder, settings),
        unused_prompts=_unused_prompts(settings),
        max_tokens=stated if stated is not None and stated < NO_LIMIT else None,
        truncation_side=tokenizer.truncation_side,
        lower_case=bool(transformer.do_lower_case) and not tokenizer.lower_cases,
    )


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


def read_pooling(path: Path) -> Pooling:
    """The pooling that the ``config.json`` of a pooling module states.

    Raises:
        BenchError: it is damaged, or states one that is not supported.
    """
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


def _unused_prompts(settings: _Settings) -> tuple[str, ...]:
    prompts = settings.prompts or {}
    return tuple(name for name in prompts if prompts[name] and name not in RETRIEVAL_PROMPTS)


def _optional(path: Path, kind: type[F]) -> F:
    return read_json(path, kind) if lexists(path) else kind()
