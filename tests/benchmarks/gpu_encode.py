"""How fast does a GPU encode, from texts to vectors on disk, and how near is that to its limit?

Four things take turns over the same passages with the same weights, cut at the same length:

- ``ours``: the encoder as it is used, ``prepare_documents`` in a thread of its own, some blocks
  ahead;
- ``ours-processes``: the same network and batches, with the tokenizer in processes of its own,
  since one process turns ids into Python lists no faster than one thread can;
- ``st``: sentence-transformers' ``encode``, float16 and 256 texts a batch;
- ``forward``: our network and batches alone, of passages that are already token ids.

All but ``forward`` begin with texts and end with float32 vectors in a file. Loading, compiling and
starting processes are not in the times: everything runs once before it counts. A ratio is that of
two neighbours in time. Where a vector differs by more than 5e-2 from sentence-transformers', the
exit code is 1.

The limit is measured: the matrix products of the model's own dense layers, at the batch that the
encoder uses and in its dtype, and nothing else. ``of_limit`` is a speed over the tokens/s that the
GPU would reach if it did only these products; attention and everything between is on top.

Without ``--checkpoint`` the model is a BERT-base with random weights and the vocabulary of
all-MiniLM-L6-v2; its speed is that of a trained one. Any checkpoint is used like all-MiniLM-L6-v2:
mean of the tokens, unit vectors, 256 tokens. Passages are synthetic: whole words of the vocabulary,
as many as a lognormal distribution says (median 74, sigma .4, cut to 10 to 250). It was fitted to
the lengths of 6,998 passages of MS MARCO in WordPieces, which are 83 on average with a median of
72; these are 82 and 75. Words that are in the vocabulary give the tokenizer less to do than real
text.

    python -m tests.benchmarks.gpu_encode [--checkpoint DIR] [--documents 100000]

Without a GPU it says what it would measure, and measures nothing. The last line of stdout is one
JSON document; times are in seconds.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from bench.speed.machine import timed
from bench.speed.weights import as_sentence_transformers
from foundation.errors import BenchError
from retrievers.encoders.clock import Clock
from retrievers.encoders.opening import open_encoder
from retrievers.encoders.tokens import Tokens
from retrievers.encoders.transformer import (
    CUDA_TOKENS,
    TransformerEncoder,
    plan_batches,
    plan_packed,
)
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.model import Model, resolve_model

if TYPE_CHECKING:
    from retrievers.encoders.tower import Tower  # processes that only tokenise import no torch

LIKE = "minilm"
MEDIAN_WORDS, SIGMA, FEWEST, MOST = 74, 0.4, 10, 250
BLOCK = 8_192  # passages that are tokenised together
AHEAD = 2  # blocks for each process
AGREEMENT = 5e-2  # of numbers in unit vectors: bfloat16 beside float16
PEER_BATCH = 256
GEMM_REPEATS = 20
LIBRARIES = ("numpy", "sentence-transformers", "tokenizers", "torch", "transformers")

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Result = TypeVar("Result")


class Gemm(NamedTuple):
    """One matrix product ``(rows, inner) @ (inner, columns)``, done ``times`` times a batch."""

    rows: int
    inner: int
    columns: int
    times: int

    @property
    def flops(self) -> float:
        """Of one product."""
        return 2.0 * self.rows * self.inner * self.columns


@dataclass(frozen=True)
class Setting:
    """What is encoded, by which model, where, and the folder of the vectors."""

    model: Model
    passages: Sequence[str]
    device: str
    peer_dtype: str
    folder: Path

    @property
    def checkpoint(self) -> Checkpoint:
        """The files of the model."""
        if self.model.document is None:
            raise BenchError(f"{self.model.card.name} has no checkpoint")
        return self.model.document

    @property
    def most(self) -> int:
        """Tokens that a passage is cut to."""
        return self.model.recipe.max_document_tokens

    @property
    def blocks(self) -> list[Sequence[str]]:
        """The passages, some thousands at a time."""
        starts = range(0, len(self.passages), BLOCK)
        return [self.passages[start : start + BLOCK] for start in starts]


def made_passages(words: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """Passages of words; the same ones for the same seed."""
    draw = np.random.default_rng(seed)
    lengths = draw.lognormal(np.log(MEDIAN_WORDS), SIGMA, count).round().astype(int)
    lengths = lengths.clip(FEWEST, MOST)
    chosen = draw.integers(0, len(words), lengths.sum())
    ends = lengths.cumsum()
    return [
        " ".join(words[place] for place in chosen[end - length : end])
        for end, length in zip(ends, lengths, strict=True)
    ]


def whole_words(tokenizer: Path) -> list[str]:
    """Words of a WordPiece vocabulary that are one token each."""
    vocabulary = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    return sorted(word for word in vocabulary if word.isascii() and word.isalpha())


def write_random_bert(folder: Path, tokenizer: Path, **sizes: int) -> None:
    """A BERT with random weights, of the size of BERT-base unless sizes say otherwise."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    BertModel(BertConfig(**sizes)).save_pretrained(str(folder))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder / name)


