"""Read how a folder says that its model is used, as data.

``config.json`` and the tokenizer's files state the architecture and lengths. ``modules.json`` of a
sentence-transformers folder names Python classes. They are not imported: only the types of modules
below are understood, by name. Class paths and some keys differ between its versions 2 to 6.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import lexists  # a folder, or a link to nothing, is not read as if it were absent
from pathlib import Path
from platform import python_version
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from foundation.errors import BenchError
from foundation.files import resolve_inside
from foundation.machine import library_version
from foundation.records import read_json, read_object
from retrievers.models.card import (
    CARD_FILE,
    MAX_TOKENS,
    Card,
    CardPrompts,
    CardStage,
    Pooling,
    Stage,
    StageKind,
    TruncationSide,
    load_card,
)
from retrievers.models.positions import position_limit, stated_positions

# Keys of classes, the classes that need no permission, and keys of code or files outside a folder.
CLASS_KEYS = ("type", "tokenizer_class", "activation_function")
LIBRARY_CLASS = re.compile(r"(sentence_transformers|torch\.nn)(\.\w+)+")
AUTO_MAP, TOKENIZER_PATH = "auto_map", "tokenizer_name_or_path"
COPY_AGAIN = "copy or download the checkpoint again"
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
# Of the transformer's settings; sentence-transformers reads the first file that states any.
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
NO_LIMIT = MAX_TOKENS  # transformers writes 1e30 where a tokenizer has no limit
# Tokenizers that apply do_lower_case. The others, such as RoBERTa's, keep it and ignore it.
LOWER_CASING = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
WORD_PIECES = "vocab.txt"
COSINE_ASSUMED = (
    "the folder does not say which similarity it was trained for: cosine is used, as "
    "sentence-transformers does; use --like CARD for a model trained with dot products"
)
SETTINGS_FILES = ("modules.json", "config_sentence_transformers.json", "config.json")
# Marks of models without a single vector per text, in their settings and the names of their files:
# sentence-transformers 5 and OpenSearch, PyLate and Stanford's ColBERT, rerankers.
OTHER_KINDS = {
    "a sparse encoder (SPLADE)": r"SparseEncoder|\.sparse_encoder\.|query_token_weights\.txt",
    "a late-interaction model (ColBERT)": r'"pylate\.|HF_ColBERT|"ColBERT"|MaxSim',
    "a cross-encoder": r"CrossEncoder|\.cross_encoder\.|\w+ForSequenceClassification|sbert_ce_\w+",
}
WRITE_A_CARD = "Write a card that states how vectors are made, and pass its file: path/to/card.toml"
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Activation = Literal[
    "torch.nn.modules.linear.Identity",
    "torch.nn.modules.activation.Tanh",
    "torch.nn.modules.activation.ReLU",
    "torch.nn.modules.activation.GELU",
]
F = TypeVar("F")

logger = logging.getLogger(__name__)


class _File(msgspec.Struct, frozen=True):
    """Settings that another program wrote, which may have further fields."""


class Module(_File, frozen=True):
    """Entry of ``modules.json``: the module's folder and class."""

    path: str
    type: str

    @property
    def kind(self) -> str:
        """Name of the module's class."""
        return self.type.rpartition(".")[2]


M = TypeVar("M", bound=Module)


class _KnownModule(Module, frozen=True, forbid_unknown_fields=True):
    """A module whose entry has no setting that changes vectors."""

    name: str = ""
    idx: int = 0
    kwargs: Annotated[list[str], msgspec.Meta(max_length=0)] = []


class _Requirement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Versions of a library, with the reason."""

    specifier: str
    reason: str = ""


class _Settings(_File, frozen=True):
    """``config_sentence_transformers.json``."""

    prompts: dict[str, str | None] | None = None
    similarity_fn_name: Literal["cosine", "dot", "euclidean", "manhattan"] | None = None
    truncate_dim: int | None = None
    model_type: Literal["SentenceTransformer"] = "SentenceTransformer"
    requirements: dict[str, str | _Requirement] = {}


class _KnownSettings(_Settings, frozen=True, forbid_unknown_fields=True):
    """Settings without a field that a later version may have added."""

    default_prompt_name: str | None = None
    version: dict[str, Any] = msgspec.field(name="__version__", default={})


class _Modality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    method: Literal["forward"] = "forward"
    method_output_name: Literal["last_hidden_state"] = "last_hidden_state"


class _Modalities(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kinds of input. A model with ``message`` reads each text through its chat template."""

    text: _Modality = _Modality()


