"""Settings of adapter tuning, which trains few weights in a frozen encoder.

They come from the ``[adapter]`` table of a fine-tuning preset. Methods are those of AdapterHub
(Poth et al., Adapters, EMNLP 2023 demos) and PEFT, with their names and options.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from foundation.errors import BenchError, did_you_mean, import_package
from foundation.files import sha256_of_file
from foundation.records import Record

Library = Literal["adapterhub", "peft"]
FUSION = "fusion"
BOTTLENECKS = ("seq_bn", "double_seq_bn", "par_bn", "seq_bn_inv", "double_seq_bn_inv")


class AdapterSettings(Record, kw_only=True):
    """Settings of the adapter to train.

    Attributes:
        library: library of the method.
        method: name of the method in that library. ``fusion`` is AdapterFusion (Pfeiffer et al.,
            EACL 2021): the adapters of ``over`` stay fixed, and their weight for each token and
            layer is learned.
        options: options of the method, by the library's names; others have its defaults.
        over: folders of adapters of the same base, which are frozen too. The new adapter is stacked
            on them, the first at the bottom (MAD-X: Pfeiffer et al., EMNLP 2020).
        lr: learning rate instead of the optimizer's, since adapters need a higher one than
            encoders.
        init_scale: standard deviation of a bottleneck's initial weights, drawn from a normal
            distribution cut at two deviations, as in Houlsby et al.; None for the library's
            default.
        norms: train the encoder's LayerNorms too (Houlsby et al., ICML 2019), and save them with
            the adapter. For AdapterHub, and for an adapter that is used alone.
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
            raise ValueError(
                "over needs library = adapterhub: PEFT does not stack or fuse adapters"
            )
        if self.norms and (self.library == "peft" or self.over):
            raise ValueError("norms needs library = adapterhub and an empty over")
        if self.init_scale is not None and self.method not in BOTTLENECKS:
            raise ValueError(f"init_scale needs a bottleneck method: {', '.join(BOTTLENECKS)}")
        if self.method == FUSION and len(self.over) < 2:
            raise ValueError("fusion needs two or more adapters in over")

    def hashes_below(self) -> dict[str, str]:
        """Return the sha256 of all files in the folders of ``over``, by path."""
        folders = [Path(folder).expanduser() for folder in self.over]
        paths = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
        return {str(path): sha256_of_file(path) for path in paths}


def import_library(name: Literal["adapters", "peft"]) -> Any:
    """Import the library ``name``.

    Raises:
        BenchError: it is not installed, or does not support this version of transformers.
    """
    problem = f"this adapter needs the library {name!r}, which cannot be imported"
    return import_package(name, problem, f"pip install 'retrieval-bench[{name}]'")


def check_options(method: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise if ``options`` has a name that is not in ``known``, the options of ``method``.

    Raises:
        BenchError: with the option that was probably meant.
    """
    names = sorted(known)
    for wrong in sorted(set(options) - set(names)):
        hint = did_you_mean(wrong, names, f"it has {', '.join(names)}")
        raise BenchError(f"the adapter method {method} has no option {wrong!r}", hint)
