"""One base, many adapters: the base's weights are read once and shared by all encoders.

Each encoder gets modules of its own, whose parameters are the very tensors of the base: an adapter
is attached to one of them without the others seeing it, and the base is in memory once.
"""

import copy
from pathlib import Path
from typing import Any

from retrievers.models.checkpoint import Checkpoint
from retrievers.models.recipe import Recipe

Key = tuple[Path, str, str, bool]


class Bases:
    """Networks that were loaded, for encoders that are opened with them.

    Only for encoders that leave the weights as they are: those with an adapter.
    """

    def __init__(self) -> None:
        self._loaded: dict[Key, Any] = {}

    def network(self, checkpoint: Checkpoint, recipe: Recipe) -> Any:
        """The transformer of a checkpoint; its parameters are shared with all others of it."""
        from retrievers.models.loading import load_network

        pooler = recipe.pooling == "pooler"
        key = (checkpoint.folder, checkpoint.weights_sha256, recipe.dtype, pooler)
        if key not in self._loaded:
            self._loaded[key] = load_network(checkpoint, recipe)
        network = self._loaded[key]
        shared = [*network.parameters(), *network.buffers()]
        return copy.deepcopy(network, {id(tensor): tensor for tensor in shared})