def gemms_of(config: Mapping[str, Any], tokens: int) -> list[Gemm]:
    """Matrix products of all dense layers of a BERT for a batch of ``tokens``."""
    layers = config["num_hidden_layers"]
    width, wide = config["hidden_size"], config["intermediate_size"]
    return [
        Gemm(tokens, width, width, 4 * layers),
        Gemm(tokens, width, wide, layers),
        Gemm(tokens, wide, width, layers),
    ]


def gemm_seconds(gemm: Gemm, dtype: str, device: str) -> float:
    """Seconds of one product: the median over runs of several, each from an idle device."""
    import torch

    kind = getattr(torch, dtype)
    left = torch.randn(gemm.rows, gemm.inner, device=device, dtype=kind)
    weight = torch.randn(gemm.columns, gemm.inner, device=device, dtype=kind)

    def products() -> None:
        for _ in range(GEMM_REPEATS):
            torch.nn.functional.linear(left, weight)

    products()
    return statistics.median(timed(products)[0] for _ in range(5)) / GEMM_REPEATS


def limit_of(config: Mapping[str, Any], tokens: int, dtype: str, device: str) -> dict[str, Any]:
    """Tokens/s of a model that were only its dense layers, and TFLOP/s of each product."""
    gemms = gemms_of(config, tokens)
    seconds = [gemm_seconds(gemm, dtype, device) for gemm in gemms]
    pairs = list(zip(gemms, seconds, strict=True))
    return {
        "tokens_per_batch": tokens,
        "tokens_per_s": tokens / sum(gemm.times * spent for gemm, spent in pairs),
        "products": [
            {"shape": gemm[:3], "times": gemm.times, "tflops": gemm.flops / spent / 1e12}
            for gemm, spent in pairs
        ],
    }


@cache
def _tokenizer(path: Path, most: int) -> Any:
    from tokenizers import Tokenizer  # type: ignore[import-untyped]

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(most)
    return tokenizer


def token_ids(path: Path, most: int, passages: Sequence[str]) -> tuple[Ints, Ints]:
    """Ids of all passages in one row, and the length of each: cheap to send between processes."""
    found = [encoding.ids for encoding in _tokenizer(path, most).encode_batch(list(passages))]
    lengths = np.array([len(ids) for ids in found], dtype=np.int32)
    return np.concatenate([np.array(ids, dtype=np.int32) for ids in found]), lengths


def in_order(jobs: Iterator[Future[Result]], ahead: int) -> Iterator[Result]:
    """Results in order; jobs are submitted, by being asked for, a few ahead of who asks."""
    waiting = deque(islice(jobs, ahead))
    while waiting:
        found = waiting.popleft().result()
        waiting.extend(islice(jobs, 1))
        yield found


