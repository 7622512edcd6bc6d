"""A sentence-transformers folder, read as data.

``modules.json`` names Python classes. sentence-transformers imports what it names; here only the
module types below are understood, by name, and everything else is refused. Written by
sentence-transformers 2 to 6: the class paths and some keys differ between versions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from foundation.errors import BenchError
from retrievers.models.card import CardPrompts, CardStage
from retrievers.models.checkpoint import inside, read_json
from retrievers.models.recipe import Pooling, Similarity

POOLING: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
LEGACY_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
}
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
NO_LIMIT = 1_000_000


class _Module(msgspec.Struct, frozen=True):
    """One entry of ``modules.json``."""

    path: str
    type: str

    @property
    def name(self) -> str:
        return self.type.rpartition(".")[2]


@dataclass(frozen=True)
class StFolder:
    """What a sentence-transformers folder says about its model.

    Attributes:
        inner: path of the transformer inside the folder; empty when it is the folder itself.
        max_tokens: its length limit, None where it states none.
        similarity: as stated; None where the folder does not say.
    """

    inner: str
    pooling: Pooling
    stages: tuple[CardStage, ...]
    normalize: bool
    similarity: Similarity | None
    prompts: CardPrompts
    max_tokens: int | None


def is_st_folder(folder: Path) -> bool:
    """Whether the folder was saved by sentence-transformers."""
    return (folder / "modules.json").is_file()


def read_st_folder(folder: Path) -> StFolder:
    """Read modules, prompts and lengths.

    Raises:
        BenchError: a module's class is not of sentence-transformers, or is one that is not
            supported, or the modules are in an order that is not.
    """
    modules = _read_modules(folder / "modules.json")
    names = [module.name for module in modules]
    order = _stage_slice(names)
    if order is None:
        raise BenchError(
            f"{folder}: the modules {' > '.join(names)} are not supported",
            "supported: Transformer, Pooling, any Dense and LayerNorm, then Normalize",
        )
    settings = _optional_json(folder / "config_sentence_transformers.json")
    inner = modules[0].path
    return StFolder(
        inner=inner,
        pooling=_read_pooling(inside(folder, modules[1].path) / "config.json"),
        stages=tuple(_read_stage(folder, module) for module in modules[order]),
        normalize=names[-1] == "Normalize",
        similarity=_read_similarity(settings.get("similarity_fn_name")),
        prompts=_read_prompts(settings),
        max_tokens=_read_length(inside(folder, inner)),
    )


def stage_activation(config: Mapping[str, Any]) -> str:
    """Name of a dense stage's activation, from the ``config.json`` of its folder."""
    path = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if path not in ACTIVATIONS:
        raise BenchError(
            f"the activation {path!r} is not supported", f"supported: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[path]


def _read_modules(path: Path) -> list[_Module]:
    try:
        modules = msgspec.json.decode(path.read_bytes(), type=list[_Module])
    except msgspec.MsgspecError as error:
        raise BenchError(f"{path}: {error}") from error
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
    config = read_json(path)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in LEGACY_POOLING.items() if config.get(key)]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) != 1 or modes[0] not in POOLING:
        raise BenchError(
            f"{path}: pooling by {' + '.join(map(str, modes)) or 'nothing'} is not supported",
            f"supported: one of {', '.join(POOLING)}",
        )
    if config.get("include_prompt") is False:
        raise BenchError(f"{path}: pooling without the prompt's tokens is not supported")
    return POOLING[modes[0]]


def _read_stage(folder: Path, module: _Module) -> CardStage:
    config = read_json(inside(folder, module.path) / "config.json")
    for key in ("module_input_name", "module_output_name"):
        if config.get(key, "sentence_embedding") != "sentence_embedding":
            raise BenchError(f"{folder / module.path}: {key} = {config[key]!r} is unsupported")
    return CardStage(kind="dense" if module.name == "Dense" else "layer-norm", folder=module.path)


def _read_similarity(name: object) -> Similarity | None:
    if name in ("cosine", "dot"):
        return "cos" if name == "cosine" else "dot"
    if name is None:
        return None
    raise BenchError(f"similarity {name!r} is not supported", "supported: cosine, dot")


def _read_prompts(settings: Mapping[str, Any]) -> CardPrompts:
    prompts = settings.get("prompts") or {}
    fallback = prompts.get(settings.get("default_prompt_name"), "")
    document = next((prompts[name] for name in DOCUMENT_PROMPTS if prompts.get(name)), fallback)
    return CardPrompts(query=prompts.get("query") or fallback, document=document)


def _read_length(folder: Path) -> int | None:
    settings = _optional_json(folder / "sentence_bert_config.json")
    tokenizer = _optional_json(folder / "tokenizer_config.json")
    if settings.get("do_lower_case") and not tokenizer.get("do_lower_case"):
        raise BenchError(f"{folder}: do_lower_case outside the tokenizer is not supported")
    length = settings.get("max_seq_length") or tokenizer.get("model_max_length")
    return length if isinstance(length, int) and length < NO_LIMIT else None


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
