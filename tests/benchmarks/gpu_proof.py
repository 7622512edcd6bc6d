"""Is what a GPU computes right, and how fast is it? One command, one table.

It needs no network: weights are random and of BERT-base's shape (speed does not depend on them),
texts are functions of Python's standard library. Each part is a command of this program, or one
function below, and is caught and timed:

- ``tests``: the tests that need a GPU;
- ``pretrain``: RetroMAE from scratch in bfloat16, which makes the models of the other parts;
- ``finetune``: that model with in-batch negatives and one of BM25 (``dpr-small``) in bfloat16;
- ``vectors``: in bfloat16 on the device beside float32 on the CPU;
- ``speed``: `bench speed` of the model, beside sentence-transformers;
- ``search``: exact search of `--rows` vectors; and bit for bit the hits of the CPU.

    python -m tests.benchmarks.gpu_proof --out proof

It needs this repository with its dependencies and a CUDA build of torch (2.10 or later); pytest
with hypothesis for the tests; accelerate, datasets and sentence-transformers for trainings and the
race. Missing packages are reported. Without a GPU, or with ``--dry-run``, it lists its parts. Exit
codes: 0, all checks passed; 1, one failed or a part broke. The table and then, as the last line,
one JSON document go to stdout; the document is in DIR/proof.json as well.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[2]
GPU_TESTS = (
    "tests/retrievers/encoders/test_packed.py",
    "tests/retrievers/encoders/test_tower_packed.py",
    "tests/retrievers/encoders/test_transformer.py",
    "tests/retrievers/training/objectives/test_objectives_train.py",
    "tests/retrievers/training/pretrain/test_pretrain.py",
    "tests/bench/evaluation/test_exact_search.py",
    "tests/bench/evaluation/test_device_search.py",
)
COMPARED = 512  # documents whose vectors are compared
LEAST_COSINE = 0.995  # of a centred vector in bfloat16 with float32's: random networks have 2 %
LEAST_FALL = 0.02  # of the mean loss, from the first third of the steps to the last
EQUAL_ROWS, EQUAL_QUERIES, DEPTHS = 200_000, 256, (10, 1_000, 3_000)
LIBRARIES = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "datasets")

PRESET = """
title = "proof"
batch_size = {batch}
max_tokens = {tokens}
steps = {steps}
precision = "bfloat16"
[start.scratch]
vocabulary = {vocabulary}
layers = {layers}
width = {width}
heads = {heads}
intermediate = {intermediate}
[objective]
name = "retromae"
[optimizer]
lr = {lr}
warmup = 0.0
schedule = "constant"
"""


# A random network tells passages apart by the mean of its tokens; some steps of a training undo it.
CARD = """
name = "proof"
title = "random weights"
checkpoint = "{model}"
pooling = "mean"
normalize = true
similarity = "cos"
max_query_tokens = {tokens}
max_document_tokens = {tokens}
"""


class NotInstalledError(Exception):
    """A part needs a package that this machine has not."""


@dataclass
class Part:
    """What came out of a part: figures by name with their units, and checks by name."""

    name: str
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    problem: str = ""

    @property
    def state(self) -> str:
        """As in the table."""
        if self.problem:
            return self.problem
        return "passed" if all(self.checks.values()) else "FAILED"


@dataclass(frozen=True)
class Proof:
    """The machine and the sizes that were asked for.

    Attributes:
        options: of the command line.
        folder: for what the parts make.
    """

    options: argparse.Namespace
    folder: Path

    @property
    def model(self) -> Path:
        """What ``pretrain`` makes."""
        return self.folder / "model"

    @property
    def card(self) -> Path:
        """A card of a model that has made one step, too small to change a weight."""
        path = self.folder / "proof.toml"
        path.write_text(CARD.format(model=self.folder / "random", tokens=self.options.tokens))
        return path

    def bench(self, *words: object) -> str:
        """Stdout of ``python -m bench`` with these words."""
        return run(sys.executable, "-m", "bench", *words, "--cache-dir", self.folder / "cache")

    def tests(self, part: Part) -> None:
        """The tests that need a GPU."""
        need("pytest", "hypothesis")
        words = ["-q", "-rs", "-p", "no:cacheprovider", "-k", "gpu or cuda", *GPU_TESTS]
        lines = run(sys.executable, "-m", "pytest", *words).strip().splitlines()
        part.figures["pytest"] = lines[-1]
        part.checks["some passed, none failed"] = " passed" in lines[-1]

    def pretrain(self, part: Part) -> None:
        """RetroMAE from scratch."""
        need("accelerate")
        preset = self.folder / "preset.toml"
        asked = vars(self.options)
        preset.write_text(PRESET.format(**asked, intermediate=4 * self.options.width))
        train = ("pretrain", preset, "--on", "stdlib-code", *self.device)
        self.bench(*train, "--out", self.model)
        still = ("--steps", 1, "--set", "optimizer.lr=1e-12")
        self.bench(*train, "--out", self.folder / "random", *still)
        loss_figures(part, self.model)

    def finetune(self, part: Part) -> None:
        """DPR's training of the pre-trained model."""
        need("accelerate", "datasets", "sentence_transformers")
        out, on = self.folder / "tuned", "stdlib-code/train"
        steps = ("--steps", self.options.steps, "--set", "precision=bfloat16")
        self.bench(
            *("finetune", "dpr-small", "--model", self.model, "--on", on, "--out", out),
            *(*steps, *self.device),
        )
        loss_figures(part, out)

    def vectors(self, part: Part) -> None:
        """Vectors in bfloat16 beside those in float32 on the CPU: each nearest to its own."""
        from bench.evaluation.collection_search import sample_documents
        from bench.runner.workspace import Workspace
        from retrievers.encoders.transformer import open_encoder
        from retrievers.models.resolve import resolve_model

        corpus = Workspace(self.folder / "cache").dataset("stdlib-code").corpus
        titles, texts = sample_documents(corpus, COMPARED)
        ours, exact = (
            open_encoder(resolve_model(str(self.card), dtype=dtype), device)
            .encode_documents(titles, texts)
            .astype(np.float64)
            for dtype, device in (("bfloat16", self.options.device), ("float32", "cpu"))
        )
        # Vectors of random networks have most of their length in common.
        ours, exact = (
            side / np.linalg.norm(side, axis=1, keepdims=True)
            for side in (ours - exact.mean(axis=0), exact - exact.mean(axis=0))
        )
        cosines = ours @ exact.T
        part.figures["least cosine with float32"] = float(np.diagonal(cosines).min())
        part.checks["cosine"] = bool(np.diagonal(cosines).min() >= LEAST_COSINE)
        nearest = exact[cosines.argmax(axis=1)]  # its own row, or that of nearly the same text
        alike = (nearest * exact).sum(axis=1)
        part.checks["nearest row is its own"] = bool(alike.min() >= LEAST_COSINE)

    def speed(self, part: Part) -> None:
        """`bench speed` of the model."""
        need("sentence_transformers")
        stdout = self.bench(
            *("speed", "--model", self.card, "--dtype", "bfloat16", *self.device, "--json"),
            *("--parts", "encode", "latency", "--against", "sentence-transformers"),
            *("--repeats", "3"),
        )
        report = json.loads(stdout.splitlines()[-1])
        part.figures["report"] = report
        for contest in report["encoding"]:
            for tool in contest["tools"]:
                rate = contest["tokens"] / tool["wall_s"]["median"]
                part.figures[f"{contest['name']}, {tool['tool']}, tokens/s"] = round(rate)
            part.checks[contest["name"]] = all(tool["agrees"] for tool in contest["tools"])
        for latency in report["latency"]:
            figure = float(np.median(latency["samples_ms"]))
            part.figures[f"{latency['what']}, {latency['rows']} rows, ms"] = figure

    def search(self, part: Part) -> None:
        """Exact search: equal to the CPU's, and timed."""
        from bench.evaluation.exact import ArrayVectors, exact_search
        from tests.support.exact_oracle import search_on_device

        sizes, rng = self.options, np.random.default_rng(0)
        on_device = partial(search_on_device, device=sizes.device)
        rows = min(EQUAL_ROWS, sizes.rows[0])
        documents = unit_vectors(rows, sizes.dim, sizes.device)[rng.integers(0, rows, rows)]
        queries = unit_vectors(min(EQUAL_QUERIES, rows), sizes.dim, sizes.device)
        asked = ArrayVectors(documents), queries.astype(np.float32)
        for depth in DEPTHS:
            found, truth = (
                search(*asked, min(depth, rows), np.arange(rows))
                for search in (on_device, exact_search)
            )
            same = np.array_equal(found.rows, truth.rows)
            same &= np.array_equal(found.scores, truth.scores)
            part.checks[f"{rows:,} rows, depth {depth:,}: hits of the CPU"] = bool(same)
        queries = unit_vectors(sizes.queries, sizes.dim, sizes.device).astype(np.float32)
        for rows in sizes.rows:
            vectors = ArrayVectors(unit_vectors(rows, sizes.dim, sizes.device))
            start = time.perf_counter()
            on_device(vectors, queries, sizes.depth, np.arange(rows))
            part.figures[f"{rows:,} x {sizes.dim}, seconds"] = time.perf_counter() - start

    @property
    def device(self) -> tuple[str, str]:
        """Option of the commands."""
        return "--device", self.options.device


