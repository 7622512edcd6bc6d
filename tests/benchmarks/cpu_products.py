"""Which matrix product on the CPU is fastest for the layers of an encoder in float32?

Candidates compute the four products of a layer, with bias, GELU and residuals, for MiniLM's and
BERT-base's shapes and a batch of the size that encoding uses:

- ``onednn, fused``: oneDNN with weights that are laid out once; products apply GELU and add
  residuals;
- ``onednn``: the same products, GELU and residuals by PyTorch after them;
- ``torch``: PyTorch's linear layers, which are MKL's;
- ``mkl packed``: MKL with weights that are laid out once, as PyTorch's compiler calls it. No
  choice for encoders: the layout is for one number of tokens.

Each computes in one thread, in alternation. Times are medians of CPU time. ``*`` marks what
encoders choose on this processor. On a processor with AVX-512, switches of the libraries select
the kernels for AVX2 (MKL's are always those for AVX2 on AMD):

    python -m tests.benchmarks.cpu_products
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python -m tests.benchmarks.cpu_products

The last line of stdout is one JSON document. The exit code is 1 if what encoders choose takes more
than 1.05 times the time of PyTorch's own.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation

from foundation.machine import keep_freed_memory, processor_name
from retrievers.encoders.device import use_one_thread
from retrievers.encoders.packed import FusedLinear, OneDNNLinear
from retrievers.encoders.transformer import CPU_TOKENS

WIDTHS = {"MiniLM": 384, "BERT-base": 768}
PRODUCTS = ("query, key, value", "mix", "widen", "narrow")
SLOWER = 1.05  # than PyTorch's own, which a quiet machine does not show by chance


class Fused(OneDNNLinear):
    """oneDNN's product with GELU or the residual."""

    @staticmethod
    def fuses() -> bool:
        return True


class Separate(OneDNNLinear):
    """oneDNN's product, then GELU or the residual."""

    @staticmethod
    def fuses() -> bool:
        return False


class Packed(FusedLinear):
    """MKL with weights that are laid out for a batch of ``CPU_TOKENS``."""

    def __init__(self, layers: list[nn.Linear], after: Any = None) -> None:
        super().__init__(layers, after)
        self._packed = torch.ops.mkl._mkl_reorder_linear_weight(self.weight, CPU_TOKENS)

    def forward(self, inputs: Tensor, residual: Tensor | None = None) -> Tensor:
        weights = (self._packed, self.weight, self.bias)
        output = torch.ops.mkl._mkl_linear(inputs, *weights, CPU_TOKENS)
        if residual is not None:
            return output + residual
        return output if self.after is None else self.after(output)


CANDIDATES: dict[str, type[FusedLinear]] = {
    "onednn, fused": Fused,
    "onednn": Separate,
    "torch": FusedLinear,
    "mkl packed": Packed,
}


def layer_of(width: int, product: type[FusedLinear]) -> dict[str, FusedLinear]:
    """The products of one layer, with the same weights for each class."""
    torch.manual_seed(0)
    sizes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    layers = [nn.Linear(*size) for size in sizes]
    after = (None, None, GELUActivation(), None)
    return {
        name: product([layer], act)
        for name, layer, act in zip(PRODUCTS, layers, after, strict=True)
    }


def compute(name: str, layer: FusedLinear, inputs: Tensor, residual: Tensor) -> Tensor:
    """One product as an encoder calls it."""
    return layer(inputs, residual if name in ("mix", "narrow") else None)


@torch.inference_mode()
def measure(width: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of CPU time for each candidate and product, medians."""
    candidates = {name: layer_of(width, product) for name, product in CANDIDATES.items()}
    residual = torch.randn(CPU_TOKENS, width)
    taken: dict[str, dict[str, list[float]]] = {
        name: {product: [] for product in PRODUCTS} for name in candidates
    }
    for product in PRODUCTS:
        inputs = torch.randn(CPU_TOKENS, width * (4 if product == "narrow" else 1))
        expected = compute(product, candidates["torch"][product], inputs, residual.clone())
        for turn in range(rounds + 1):  # the first one is not counted
            for name, layer in candidates.items():
                added = residual.clone()
                start = time.thread_time()
                found = compute(product, layer[product], inputs, added)
                if turn:
                    taken[name][product].append(1000 * (time.thread_time() - start))
                else:
                    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    return {
        name: {product: statistics.median(times) for product, times in products.items()}
        for name, products in taken.items()
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    chosen = "onednn, fused" if OneDNNLinear.fuses() else "onednn"
    keep_freed_memory()
    with use_one_thread():
        models = {name: measure(width, rounds) for name, width in WIDTHS.items()}
    ratios = {}
    for model, candidates in models.items():
        whole = {name: sum(products.values()) for name, products in candidates.items()}
        ratios[model] = whole["torch"] / whole[chosen]
        print(f"{model}, ms of CPU time for {CPU_TOKENS} tokens")
        for name, products in candidates.items():
            each = "  ".join(f"{product} {ms:.2f}" for product, ms in products.items())
            mark = "*" if name == chosen else " "
            print(f"{mark} {name:20} {whole[name]:7.2f}   {each}")
    report = {
        "ms": models,
        "chosen": chosen,
        "torch_relative_to_chosen": ratios,
        "processor": processor_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }
    print(json.dumps(report))
    return 0 if min(ratios.values()) * SLOWER >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
