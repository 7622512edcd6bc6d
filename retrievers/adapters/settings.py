"""Settings of adapter tuning: a small set of weights is trained in an encoder that is frozen.

They are read from the ``[adapter]`` table of a preset for fine-tuning. The methods are those of
AdapterHub (Poth et al., Adapters, EMNLP 2023 demos) and of PEFT, by their own names and options.
"""

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from foundation.errors import BenchError, did_you_mean
from foundation.files import sha256_of_file
from foundation.records import Record

Library = Literal["adapterhub", "peft"]
FUSION = "fusion"
BOTTLENECKS = ("seq_bn", "double_seq_bn", "par_bn", "seq_bn_inv", "double_seq_bn_inv")


class AdapterSettings(Record, kw_only=True):
    """Settings of the adapter that is trained.

    Attributes:
        library: whose method it is.
        method: its name there. ``fusion`` is AdapterFusion (Pfeiffer et al., EACL 2021): the
            adapters of ``over`` stay as they are, and how much each counts, by token and layer, is
            learned.
        options: of the method, by the library's own names; others are its defaults.
        over: folders of adapters of the same base, which are frozen too. The new adapter is
            stacked on them, the first at the bottom (MAD-X: Pfeiffer et al., EMNLP 2020).
        lr: learning rate instead of the optimizer's: adapters want a higher one than encoders.
        init_scale: of a bottleneck's weights, which are drawn from a normal distribution of this
            deviation, cut at two of them, as Houlsby et al. do; None for the library's way.
        norms: the LayerNorms of the encoder are trained too (Houlsby et al., ICML 2019); they are
            kept with the adapter. Of AdapterHub, and for an adapter that is used alone.
    """

    library: Library = "adapterhub"
    method: str
    options: dict[str, Any] = {}
    over: tuple[str, ...] = ()
    lr: Annotated[float, msgspec.Meta(gt=0)] | None = None
    init_scale: Annotated[float, msgspec.Meta(gt=0)] | None = None
    norms: bool = False

    def __post_init__(self) -> None:
        if self.library == "peft" and self.over:
            raise ValueError("adapters are stacked and fused by AdapterHub, not by PEFT")
        if self.norms and (self.library == "peft" or self.over):
            raise ValueError(
                "norms are trained with an adapter of AdapterHub that is over no other"
            )
        if self.init_scale is not None and self.method not in BOTTLENECKS:
            raise ValueError(f"init_scale is for bottlenecks: {', '.join(BOTTLENECKS)}")
        if self.method == FUSION and len(self.over) < 2:
            raise ValueError("a fusion needs two adapters or more in over")

    def hashes_below(self) -> dict[str, str]:
        """sha256 of all files in the folders that the adapter is put on, by path."""
        folders = [Path(folder).expanduser() for folder in self.over]
        paths = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
        return {str(path): sha256_of_file(path) for path in paths}


def import_library(name: Literal["adapters", "peft"]) -> Any:
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
        hint = did_you_mean(wrong, names, f"it has {', '.join(names)}")
        raise BenchError(f"the adapter method {method} has no option {wrong!r}", hint)