PARTS: dict[str, Callable[[Proof, Part], None]] = {
    "tests": Proof.tests,
    "pretrain": Proof.pretrain,
    "finetune": Proof.finetune,
    "vectors": Proof.vectors,
    "speed": Proof.speed,
    "search": Proof.search,
}


def run(*words: object) -> str:
    """Stdout of a command at the root of the repository; stderr goes through.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(
        [str(word) for word in words], cwd=ROOT, stdout=-1, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stdout[-500:]}")
    return done.stdout


def need(*packages: str) -> None:
    """Refuse to go on without a package.

    Raises:
        NotInstalledError: one is not installed.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise NotInstalledError(f"not installed: {', '.join(missing)}")


def loss_figures(part: Part, folder: Path) -> None:
    """Speed and losses of a training, by its curve."""
    from retrievers.training.engine.context import CURVE_FILE, read_curve

    curve = read_curve(folder / CURVE_FILE)
    losses = [point.losses["loss"] for point in curve]
    third = max(1, len(losses) // 3)
    counted = curve[third:]  # in the first steps kernels are chosen
    seconds = sum(point.seconds for point in counted)
    part.figures |= {"losses": losses, "steps": curve[-1].step}
    part.figures["tokens/s"] = round(sum(point.tokens for point in counted) / seconds)
    fall = 1 - float(np.mean(losses[-third:])) / float(np.mean(losses[:third]))
    part.checks["the loss falls"] = fall >= LEAST_FALL


def unit_vectors(rows: int, dim: int, device: str) -> Any:
    """Random unit vectors, float16 ``(rows, dim)`` in the memory of the host."""
    import torch

    made = torch.empty((rows, dim), dtype=torch.float16)
    for part in made.split(1 << 18):
        drawn = torch.randn(part.shape, device=device)
        part.copy_(drawn / drawn.norm(dim=1, keepdim=True))
    return made.numpy()


def prove(proof: Proof, names: Sequence[str]) -> list[Part]:
    """Run parts one after the other; what one raises is its state."""
    parts = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        part, start = Part(name), time.perf_counter()
        try:
            PARTS[name](proof, part)
        except NotInstalledError as error:
            part.problem = str(error)
        except Exception as error:
            part.problem = f"BROKE: {error}"
        part.seconds = time.perf_counter() - start
        parts.append(part)
    return parts


def table_of(parts: Sequence[Part]) -> str:
    """State, time and figures of each part, and the checks that failed."""
    rows = []
    for part in parts:
        words = [f"{name} {value}" for name, value in part.figures.items() if not _is_long(value)]
        words += [f"FAILED: {name}" for name, passed in part.checks.items() if not passed]
        rows.append([part.name, part.state[:70], f"{part.seconds:.1f}", "\n".join(words)])
    return tabulate(rows, ["part", "state", "seconds", "figures"], tablefmt="grid")


def _is_long(value: object) -> bool:
    return isinstance(value, (list, dict))


def machine(device: str) -> dict[str, Any]:
    """What explains a figure."""
    import torch

    found: dict[str, Any] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and the JSON document, and judge."""
    options = _options(arguments)
    import torch

    there = torch.cuda.is_available() or not options.device.startswith("cuda")
    if options.dry_run or not there:
        why = "would run" if there else f"{options.device} is not there; on a GPU it would run"
        says = (f"    {name}: {PARTS[name].__doc__}" for name in options.only)
        print("\n".join([why, *says]))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    parts = prove(Proof(options, options.out.resolve()), options.only)
    document = {
        "machine": machine(options.device),
        "options": {name: str(value) for name, value in vars(options).items()},
        "parts": [{**vars(part), "state": part.state} for part in parts],
    }
    (options.out / "proof.json").write_text(json.dumps(document, indent=1))
    print(table_of(parts), end="\n\n")
    print(json.dumps(document))
    bad = [part for part in parts if part.state.startswith(("FAILED", "BROKE"))]
    return 1 if bad else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of proof.json")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--lr", type=float, default=5e-4, help="of the pre-training")
    numbers = {"layers": 12, "width": 768, "heads": 12, "vocabulary": 30_522, "tokens": 128}
    numbers |= {"batch": 128, "steps": 20, "dim": 768, "queries": 6_980, "depth": 1_000}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 8_841_823])
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
