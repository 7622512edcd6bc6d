"""Adapters side by side, of which each query is encoded by one.

It is the one whose domain a query is closest to, among the training queries of each domain,
as the base encodes them. The rule is linear in the unit vector x of the query: the largest of
w_i x + b_i, and of equal ones the first. ``centroid`` is the nearest mean (Chronopoulou et al.,
AdapterSoup, EACL Findings 2023, choose a corpus's adapters by the similarity of mean vectors). A
query is compared with documents as its own adapter encodes them, see `retrievers.encoders.routed`.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from foundation.arrays import Float32Array, Float64Array, Int64Array
from foundation.errors import BenchError
from foundation.records import write_json
from retrievers.adapters.folder import AdaptedNetwork, parts_of
from retrievers.adapters.identify import ROUTER, ROUTING, Routing
from retrievers.models.model import Model


@dataclass(frozen=True, eq=False)
class Router:
    """The linear rule that chooses an adapter.

    Attributes:
        weight: float64 ``(adapters, dim)``.
        bias: float64 ``(adapters,)``.
    """

    weight: Float64Array
    bias: Float64Array

    def choose(self, vectors: Float32Array) -> Int64Array:
        """Number of the adapter for each of the base's vectors ``(n, dim)``, int64 ``(n,)``."""
        chosen: Int64Array = np.argmax(unit(vectors) @ self.weight.T + self.bias, axis=1)
        return chosen

    def save(self, path: Path) -> None:
        """Write it as safetensors."""
        save_file({"weight": self.weight, "bias": self.bias}, path)

    @classmethod
    def read(cls, path: Path, adapters: int, dim: int) -> "Router":
        """The rule of a file.

        Raises:
            BenchError: it is damaged, or for other adapters.
        """
        try:
            held = load_file(path)
        except (OSError, SafetensorError) as error:
            raise BenchError(f"{path} is damaged", "compose the adapters again") from error
        shapes = {name: value.shape for name, value in held.items()}
        if shapes != {"weight": (adapters, dim), "bias": (adapters,)}:
            raise BenchError(f"{path} is not for {adapters} adapters and {dim} dimensions")
        return cls(held["weight"], held["bias"])


def fit_router(domains: Sequence[Float32Array]) -> Router:
    """Return the rule that finds the domain of a text: the nearest mean.

    Args:
        domains: of each, vectors of its texts by the base, float32 ``(n_i, dim)``, one or more.
    """
    means = np.stack([unit(vectors).mean(axis=0) for vectors in domains])
    return Router(means, -0.5 * (means**2).sum(axis=1))  # |x - m|^2 = |x|^2 - 2 (x m - |m|^2/2)


def unit(vectors: Float32Array) -> Float64Array:
    """Vectors of length 1, float64; those of length 0 stay."""
    doubles = vectors.astype(np.float64)
    lengths = np.linalg.norm(doubles, axis=1, keepdims=True)
    return doubles / np.where(lengths > 0, lengths, 1)


def route_adapters(
    base: Model,
    folders: Sequence[Path],
    out: Path,
    domains: Sequence[Sequence[str]],
    router: Router,
) -> None:
    """Write trained adapters as one model of which each query chooses.

    Args:
        base: that all were trained on.
        folders: of finished trainings, or of adapters; the first card among them says how vectors
            are made.
        domains: of each, the collections that it is for.
        router: by which each query chooses.

    Raises:
        BenchError: fewer than two adapters, or one of another base.
    """
    parts = parts_of(base, folders, composed=True)
    names = tuple(f"part_{place}" for place in range(1, len(parts.folders) + 1))
    routing = Routing(adapters=names, domains=tuple(map(tuple, domains)))
    card = parts.card(0, f"{len(names)} adapters, routed by {routing.by}")

    def write(folder: Path) -> None:
        for name, part in zip(names, parts.folders, strict=True):
            shutil.copytree(part, folder / name)
        router.save(folder / ROUTER)
        write_json(folder / ROUTING, routing)

    AdaptedNetwork(base, "routed", write).save(out, card)
