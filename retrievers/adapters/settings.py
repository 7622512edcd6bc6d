"""Settings of adapter tuning: a small set of weights is trained in an encoder that is frozen.

They are read from the ``[adapter]`` table of a preset for fine-tuning. The methods are those of
AdapterHub (Poth et al., Adapters, EMNLP 2023 demos) and of PEFT, by their own names and options.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from foundation.files import sha256_of_file
from foundation.records import Record

Library = Literal["adapterhub", "peft"]
FUSION = "fusion"
UNION = "union"
BOTTLENECKS = ("seq_bn", "double_seq_bn", "par_bn", "seq_bn_inv", "double_seq_bn_inv")


class Adapter(Record, kw_only=True):
    """Settings of the adapter that is trained.

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

    @property
    def allows_weight_decay(self) -> bool:
        """False for LoReFT.

        Its projection is kept orthogonal by PyTorch, which multiplies it by whole numbers that are
        1 at first: any decay makes them 0, and the adapter does nothing from then on.
        """
        parts = self.options.get("parts") if self.method == UNION else ()
        if not isinstance(parts, list | tuple):
            return True  # refused by `methods.check_method`
        methods = [part.get("method") for part in parts if isinstance(part, Mapping)]
        return "loreft" not in (self.method, *methods)

    @property
    def allows_gradient_checkpointing(self) -> bool:
        """False for PEFT's prefix, which gradient checkpointing drops."""
        return (self.library, self.method) != ("peft", "prefix_tuning")

    @property
    def virtual_tokens(self) -> int:
        """Positions of the network that the adapter takes from the text."""
        count = self.options.get("num_virtual_tokens", 0) if self.library == "peft" else 0
        return count if isinstance(count, int) else 0

    def hashes_below(self) -> dict[str, str]:
        """sha256 of all files in the folders that the adapter is put on, by path."""
        folders = [Path(folder).expanduser() for folder in self.over]
        paths = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
        return {str(path): sha256_of_file(path) for path in paths}