class _Transformer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of `TRANSFORMER_FILES`. Of all but the first two fields, one value is supported."""

    max_seq_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    do_lower_case: bool | None = None
    transformer_task: Literal["feature-extraction"] = "feature-extraction"
    modality_config: _Modalities = _Modalities()
    module_output_name: Literal["token_embeddings"] | None = None
    unpad_inputs: bool | None = None
    processing_kwargs: Annotated[dict[str, Any], msgspec.Meta(max_length=0)] | None = None
    tokenizer_name_or_path: Literal[""] | None = None
    query_length: Literal[0] | None = None
    document_length: Literal[0] | None = None
    query_expansion: Annotated[dict[str, Any], msgspec.Meta(max_length=0)] | None = None


class _Pooling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class _Normalize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``config.json`` of a module for length 1, which version 6 writes."""

    module_input_name: Literal["sentence_embedding"] = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] | None = "sentence_embedding"


class _Dropout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``config.json`` of a dropout module, which does nothing when texts are encoded."""

    dropout: float = 0.0


# Modules whose files are read only to find out whether they have unknown settings.
PLAIN_MODULES: Mapping[str, Any] = MappingProxyType({"Normalize": _Normalize, "Dropout": _Dropout})


class _TokenizerConfig(_File, frozen=True):
    model_max_length: int | float | None = None
    truncation_side: TruncationSide | None = None
    do_lower_case: bool | None = None
    tokenizer_class: str | None = None


class _Truncation(_File, frozen=True):
    direction: Literal["Right", "Left"] = "Right"


class _Tokenizer(_File, frozen=True):
    truncation: _Truncation | None = None


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of use that a tokenizer was saved with.

    Attributes:
        max_tokens: its length limit in tokens; None without one.
        truncation_side: side on which long texts are truncated.
        lower_cases: whether its files make it lower-case texts.
    """

    max_tokens: int | None
    truncation_side: TruncationSide
    lower_cases: bool


def read_config(folder: Path) -> dict[str, Any]:
    """Read a model's ``config.json`` in ``folder``."""
    path = folder / "config.json"
    if not path.is_file():
        raise BenchError(f"{path} is missing", "Give the folder of a model.")
    return read_object(path, COPY_AGAIN)


def _refuse_other_kinds(folder: Path, typed: str, saved_by_st: bool) -> None:
    """Raise if ``folder`` holds a sparse, late-interaction or cross-encoder model."""
    names = SETTINGS_FILES[:2] if saved_by_st else SETTINGS_FILES[1:]
    contents = [(folder / name).read_bytes() for name in names if (folder / name).is_file()]
    lines = [path.name.encode() for path in folder.iterdir()]
    text = b"\n".join([*lines, *contents]).decode(errors="replace")
    for kind, marks in OTHER_KINDS.items():
        if mark := re.search(marks, text):
            raise BenchError(
                f"{typed} is {kind}, as {mark[0]} shows: it does not make one vector per text",
                "Rank with its own library, then score the run file with `python -m bench score "
                "RUN_FILE --dataset DATASET`, and compare it with `python -m bench compare`.",
            )


def is_st_folder(folder: Path) -> bool:
    """Return whether ``folder`` was saved by sentence-transformers."""
    return lexists(folder / "modules.json")


def lacks_normalize(folder: Path) -> bool:
    """Return whether sentence-transformers saved ``folder`` without a module for length 1."""
    names = (
        {module.kind for module in _read_modules(folder, Module)} if is_st_folder(folder) else ()
    )
    return bool(names) and "Normalize" not in names


