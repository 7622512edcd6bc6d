"""Size of a training: parameters counted on the network, bytes counted on the files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from foundation.records import Record, read_json, write_json

SIZE_FILE = "size.json"
WEIGHTS = (".safetensors", ".bin")


class Size(Record, kw_only=True):
    """Costs of a finished checkpoint or adapter.

    Attributes:
        parameters: of the network, adapters included; tied ones count once.
        trained: of these, those that the optimizer changed.
        saved_bytes: of the files of weights that were written.
    """

    parameters: int
    trained: int
    saved_bytes: int

    @property
    def share(self) -> float:
        """Trained parameters of all, in 0..1."""
        return self.trained / self.parameters


def write_size(network: Any, folder: Path, files: Iterable[Path]) -> None:
    """Count parameters and bytes, and write ``size.json``.

    Args:
        network: as it was trained.
        folder: of the training.
        files: that were written; of these, those of weights count.
    """
    counts = [(weight.numel(), weight.requires_grad) for weight in network.parameters()]
    weights = [path for path in files if path.suffix in WEIGHTS]
    size = Size(
        parameters=sum(count for count, _ in counts),
        trained=sum(count for count, requires_grad in counts if requires_grad),
        saved_bytes=sum(path.stat().st_size for path in weights),
    )
    write_json(folder / SIZE_FILE, size)


def read_size(folder: Path) -> Size | None:
    """The size that `write_size` wrote; None where it wrote none.

    Raises:
        BenchError: the file is damaged.
    """
    path = folder / SIZE_FILE
    return read_json(path, Size, "remove it") if path.is_file() else None
