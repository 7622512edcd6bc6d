"""Devices by name. Imports torch, and nothing heavier."""

import re

import torch

from foundation.errors import BenchError


def pick_device(name: str) -> torch.device:
    """The device to run on; ``auto`` is CUDA where there is one.

    Raises:
        BenchError: the name is not a device, or the device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise BenchError(f"unknown device {name!r}", "use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BenchError(
            f"{name} was asked for, and PyTorch sees {torch.cuda.device_count()} CUDA devices",
            "use --device cpu, or install a CUDA build of torch",
        )
    return device