def find_inner_folder(folder: Path) -> str:
    """Return the path of the transformer in ``folder``: empty, or nested in old folders."""
    if not is_st_folder(folder):
        return ""
    first = next(iter(_read_modules(folder, Module)), None)
    if first is not None and first.kind == "Transformer":
        resolve_inside(folder, first.path)
        return first.path
    if (folder / "config.json").exists():
        return ""
    raise BenchError(f"{folder / 'modules.json'} does not begin with a Transformer")


def read_card(folder: Path, typed: str, *, may_classify: bool = False) -> Card | None:
    """Return the card in ``folder`` or one made from its sentence-transformers files, or None.

    Settings that this program does not know make a card of kind ``python``: sentence-transformers
    itself encodes, and the card's warning says why. ``typed`` is the folder's name in messages.
    ``may_classify`` accepts a plain checkpoint whose architecture is a classifier's.
    """
    saved_by_st = is_st_folder(folder)
    if saved_by_st or not may_classify:
        _refuse_other_kinds(folder, typed, saved_by_st)
    if (folder / CARD_FILE).is_file():
        return load_card(folder / CARD_FILE)
    if not saved_by_st:
        return None
    try:
        return read_st_folder(folder)
    except BenchError as error:
        if isinstance(error.__cause__, OSError):  # no library can read it either
            raise
        return _make_library_card(folder, error)


def _make_library_card(folder: Path, reason: BenchError) -> Card:
    """Return the card of a folder that sentence-transformers encodes for the ``reason``."""
    settings = _read_settings(folder, _Settings)
    for module in read_json(folder / "modules.json", list[Module]):
        resolve_inside(folder, module.path)
    version = library_version("sentence-transformers")
    if not version:
        raise BenchError(str(reason), "To encode it so: pip install 'retrieval-bench[train]'")
    warnings = [f"sentence-transformers {version} encodes it, since {reason}"]
    warning = "; ".join(warnings + _find_warnings(settings, normalize=False))
    return Card(kind="python", warning=warning, **_shared_fields(folder, settings, normalize=False))


def _shared_fields(folder: Path, settings: _Settings, normalize: bool) -> dict[str, Any]:
    """Return the fields of a card that all folders of sentence-transformers state."""
    dot, prompts = settings.similarity_fn_name == "dot", settings.prompts or {}
    return {
        "name": folder.name,
        "title": f"{folder} (sentence-transformers)",
        "checkpoint": str(folder),
        # Those that encode_query and encode_document of version 5.7 use; never the default prompt.
        "prompts": CardPrompts(
            query=prompts.get("query") or "", document=prompts.get("document") or ""
        ),
        "normalize": normalize or not dot,
        "similarity": "dot" if dot else "cos",
    }


def _read_settings(folder: Path, kind: type[_Settings]) -> _Settings:
    """Read settings of the whole model, whose requirements are met and whose products rank."""
    path = folder / "config_sentence_transformers.json"
    settings = _read_if_present(path, kind)
    _check_requirements(folder, settings.requirements)
    is_unit = settings.truncate_dim is None and _ends_at_length_1(folder)
    if not (settings.similarity_fn_name == "euclidean" and is_unit):
        check_similarity(str(path), settings.similarity_fn_name)
    return settings


def _ends_at_length_1(folder: Path) -> bool:
    """Return whether the last module scales vectors to length 1."""
    *_, last = read_json(folder / "modules.json", list[Module])
    path = resolve_inside(folder, last.path) / "config.json"
    return last.kind == "Normalize" and (not path.exists() or is_known_module(last, path))


def check_similarity(name: str, similarity: object) -> None:
    """Raise if the model ``name`` states another similarity than cosine or the inner product."""
    if similarity not in (None, "cosine", "dot"):
        problem = f"{name} states {similarity} similarity, but the ranking is by product or cosine"
        raise BenchError(problem, 'Set similarity_fn_name to "cosine" or "dot" to use that.')


def refuse_own_code(folder: Path) -> None:
    """Raise if the network or tokenizer in ``folder`` has code of its own."""
    for path in (folder / "config.json", folder / "tokenizer_config.json"):
        if path.exists() and read_object(path, COPY_AGAIN).get("auto_map"):
            problem = f"{path} asks to run code of its own (auto_map)"
            raise BenchError(problem, "Code is not run here: write an encoder in a Python file.")


