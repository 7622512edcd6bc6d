"""The choice of the engine that searches exactly on a device."""

import sys
from pathlib import Path

from bench.evaluate.exact.task import Engine
from bench.evaluate.exact.tile_search import ProcessorEngine

# Of NVIDIA's driver, of Windows' subsystem for Linux, of AMD's driver.
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def engine_for(device: str) -> Engine:
    """NumPy for ``cpu``, PyTorch for ``cuda`` or ``cuda:N``.

    Raises:
        BenchError: the device is unknown or missing.
    """
    if device == "cpu":
        return ProcessorEngine()
    from bench.evaluate.exact.torch_engine import TorchEngine

    return TorchEngine(device)


def sees_gpu() -> bool:
    """True where PyTorch has a GPU; it is imported only where a driver has left its file."""
    if "torch" not in sys.modules and not any(Path(file).exists() for file in GPU_FILES):
        return False
    import torch

    return bool(torch.cuda.is_available())
