"""``python -m tests.benchmarks.gpu_proof``: see the package, and ``--help``."""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks import gpu_proof
from tests.benchmarks.gpu_proof.report import Part, Proof, Report, encoded, table_of
from tests.benchmarks.gpu_proof.setup import DRY, FULL, Setup

SECTIONS = ("machine", "correctness", "search", "encoding", "training", "memory")
NEEDS = """\
It needs no network, and nothing but this repository, a CUDA build of torch (2.10 or later),
transformers, sentence-transformers, what these bring, and scipy, pandas, pyarrow, tabulate,
threadpoolctl and accelerate. One small wheel is needed on top: msgspec. With datasets, dill,
multiprocess and xxhash DPR is trained too, and with a faiss that sees the GPU its indexes are
measured; without them these parts say "not installed".

Exit codes: 0, all checks passed; 1, a check failed or a part broke; 4, nothing failed, and parts
were left out for lack of time. The last line of stdout is one JSON document, which is in
DIR/proof.json as well.
"""
NO_GPU = (
    "no GPU: would measure encoding, exact search and training on CUDA, and check that they are "
    "right; --dry-run does it with tiny sizes on the CPU"
)


def parts_of(setup: Setup) -> Iterator[Part]:
    """Every part, the most telling first: the budget may end before they do."""
    from tests.benchmarks.gpu_proof import (
        correctness,
        encoding,
        latency,
        machine,
        memory,
        search,
        training,
    )

    yield from machine.parts(setup)
    yield from correctness.first_parts(setup)
    yield from search.first_parts(setup)
    yield from encoding.parts(setup, "bert")
    yield from latency.parts(setup, "bert")
    yield search.large_part(setup)
    yield from training.parts(setup)
    yield from encoding.parts(setup, "minilm")
    yield from latency.parts(setup, "minilm")
    yield from correctness.later_parts(setup)
    yield from memory.parts(setup)
    yield search.faiss_part(setup)


def prove(options: argparse.Namespace, device: str) -> Report:
    """Run every part that was asked for."""
    from tests.benchmarks.gpu_proof.machine import describe
    from tests.support.variable_length_on_cpu import packing

    options.out.mkdir(parents=True, exist_ok=True)
    told = {name: getattr(options, name) for name in ("budget_s", "weights", "dry_run", "only")}
    proof = Proof(options.out, options.budget_s, describe(device), told)
    with tempfile.TemporaryDirectory(dir=options.out) as name, packing(device):
        setup = Setup(DRY if options.dry_run else FULL, device, Path(name), options.weights)
        parts = [part for part in parts_of(setup) if part.section in options.only]
        if options.dry_run:
            parts = [Part(part.section, part.name, 0.0, part.run) for part in parts]
        return proof.run(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and the JSON document, and judge."""
    options = _options(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    if not options.dry_run and not torch.cuda.is_available():
        print(NO_GPU)
        return 0
    report = prove(options, "cpu" if options.dry_run else "cuda")
    print(f"{table_of(report)}\n")
    print(encoded(report).decode())
    if not report.passed:
        return 1
    return 0 if report.complete else 4


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gpu_proof",
        description=gpu_proof.__doc__,
        epilog=NEEDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of proof.json")
    parser.add_argument(
        "--budget-s", type=float, default=540.0, help="seconds for all parts (default: 540)"
    )
    parser.add_argument(
        "--weights",
        type=Path,
        help="folder with real checkpoints in folders named bert, roberta and minilm; random "
        "weights stand in for those that are not there",
    )
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="these sections"
    )
    options = parser.parse_args(arguments)
    if options.weights is not None and not options.weights.is_dir():
        parser.error(f"--weights {options.weights}: no such folder")
    return options


if __name__ == "__main__":
    sys.exit(main())