def find_code(folder: Path) -> str:
    """Return text about the first reference in ``folder`` to custom code, or "" if there is none.

    sentence-transformers and transformers would run the code. Raise if the folder refers to code
    or a tokenizer outside of it, which they would use without a hash.
    """
    found: list[str] = []
    hints: list[str] = []

    def visit(item: dict[str, Any]) -> dict[str, Any]:
        types = item.get("types")
        named = [*map(item.get, CLASS_KEYS), *(types.values() if isinstance(types, dict) else ())]
        found.extend(filter(_is_other_class, named))
        found.extend(f"{key} = {item[key]}" for key in (AUTO_MAP, TOKENIZER_PATH) if item.get(key))
        if "--" in str(item.get(AUTO_MAP)):
            hints.append(f"Copy it into the folder, and remove everything up to -- in {AUTO_MAP}.")
        if item.get(TOKENIZER_PATH):
            hints.append(f"Copy the tokenizer into the folder, and remove {TOKENIZER_PATH}.")
        return item

    text = ""
    for path in list_files(folder):
        if path.suffix != ".json" or path.name in ("tokenizer.json", "vocab.json"):
            continue
        found.clear()
        try:
            json.loads(path.read_bytes(), object_hook=visit)
        except RecursionError:  # with a larger stack, a library might read it
            text = text or f"{path} is nested too deeply to be searched for code"
        except ValueError:  # no library can read it either
            pass
        names = f"{path} names {', '.join(found)}"
        if hints:
            raise BenchError(f"{names}, outside of its folder", " ".join(hints))
        if found:
            text = text or names
    return text


def _is_other_class(name: object) -> bool:
    """Return whether ``name`` is the path of a class outside sentence-transformers and PyTorch."""
    return isinstance(name, str) and "." in name and not LIBRARY_CLASS.fullmatch(name)


def list_files(folder: Path) -> list[Path]:
    """Return all files in ``folder``, sorted, or raise if a folder in it is a link."""
    paths = sorted(folder.rglob("*"))
    for path in paths:
        if path.is_symlink() and path.is_dir():
            raise BenchError(f"{path} is a link to a folder", "Copy the folder there.")
    return [path for path in paths if path.is_file()]


def read_st_folder(folder: Path) -> Card:
    """Read the modules, prompts, lengths and text processing of ``folder`` as a card."""
    every = _read_modules(folder, _KnownModule)
    modules = [module for module in every if module.kind != "Dropout"]
    names = [module.kind for module in modules]
    stages = modules[2 : len(modules) - (names[-1:] == ["Normalize"])]
    known = names[:2] == ["Transformer", "Pooling"]
    if not known or not {stage.kind for stage in stages} <= STAGE_MODULES.keys():
        problem = f"{folder}: the modules {' > '.join(names)} are not supported"
        raise BenchError(problem, "Supported: Transformer, Pooling, Dense, LayerNorm, Normalize.")
    settings, normalize = _read_settings(folder, _KnownSettings), names[-1] == "Normalize"
    if settings.truncate_dim and normalize and settings.similarity_fn_name == "dot":
        problem = f"{folder}: truncate_dim = {settings.truncate_dim} after Normalize needs cosine"
        raise BenchError(problem, "Remove truncate_dim to use all dimensions.")
    _refuse_unknown_settings(folder, every)
    for stage in stages:
        read_stage_file(resolve_inside(folder, stage.path))
    inner = resolve_inside(folder, modules[0].path)
    refuse_own_code(inner)
    transformer, tokenizer = _read_transformer(inner), read_tokenizer_settings(inner)
    length = _find_length(inner, transformer.max_seq_length, tokenizer.max_tokens)
    return Card(
        **_shared_fields(folder, settings, normalize),
        pooling=_read_pooling(resolve_inside(folder, modules[1].path) / "config.json"),
        stages=tuple(CardStage(kind=STAGE_MODULES[s.kind], folder=s.path) for s in stages),
        max_query_tokens=length,
        max_document_tokens=length,
        dimensions=settings.truncate_dim,
        truncation_side=tokenizer.truncation_side,
        lower_case=bool(transformer.do_lower_case) and not tokenizer.lower_cases,
        warning="; ".join(
            _find_warnings(settings, normalize)
            + _find_length_warnings(length, transformer.max_seq_length)
        ),
    )