def tokenised(setting: Setting, pool: Executor, workers: int) -> Iterator[list[Ints]]:
    """Ids of each passage, block by block."""
    path = setting.checkpoint.folder / "tokenizer.json"
    jobs = (pool.submit(token_ids, path, setting.most, block) for block in setting.blocks)
    for ids, lengths in in_order(jobs, AHEAD * workers):
        yield np.split(ids, lengths.cumsum()[:-1])


def encode_blocks(tower: "Tower", blocks: Iterable[list[Ints]], dim: int) -> Iterator[Floats]:
    """Vectors of each block, float32 ``(n, dim)``, rows in order."""
    plan = plan_packed if tower.packs else plan_batches
    for ids in blocks:
        vectors = np.empty((len(ids), dim), dtype=np.float32)
        tokens = Tokens.of(cast(Any, ids))
        for rows, found in tower.vectors(tokens, list(plan(tokens.lengths, CUDA_TOKENS))):
            vectors[rows] = found
        yield vectors


def product_blocks(encoder: TransformerEncoder, setting: Setting) -> Iterator[Floats]:
    """Vectors of each block; the next ones are tokenised while one is encoded."""
    with ThreadPoolExecutor(1) as thread:
        jobs = (
            thread.submit(encoder.prepare_documents, [""] * len(block), block)
            for block in setting.blocks
        )
        for encode in in_order(jobs, AHEAD):
            yield encode(None)


def write_all(path: Path, blocks: Iterator[Floats]) -> None:
    """Vectors to one raw float32 file."""
    with path.open("wb") as file:
        for vectors in blocks:
            vectors.tofile(file)
        file.flush()
        os.fsync(file.fileno())


def peer_of(setting: Setting, folder: Path) -> Callable[[], Iterator[Floats]]:
    """Sentence-transformers over the same weights: all vectors at once."""
    import torch
    from sentence_transformers import SentenceTransformer

    peer = SentenceTransformer(
        str(folder),
        device=setting.device,
        model_kwargs={"torch_dtype": getattr(torch, setting.peer_dtype)},
    )
    peer.max_seq_length = setting.most

    def blocks() -> Iterator[Floats]:
        found = peer.encode(list(setting.passages), batch_size=PEER_BATCH, show_progress_bar=False)
        yield np.asarray(found, dtype=np.float32)

    return blocks


