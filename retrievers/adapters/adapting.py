"""Adapter tuning: a small set of weights is trained, and the encoder that they are in is frozen.

Settings are read from the ``[adapter]`` table of a preset for fine-tuning. The methods are those of
AdapterHub (Poth et al., Adapters, EMNLP 2023 demos) and of PEFT, by their own names and options.
"""

import difflib
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from foundation.errors import BenchError
from foundation.records import Record
from retrievers.models.checkpoint import sha256

Library = Literal["adapterhub", "peft"]
FUSION = "fusion"
UNION = "union"
HUB_METHODS = (
    *("seq_bn", "double_seq_bn", "par_bn", "scaled_par_bn", "seq_bn_inv", "double_seq_bn_inv"),
    *("compacter", "compacter++", "prefix_tuning", "prefix_tuning_flat", "prompt_tuning"),
    *("lora", "dora", "ia3", "vera", "dvora", "loreft", "noreft", "direft", "mam", "unipelt"),
    *(UNION, FUSION),
)
# Method in a preset: PEFT's name of its configuration.
PEFT_METHODS = {
    "lora": "LoraConfig",
    "ia3": "IA3Config",
    "loha": "LoHaConfig",
    "lokr": "LoKrConfig",
    "oft": "OFTConfig",
    "hra": "HRAConfig",
    "vera": "VeraConfig",
    "fourierft": "FourierFTConfig",
    "ln_tuning": "LNTuningConfig",
    "prompt_tuning": "PromptTuningConfig",
    "p_tuning": "PromptEncoderConfig",
    "prefix_tuning": "PrefixTuningConfig",
}
# Names of papers and of older versions of AdapterHub.
KNOWN_AS = {
    "pfeiffer": "seq_bn",
    "bottleneck": "seq_bn",
    "houlsby": "double_seq_bn",
    "parallel": "par_bn",
    "prefix": "prefix_tuning",
    "prompt": "prompt_tuning",
    "p-tuning": "p_tuning",
    "reft": "loreft",
    "fuse": FUSION,
}


class Adapter(Record, kw_only=True):
    """Which adapter is trained.

    Attributes:
        library: whose method it is.
        method: its name there. ``union`` combines several of AdapterHub: ``options.parts`` is a
            list of tables with ``method`` and ``options``. ``fusion`` is AdapterFusion (Pfeiffer
            et al., EACL 2021): the adapters of ``over`` stay as they are, and how much each
            counts, by token and layer, is learned.
        options: of the method, by the library's own names; others are its defaults.
        over: folders of adapters of the same base, which are frozen too. The new adapter is
            stacked on them, the first at the bottom (MAD-X: Pfeiffer et al., EMNLP 2020).
        lr: learning rate instead of the optimizer's: adapters want a higher one than encoders.
    """

    library: Library = "adapterhub"
    method: str
    options: dict[str, Any] = {}
    over: tuple[str, ...] = ()
    lr: Annotated[float, msgspec.Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        if self.library == "peft" and self.over:
            raise ValueError("adapters are stacked and fused by AdapterHub, not by PEFT")
        if self.method == FUSION and len(self.over) < 2:
            raise ValueError("a fusion needs two adapters or more in over")


def decays(adapter: Adapter) -> bool:
    """Whether weight decay may be applied.

    LoReFT's projection is kept orthogonal by PyTorch, which multiplies it by whole numbers that are
    1 at first: any decay makes them 0, and the adapter does nothing from then on.
    """
    parts = adapter.options.get("parts") if adapter.method == UNION else ()
    if not isinstance(parts, list | tuple):
        return True  # refused by `check_names`
    named = [one.get("method") for one in parts if isinstance(one, Mapping)]
    return "loreft" not in (adapter.method, *named)


def can_recompute(adapter: Adapter) -> bool:
    """Whether gradient checkpointing gives the same: it drops the prefix that PEFT hands in."""
    return (adapter.library, adapter.method) != ("peft", "prefix_tuning")


def positions_of(adapter: Adapter) -> int:
    """Positions of the network that the adapter takes from the text."""
    count = adapter.options.get("num_virtual_tokens", 0) if adapter.library == "peft" else 0
    return count if isinstance(count, int) else 0


def files_below(adapter: Adapter | None) -> dict[str, str]:
    """sha256 of all files in the folders that a new adapter is put on, by path."""
    folders = [Path(one).expanduser() for one in adapter.over] if adapter else []
    paths = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {str(path): sha256(path) for path in paths}


def methods_of(library: Library) -> tuple[str, ...]:
    """Names of the methods that can be trained."""
    return HUB_METHODS if library == "adapterhub" else tuple(PEFT_METHODS)


def check_names(adapter: Adapter) -> None:
    """Refuse unknown methods and options.

    Raises:
        BenchError: an unknown name (with what was meant), or the library is not installed.
    """
    if adapter.method not in methods_of(adapter.library):
        raise _unknown_method(adapter)
    if adapter.library == "peft":
        from retrievers.adapters.adapting_peft import configuration
    else:
        from retrievers.adapters.adapting_hub import configuration
    configuration(adapter.method, adapter.options)


def library_of(name: str) -> Any:
    """The imported library.

    Raises:
        BenchError: it is not installed, or not for this version of transformers.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BenchError(
            f"this adapter needs the library {name!r}, which cannot be imported: {error}",
            f"pip install 'retrieval-bench[{name}]'",
        ) from error


def check_options(method: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse options that the method does not have.

    Raises:
        BenchError: with what was probably meant.
    """
    names = sorted(known)
    for wrong in sorted(set(options) - set(names)):
        close = difflib.get_close_matches(wrong, names, n=2)
        hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(names)}"
        raise BenchError(f"the adapter method {method} has no option {wrong!r}", hint)


def _unknown_method(adapter: Adapter) -> BenchError:
    names = methods_of(adapter.library)
    meant = KNOWN_AS.get(adapter.method.lower())
    close = difflib.get_close_matches(adapter.method.lower(), names, n=2)
    found = [meant] if meant in names else close
    hint = f"did you mean {' or '.join(found)}?" if found else f"there are: {', '.join(names)}"
    return BenchError(f"{adapter.library} has no adapter method {adapter.method!r}", hint)