def _refuse_unknown_settings(folder: Path, modules: Sequence[_KnownModule]) -> None:
    """Raise if modules share a name, or one of `PLAIN_MODULES` has other settings than all."""
    names = [module.name for module in modules if module.name]
    if len(set(names)) < len(names):
        raise BenchError(f"{folder / 'modules.json'} gives two modules one name")
    for module in modules:
        if module.kind in PLAIN_MODULES:
            path = resolve_inside(folder, module.path) / "config.json"
            _read_if_present(path, PLAIN_MODULES[module.kind])


def _check_requirements(folder: Path, requirements: Mapping[str, str | _Requirement]) -> None:
    """Raise if a library other than sentence-transformers lacks a version that is required."""
    for stated, wanted in requirements.items():
        versions = wanted if isinstance(wanted, str) else wanted.specifier
        name = {"pytorch": "torch"}.get(stated, canonicalize_name(stated))
        found = python_version() if name == "python" else library_version(name)
        try:
            is_met = bool(found) and SpecifierSet(versions).contains(found, prereleases=True)
        except InvalidSpecifier as error:
            raise BenchError(
                f"{folder}: the requirement of {stated} is not valid: {error}"
            ) from error
        if name != "sentence-transformers" and not is_met:
            state = f"{name} {found} is installed" if found else f"{name} is not installed"
            install = f"pip install '{name}{versions}'"
            raise BenchError(f"{folder} requires {stated}{versions}, and {state}", install)


def _find_length(inner: Path, stated: int | None, tokenizers: int | None) -> int:
    """Return the stated length or the tokenizer's and network's, within the positions."""
    config = read_config(inner) if (inner / "config.json").is_file() else {}
    limit = position_limit(config) if stated else stated_positions(config)
    known = [n for n in (stated or tokenizers, limit) if n is not None and n < NO_LIMIT]
    length = min(known, default=NO_LIMIT)
    if length < 1:
        raise BenchError(f"{inner / 'config.json'} has no positions for texts")
    return length


def _find_warnings(settings: _Settings, normalize: bool) -> list[str]:
    prompts = settings.prompts or {}
    unused = [name for name in prompts if prompts[name] and name not in RETRIEVAL_PROMPTS]
    warnings = [] if settings.similarity_fn_name or normalize else [COSINE_ASSUMED]
    if settings.similarity_fn_name == "euclidean":
        warnings.append("at length 1, its euclidean distance ranks as cosine does, which is used")
    if cut := settings.truncate_dim:
        warnings.append(f"truncate_dim = {cut}, so {cut} dimensions are searched by default")
    if unused:
        warnings.append(
            f"its prompts {', '.join(unused)} are not used: retrieval uses those called query and "
            "document, as encode_query and encode_document of sentence-transformers do; to use "
            "others, write a card"
        )
    return warnings


def _find_length_warnings(length: int, stated: int | None) -> list[str]:
    if stated is not None and stated > length:
        cut = f"its network reads at most {length:,} tokens, at which texts are cut"
        return [f"max_seq_length is {stated:,}, but {cut}"]
    if length == NO_LIMIT:
        return ["it states no length, so texts are never cut, as in sentence-transformers"]
    return []


def warn_of_contradictions(card: Card, root: Path, inner: Path) -> None:
    """Warn about settings of a checkpoint's files that differ from its card, which is used."""
    stated: dict[str, Any] = {"truncation_side": read_tokenizer_settings(inner).truncation_side}
    if is_st_folder(root):
        try:
            own = read_st_folder(root)
            stated |= {"pooling": own.pooling, "lower_case": own.lower_case or card.lower_case}
            stated["dimensions"] = own.dimensions
        except BenchError as error:
            logger.warning("ignored: %s", error)
    for field, value in stated.items():
        if (used := getattr(card, field)) != value:
            logger.warning("%s states %s %s, but %s is used", root, field, value, used)