def in_turns(jobs: Mapping[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each job, every round after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            spent, _ = timed(job)
            if turn:
                seconds[name].append(spent)
            print(f"{name}: {spent:.2f} s", file=sys.stderr)
    return seconds


def measure(setting: Setting, workers: int, repeats: int) -> dict[str, Any]:
    """Everything that is reported; runs on the CPU too, where its figures mean nothing."""
    import torch

    from retrievers.encoders.tower import Tower

    recipe, folder = setting.model.recipe, setting.folder
    encoder = open_encoder(setting.model, setting.device)
    if not isinstance(encoder, TransformerEncoder):
        raise BenchError(f"{recipe.model} is no transformer")
    device = torch.device(setting.device)
    tower = Tower(setting.checkpoint, recipe, None, device, Clock())
    with (
        as_sentence_transformers(setting.model, folder) as theirs,
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
    ):
        ids = list(tokenised(setting, pool, workers))
        peer = peer_of(setting, theirs)
        made: dict[str, Callable[[], Iterator[Floats]]] = {
            "ours": lambda: product_blocks(encoder, setting),
            "ours-processes": lambda: encode_blocks(
                tower, tokenised(setting, pool, workers), recipe.dim
            ),
            "st": peer,
            "forward": lambda: encode_blocks(tower, ids, recipe.dim),
        }

        def job(name: str) -> Callable[[], None]:
            return lambda: write_all(folder / f"{name}.f32", made[name]())

        seconds = in_turns({name: job(name) for name in made}, repeats)
    tokens = sum(len(one) for block in ids for one in block)
    limit = limit_of(setting.checkpoint.config, CUDA_TOKENS, recipe.dtype, setting.device)
    return report_of(setting, tower.packs, tokens, seconds, limit)


def report_of(
    setting: Setting,
    packs: bool,
    tokens: int,
    seconds: Mapping[str, Sequence[float]],
    limit: Mapping[str, Any],
) -> dict[str, Any]:
    """What is printed as JSON."""
    speeds = {name: tokens / statistics.median(some) for name, some in seconds.items()}
    return {
        "model": setting.model.card.name,
        "dtype": setting.model.recipe.dtype,
        "peer_dtype": setting.peer_dtype,
        "without_padding": packs,
        "documents": len(setting.passages),
        "tokens": tokens,
        "seconds": dict(seconds),
        "tokens_per_s": speeds,
        "ratio_to_st": {
            name: statistics.median(
                theirs / own for own, theirs in zip(some, seconds["st"], strict=True)
            )
            for name, some in seconds.items()
            if name != "st"
        },
        "of_limit": {name: speed / limit["tokens_per_s"] for name, speed in speeds.items()},
        "limit": dict(limit),
        "largest_difference": differences(setting.folder),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def differences(folder: Path) -> dict[str, float]:
    """Largest difference of a number from sentence-transformers', by file of vectors."""
    theirs = np.fromfile(folder / "st.f32", dtype=np.float32)
    return {
        path.stem: float(np.abs(np.fromfile(path, dtype=np.float32) - theirs).max())
        for path in sorted(folder.glob("*.f32"))
        if path.stem != "st"
    }


def table_of(report: Mapping[str, Any]) -> str:
    """Speeds for people."""
    from tabulate import tabulate

    cells = [
        [
            name,
            f"{speed:,.0f}",
            f"{statistics.median(report['seconds'][name]):.2f}",
            f"{report['ratio_to_st'].get(name, 1):.2f}",
            f"{report['of_limit'][name]:.0%}",
        ]
        for name, speed in report["tokens_per_s"].items()
    ]
    limit = report["limit"]["tokens_per_s"]
    cells.append(["dense layers alone (limit)", f"{limit:,.0f}", "", "", "100%"])
    headers = ["", "tokens/s", "seconds", "ratio to st", "of limit"]
    alignment = ["left", *["right"] * 4]
    return str(
        tabulate(cells, headers, tablefmt="github", colalign=alignment, disable_numparse=True)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = _options(arguments)
    import torch

    if not torch.cuda.is_available():
        print(
            "no GPU: would measure tokens/s of BERT on CUDA from texts to vectors on disk, ours "
            "without padding and sentence-transformers', beside the GPU's own matrix products"
        )
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        base = resolve_model(LIKE).document
        if base is None:
            raise BenchError(f"{LIKE} has no checkpoint")
        checkpoint = options.checkpoint
        if checkpoint is None:
            checkpoint = folder / "bert-base-random"
            write_random_bert(checkpoint, base.folder)
        model = resolve_model(str(checkpoint), like=LIKE, dtype=options.dtype)
        passages = made_passages(whole_words(base.folder / "tokenizer.json"), options.documents)
        setting = Setting(model, passages, "cuda", "float16", folder)
        report = measure(setting, options.workers, options.repeats)
    report |= {"gpu": torch.cuda.get_device_name(), "workers": options.workers}
    print(f"{report['model']}, {report['tokens']:,} tokens, {report['gpu']}\n")
    print(f"{table_of(report)}\n\nlargest differences: {report['largest_difference']}")
    print(json.dumps(report))
    return 0 if max(report["largest_difference"].values()) <= AGREEMENT else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, help="a BERT or RoBERTa; default: random")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each that count")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument(
        "--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="that tokenise"
    )
    parser.add_argument("--folder", type=Path, help="where vectors are written and removed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