def read_stages(stages: Sequence[CardStage], root: Path, width: int) -> tuple[Stage, ...]:
    """Return the layers of a card after pooling of token vectors of ``width`` dimensions."""
    resolved = []
    for stage in stages:
        source, activation, width = f"key:{stage.key}", "identity", stage.width or width
        if stage.folder:
            folder = resolve_inside(root, stage.folder)
            config, is_dense = read_stage_file(folder), stage.kind == "dense"
            stated = config.out_features if is_dense else config.dimension
            if stated is None:
                key = "out_features" if is_dense else "dimension"
                raise BenchError(f"{folder / 'config.json'} states no {key}")
            source, width = f"folder:{stage.folder}", stated
            activation = config.activation if is_dense else "identity"
        resolved.append(Stage(stage.kind, source, width, activation, stage.eps))
    return tuple(resolved)


def read_stage_file(folder: Path) -> StageFile:
    """Read the settings of a stage from the ``config.json`` in ``folder``."""
    return read_json(folder / "config.json", StageFile, WRITE_A_CARD)


def _read_modules(folder: Path, kind: type[M]) -> list[M]:
    path = folder / "modules.json"
    modules: list[M] = read_json(path, list[kind])  # type: ignore[valid-type]
    for module in modules:
        if module.type.partition(".")[0] != "sentence_transformers":
            problem = f"{path} names {module.type!r}, which is not from sentence-transformers"
            raise BenchError(problem, "Code in a checkpoint is never run.")
    return modules


def _read_pooling(path: Path) -> Pooling:
    config = read_json(path, _Pooling)
    modes = config.pooling_mode
    if modes is None:
        modes = [mode for key, mode in LEGACY_POOLING.items() if getattr(config, key)]
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) != 1 or modes[0] not in POOLING:
        problem = f"{path}: pooling by {' + '.join(modes) or 'nothing'} is not supported"
        raise BenchError(problem, f"Use one of {', '.join(POOLING)}.")
    if not config.include_prompt:
        raise BenchError(f"{path}: pooling without the prompt's tokens is not supported")
    return POOLING[modes[0]]


def find_transformer_file(folder: Path) -> Path | None:
    """Return the file of a transformer's settings: the first in ``folder`` that is not empty."""
    paths = (folder / name for name in TRANSFORMER_FILES)
    return next((path for path in paths if lexists(path) and read_object(path)), None)


def is_known_module(module: Module, path: Path) -> bool:
    """Return whether the settings of ``module`` in the file ``path`` are those that all have."""
    try:
        return module.kind in PLAIN_MODULES and bool(read_json(path, PLAIN_MODULES[module.kind]))
    except BenchError:
        return False


def _read_transformer(folder: Path) -> _Transformer:
    path = find_transformer_file(folder)
    return read_json(path, _Transformer, WRITE_A_CARD) if path else _Transformer()


def _read_if_present(path: Path, kind: type[F]) -> F:
    return read_json(path, kind) if lexists(path) else kind()


def read_tokenizer_settings(folder: Path) -> TokenizerSettings:
    """Read ``tokenizer_config.json`` in ``folder``, completed by ``tokenizer.json``."""
    path = folder / "tokenizer_config.json"
    config = _read_if_present(path, _TokenizerConfig)
    length = config.model_max_length
    if length is not None and not length >= 1:
        raise BenchError(f"{path}: model_max_length is {length}", "Write 1 or more tokens.")
    side = config.truncation_side
    if side is None:
        truncation = _read_if_present(folder / "tokenizer.json", _Tokenizer).truncation
        side = "left" if truncation and truncation.direction == "Left" else "right"
    applies = lexists(folder / WORD_PIECES) or (
        (config.tokenizer_class or "").removesuffix("Fast") in LOWER_CASING
    )
    return TokenizerSettings(
        max_tokens=int(length) if length is not None and length < NO_LIMIT else None,
        truncation_side=side,
        lower_cases=bool(config.do_lower_case) and applies,
    )
