"""How fast is a GPU here, and is what it computes right? One command, one table, ten minutes.

It needs no network: weights are random and of BERT-base's shape (speed does not depend on them),
vectors are random, and texts consist of functions of Python's standard library. Parts run in the
order of their worth, each in a process of its own with a time limit, so that one that dies or hangs
loses only what it has not printed:

- ``exact``: exact search in vectors of MS MARCO's shape, from files;
- ``encode``: passages from end to end, tokenised alone, encoded alone, by sentence-transformers;
- ``equal``: exact search bit for bit, and the largest ratio of its error to the bound;
- ``race``: exact search in a million vectors next to FAISS's ``GpuIndexFlatIP``;
- ``lists``: training of inverted lists on the GPU and on the CPU;
- ``codes``: an index with compressed vectors of MS MARCO's shape;
- ``kinds``: kinds of FAISS indexes and depths on a GPU, each in a process of its own;
- ``tests``: the tests that need a GPU;
- ``command``: what the second command on a machine does besides encoding and search.

    python -m tests.benchmarks.gpu_proof --out proof

A part without its packages or a GPU says so. Exit codes: 0, all checks passed; 1, one failed or a
part broke. Goals are shown and not judged. Figures are printed as they come, then a table and, as
the last line, a JSON document, which is in DIR/proof.json as well. ``--dry-run`` runs all parts on
the CPU with small sizes.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Timer
from typing import Any

import msgspec
import numpy as np
import psutil
from tabulate import tabulate

from bench.evaluation.encoding import encode_documents
from bench.evaluation.exact import ArrayVectors, exact_search
from bench.evaluation.pipeline import current_conditions
from bench.evaluation.result_record import Result
from bench.runner.workspace import Workspace
from bench.speed.race import time_call
from bench.store.shards import Shard, ShardManifest, StoredVectors
from foundation.records import read_json
from retrievers.encoders.transformer import open_encoder
from retrievers.index import faiss_index
from retrievers.index.faiss_index import FaissIndex, IndexSpec
from retrievers.index.hits import Hits, recall_at_k
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support.collections import WORDS, write_collection
from tests.support.exact_oracle import error_ratio, search_on_device
from tests.support.tiny_checkpoints import write_bert, write_card

ROOT = Path(__file__).resolve().parents[2]
SELF = (sys.executable, "-m", "tests.benchmarks.gpu_proof")
MARK = "@figure "  # begins a line with a figure of a part
TOTAL_S, MIN_S = 590.0, 5.0  # of all parts, and the least to start one
TILE_ROWS = 1 << 17
COMPARED = 512  # documents whose vectors are compared
LEAST_COSINE = 0.995  # of a centred vector in bfloat16 with float32's: random networks have 2 %
SOME_QUERIES = 200
TESTS = (
    "tests/retrievers/index",
    "tests/retrievers/encoders",
    "tests/bench/evaluation/test_device_search.py",
    "tests/bench/evaluation/test_exact_search.py",
    "tests/retrievers/training/objectives",
    "tests/retrievers/training/pretrain/test_pretrain.py",
    "tests/retrievers/training/finetune/test_finetuning.py",
)
ONE_TEST = "tests/retrievers/index/test_index_gpu.py::test_ranges_and_candidates_fit"
# Value at 9c6977b8 on an H200, and goal.
GOALS = {
    "search from files, s": ("27", "≤ 2"),
    "a million in float32, s": ("6.0-7.3", ""),
    "a million / FAISS": ("", "≤ 1"),
    "tokenised alone, tokens/s": ("1,920,000", ""),
    "encoded alone, tokens/s": ("2,200,000-2,550,000", ""),
    "end to end, tokens/s": ("1,140,000", "≥ 2,000,000"),
    "end to end / encoded alone": ("", "≥ .85"),
    "one query, ms": ("3.8", "≤ 2.5"),
    "one query, sentence-transformers, ms": ("16.5", ""),
    "trained on the CPU, s": ("13.1", ""),
    "trained on the device, s": ("", "≤ 2"),
    "train, add and search, s": ("", "≤ 60"),
    "second command besides encoding, s": ("24", "≤ 8"),
}
Figures = Iterator[tuple[str, Any]]


@dataclass(frozen=True)
class Sizes:
    """What is measured on a GPU: MS MARCO's shape, and BERT-base."""

    device: str = "cuda"
    rows: int = 8_841_823
    dim: int = 768
    queries: int = 6_980
    depth: int = 1_000
    race_rows: int = 1_000_000
    equal_rows: int = 200_000
    cases: int = 300
    layers: int = 12
    passages: int = 400_000
    words: int = 71  # of a passage, which has two tokens more
    lists: str = "IVF1024,Flat?nprobe=16"
    trained_rows: int = 262_144
    codes: str = "IVF4096,PQ64?nprobe=64"
    kinds: tuple[str, ...] = (
        *("Flat", "SQfp16", "IVF64,Flat?nprobe=64", "IVF64,SQfp16?nprobe=64"),
        *("IVF64,SQ8?nprobe=64", "IVF64,SQ6?nprobe=64", "IVF64,SQ4?nprobe=64"),
        *("IVF64,PQ32?nprobe=64", "IVF64,PQ64?nprobe=64"),
    )
    depths: tuple[int, ...] = (100, 512, 513, 1_000, 2_048)
    kind_rows: int = 20_000
    tests: tuple[str, ...] = TESTS
    commands: tuple[str, ...] = ("first", "second")


SMALL = Sizes(
    *("cpu", 3_000, 32, 20, 50, 2_000, 500, 10, 2, 60, 20, "IVF8,Flat?nprobe=4", 2_100),
    *("IVF8,PQ8?nprobe=8", ("HNSW8",), (600,), 500, (ONE_TEST,), ("second",)),
)


@dataclass(frozen=True)
class Proof:
    """Sizes, and a folder that parts share. A part yields figures, and checks, which are bool."""

    sizes: Sizes
    folder: Path

    def exact(self) -> Figures:
        """Search vectors from files, and copy them only."""
        yield "vectors written, s", time_call(lambda: self.vectors)[0]
        for _ in range(2):
            spent, found = time_call(partial(self.search, self.vectors, self.queries))
            yield "search from files, s", spent
        np.save(self.folder / "exact.npy", found.rows[:SOME_QUERIES])
        if self.sizes.device == "cuda":
            import torch

            pageable = torch.from_numpy(next(self.vectors.stored_tiles(TILE_ROWS))[1])
            for name, tile in (("pinned", pageable.pin_memory()), ("pageable", pageable)):
                spent = min(time_call(partial(tile.to, "cuda"))[0] for _ in range(5))
                yield f"{name} copies alone, s", spent * self.sizes.rows / len(tile)

    def encode(self) -> Figures:
        """Encode passages from end to end, and do its parts alone."""
        encoder: Any = open_encoder(self.model("bfloat16"), self.sizes.device)
        dataset, texts = self.workspace.dataset(str(self.collection)), self.passages
        some, titles = texts[:100_000], [""] * len(texts)
        encoder.encode_documents(titles[:20_000], texts[:20_000])  # compiles the network
        spent, prepared = time_call(partial(encoder.prepare_documents, titles[: len(some)], some))
        tokens = self.sizes.words + 2
        yield "tokenised alone, tokens/s", round(len(some) * tokens / spent)
        alone = len(some) * tokens / time_call(prepared)[0]
        yield "encoded alone, tokens/s", round(alone)
        (self.folder / "rate").write_text(str(alone))
        work = partial(encode_documents, dataset, encoder, self.workspace.store)
        spent, stored = time_call(work)
        yield "end to end, tokens/s", round(len(texts) * tokens / spent)
        yield "end to end / encoded alone", len(texts) * tokens / spent / alone
        yield "one query, ms", self.query_ms(encoder.encode_queries)
        exact = open_encoder(self.model("float32"), "cpu")
        truth = exact.encode_documents(titles[:COMPARED], texts[:COMPARED]).astype(np.float64)
        pair = [stored.rows(np.arange(len(truth))) - truth.mean(axis=0), truth - truth.mean(axis=0)]
        lengths = np.linalg.norm(pair, axis=2).prod(axis=0)  # random networks share the mean
        cosine = float((np.prod(pair, axis=0).sum(axis=1) / lengths).min())
        yield "least cosine with float32 on the CPU", cosine
        yield "vectors agree with float32 on the CPU", cosine >= LEAST_COSINE
        yield from self.sentence_transformers(texts[:20_000], alone)

    def sentence_transformers(self, texts: list[str], alone: float) -> Figures:
        """Encode by sentence-transformers in both batches."""
        import torch
        from sentence_transformers import SentenceTransformer

        load = {"model_kwargs": {"dtype": torch.bfloat16}}
        model = SentenceTransformer(self.checkpoint, device=self.sizes.device, **load)
        model.max_seq_length = 256
        encode = partial(model.encode, show_progress_bar=False)
        rates = []
        for size in (32, 256):
            encode(texts[:size])
            spent = time_call(partial(encode, texts, batch_size=size))[0]
            rates.append(len(texts) * (self.sizes.words + 2) / spent)
            yield f"sentence-transformers, batch {size}, tokens/s", round(rates[-1])
        yield "encoded alone / sentence-transformers", alone / max(rates)
        yield "one query, sentence-transformers, ms", self.query_ms(encode)

    def query_ms(self, encode: Any) -> float:
        """Return the median time of one query."""
        queries = [" ".join(text.split()[:8]) for text in self.passages[:SOME_QUERIES]]
        return 1000 * float(np.median([time_call(partial(encode, [text]))[0] for text in queries]))

    def equal(self) -> Figures:
        """Compare exact search with the CPU's, bit for bit, and its error with the bound."""
        from hypothesis import settings

        size, rng = self.sizes, np.random.default_rng(0)
        ratios = []
        for dim in (64, 384, 768, 1_024):
            for dtype in (np.float16, np.float32):
                for offset in (0, 1):  # sums of numbers of one sign lose most
                    documents = rng.standard_normal((size.equal_rows // 4, dim)) / 8 + offset
                    queries = rng.standard_normal((64, dim)) * 10.0 ** rng.uniform(-4, 2, (64, 1))
                    asked = documents.astype(dtype), (queries + offset).astype(np.float32)
                    ratios.append(error_ratio(*asked, size.device))
        yield "largest error / bound", max(ratios)
        yield "errors stay within the bound", max(ratios) < 1
        rows = min(size.equal_rows, size.rows)
        documents = self.vectors.rows(rng.integers(0, rows, rows))  # some of them twice
        asked = ArrayVectors(documents.astype(np.float16)), self.queries[:SOME_QUERIES]
        for depth in (10, 1_000, 3_000):
            found = self.search(*asked, min(depth, rows))
            truth = exact_search(*asked, min(depth, rows), np.arange(rows))
            same = np.array_equal(found.rows, truth.rows)
            yield (
                f"depth {depth:,}: hits of the CPU",
                same and bool(np.array_equal(found.scores, truth.scores)),
            )
        # The property has 150 examples if a profile has 100.
        wanted = -(-size.cases * 100 // 150)
        settings.register_profile("proof", max_examples=wanted, deadline=None, database=None)
        settings.load_profile("proof")
        from tests.bench.evaluation import test_device_search as tested

        tested.test_proposals_as_wrong_as_their_bound_allows_give_the_hits_of_the_processor(
            device=size.device
        )
        yield f"{size.cases:,} random cases with wrong proposals: hits of brute force", True

    def race(self) -> Figures:
        """Search a million vectors in float32, next to FAISS."""
        faiss, size = self.require_faiss(), self.sizes
        documents = self.vectors.rows(np.arange(min(size.race_rows, size.rows)))
        resources = [faiss.StandardGpuResources()] if size.device == "cuda" else []

        def search_flat() -> Hits:
            kind = faiss.GpuIndexFlatIP if resources else faiss.IndexFlatIP
            flat = kind(*resources, size.dim)
            flat.add(documents)
            return Hits(*flat.search(self.queries, size.depth))

        search = partial(self.search, ArrayVectors(documents), self.queries)
        for work in (search_flat, search):  # starts CUDA
            work()
        (theirs, flat), (ours, hits) = time_call(search_flat), time_call(search)
        yield "FAISS flat, add and search, s", theirs
        yield "a million in float32, s", ours
        yield "a million / FAISS", ours / theirs
        yield "at least .999 of FAISS's hits", shared(flat, hits) >= 0.999

    def lists(self) -> Figures:
        """Train inverted lists on the device and on the CPU."""
        self.require_faiss()
        size, queries = self.sizes, self.queries[:SOME_QUERIES]
        sample = self.vectors.rows(np.arange(size.trained_rows))
        truth = self.search(ArrayVectors(sample), queries, 10)
        for name, device in (("the device", size.device), ("the CPU", "cpu")):
            index = FaissIndex(IndexSpec.parse(size.lists), size.dim, device)
            yield f"trained on {name}, s", time_call(partial(index.train, sample))[0]
            index.add(sample)
            yield f"recall@10, trained on {name}", shared(index.search(queries, 10), truth)

    def codes(self) -> Figures:
        """Train, fill and search an index of compressed vectors."""
        self.require_faiss()
        size, vectors = self.sizes, self.vectors
        index = FaissIndex(IndexSpec.parse(size.codes), size.dim, size.device)

        def fill() -> None:
            for _, tile in vectors.tiles(TILE_ROWS):
                index.add(tile)

        trained = time_call(lambda: index.train(vectors.rows(index.training_rows(size.rows))))[0]
        yield "trained, s", trained
        yield "added, s", (added := time_call(fill)[0])
        searched, hits = time_call(partial(index.search, self.queries, size.depth))
        yield "searched, s", searched
        yield "train, add and search, s", trained + added + searched
        if (self.folder / "exact.npy").exists():
            truth = np.load(self.folder / "exact.npy")
            for depth in (10, 100, size.depth):
                pair = (Hits(rows, rows) for rows in (hits.rows[: len(truth)], truth))
                yield f"recall@{depth}", shared(*pair, depth)

    def kinds(self) -> Figures:
        """Search every kind of index at every depth, without the limits of this program."""
        self.require_faiss()
        cases = [(spec, k) for spec in self.sizes.kinds for k in self.sizes.depths]
        with ThreadPoolExecutor(8) as pool:
            found = dict(zip(cases, pool.map(self.try_kind, cases), strict=True))
        for spec in self.sizes.kinds:
            yield spec, ", ".join(f"{k}: {found[spec, k]}" for k in self.sizes.depths)
            index = FaissIndex(IndexSpec.parse(spec), self.sizes.dim)
            allowed = {found[spec, k] for k in self.sizes.depths if k <= index._gpu_depth}
            yield f"{spec} works as deep as allowed, {index._gpu_depth}", allowed <= {"works"}

    def try_kind(self, case: tuple[str, int]) -> str:
        """Return what FAISS does in a process of its own."""
        words = [*SELF, "--out", self.folder, "--case", *map(str, case)]
        words += ["--dry-run"] * (self.sizes.device == "cpu")
        try:
            done = subprocess.run(words, cwd=ROOT, stdout=-1, text=True, check=False, timeout=60)
        except subprocess.TimeoutExpired:
            return "hangs"
        if done.returncode < 0:
            return f"dies ({signal.Signals(-done.returncode).name})"
        return done.stdout.strip().rpartition("\n")[2] or f"exit code {done.returncode}"

    def search_kind(self, spec: str, k: int) -> str:
        """Search one kind of index on the device and compare it with the CPU."""
        faiss_index.largest_gpu_depth = lambda index: 1 << 20
        size, parsed = self.sizes, IndexSpec.parse(spec)
        vectors = np.random.default_rng(0).standard_normal((size.kind_rows, size.dim), np.float32)
        index, path = FaissIndex(parsed, size.dim, size.device), self.folder / str(os.getpid())
        if index.needs_training:
            index.train(vectors)
        index.add(vectors)
        hits = index.search(vectors[:50], k)
        if index.device != size.device:
            return "refused"
        index.save(path)
        found = shared(hits, FaissIndex.load(path, parsed, size.dim).search(vectors[:50], k))
        return "works" if found > 0.98 else f"{found:.2f} of the CPU's hits"

    def tests(self) -> Figures:
        """Run the tests that need a GPU."""
        words = ["-q", "-rs", "-p", "no:cacheprovider", "-k", "gpu or cuda", *self.sizes.tests]
        words = [sys.executable, "-m", "pytest", *words]
        done = subprocess.run(words, cwd=ROOT, stdout=-1, text=True, check=False)
        print(done.stdout, file=sys.stderr)
        last = done.stdout.strip().rpartition("\n")[2]
        yield "pytest", last
        yield "some tests passed, none failed", done.returncode == 0 and " passed" in last

    def command(self) -> Figures:
        """Run the command line twice, the second time without stored vectors."""
        out, rate = self.folder / "out", self.folder / "rate"
        words = ["run", self.collection, "--model", self.card, "--dtype", "bfloat16", "--recompute"]
        words += ["--device", self.sizes.device, "--results", out]
        words = [sys.executable, "-m", "bench", *words, "--cache-dir", self.workspace.cache_dir]
        run = partial(subprocess.run, words, cwd=ROOT, stdout=2, check=True)  # to stderr
        for name in self.sizes.commands:
            shutil.rmtree(self.workspace.vectors_dir, ignore_errors=True)
            spent = time_call(run)[0]
            timings = read_json(next(out.rglob("result.json")), Result).timings
            encoding = timings.encode_documents_s
            if rate.exists():  # of a compiled network
                encoding = timings.encoded_tokens / float(rate.read_text())
            yield f"{name} command, s", spent
            rest = spent - encoding - timings.search_s - timings.score_s
            yield f"{name} command besides encoding, s", rest

    def require_faiss(self) -> Any:
        """Return FAISS, or raise an ImportError if it cannot use the device."""
        import faiss

        if self.sizes.device != "cpu" and not faiss.get_num_gpus():
            raise ImportError("this FAISS sees no GPU: install faiss-gpu instead of faiss-cpu")
        return faiss

    def search(self, vectors: Any, queries: Any, depth: int = 0) -> Hits:
        """Search exactly as on a GPU, by default as deep as the sizes say."""
        asked = vectors, queries, depth or self.sizes.depth, np.arange(vectors.shape[0])
        work = search_on_device if self.sizes.device == "cpu" else exact_search
        return work(*asked, device=self.sizes.device)

    @cached_property
    def vectors(self) -> StoredVectors:
        """Vectors in float16 in the files of a store, written if they are missing."""
        size, folder = self.sizes, self.folder / "vectors"
        folder.mkdir(exist_ok=True)

        def write(start: int) -> Shard:
            rows = min(size.rows - start, 1 << 14)
            manifest = ShardManifest(1, "document", rows, size.dim, "float16", "", "")
            shard = Shard(folder / f"{start:08}.json", manifest)
            if not shard.path.exists():
                made = clustered(rows, size.dim, start + 1, size.device)
                made.half().cpu().numpy().tofile(shard.path)
            return shard

        with ThreadPoolExecutor(4) as pool:
            shards = tuple(pool.map(write, range(0, size.rows, 1 << 14)))
        return StoredVectors(shards, np.arange(size.rows), size.dim)

    @cached_property
    def queries(self) -> Any:
        """Queries, float32."""
        return clustered(self.sizes.queries, self.sizes.dim, 0, self.sizes.device).cpu().numpy()

    @property
    def workspace(self) -> Workspace:
        """Corpora and vectors of passages."""
        return Workspace(self.folder / "cache", device=self.sizes.device)

    @cached_property
    def passages(self) -> list[str]:
        """Texts of one token for each word."""
        shape = self.sizes.passages, self.sizes.words
        return [" ".join(words) for words in np.random.default_rng(0).choice(WORDS, shape)]

    @property
    def collection(self) -> Path:
        """A collection of the passages, written if it is missing."""
        folder = self.folder / "collection"
        if not folder.exists():
            documents = {f"d{number}": ("", text) for number, text in enumerate(self.passages)}
            queries = {f"q{number}": text[:60] for number, text in enumerate(self.passages[:100])}
            write_collection(folder, documents, queries, {("q1", "d1"): 1})
        return folder

    @property
    def checkpoint(self) -> str:
        """A BERT with random weights, written if it is missing."""
        folder, dim = self.folder / "model", self.sizes.dim
        if not folder.exists():
            sizes = {"hidden_size": dim, "intermediate_size": 4 * dim, "vocab_size": 30_522}
            sizes |= {"num_hidden_layers": self.sizes.layers, "max_position_embeddings": 512}
            write_bert(
                folder, **sizes, num_attention_heads=max(1, dim // 64), initializer_range=0.05
            )
        return str(folder)

    @property
    def card(self) -> Path:
        """A card of the checkpoint."""
        fields = {"pooling": "mean", "normalize": True, "similarity": "cos"}
        fields |= {"checkpoint": self.checkpoint, "max_document_tokens": 256}
        return write_card(self.folder / "proof.toml", **fields)

    def model(self, dtype: str) -> Any:
        """Return the model in a precision."""
        return resolve_model(str(self.card), ModelSettings(dtype=dtype))


# The seconds that a part may take, in the order of their worth.
PARTS = {"exact": 150, "encode": 160, "equal": 90, "race": 60, "lists": 60}
PARTS |= {"codes": 120, "kinds": 120, "tests": 120, "command": 90}


@dataclass
class Outcome:
    """What a part printed, and how it ended."""

    name: str
    problem: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """Return what the table says about the part."""
        failed = [f"FAILED: {name}" for name, passed in self.checks.items() if not passed]
        passed = f"{len(self.checks)} checks passed" if self.checks else "done"
        return ", ".join(filter(None, (self.problem, *failed))) or passed


def run_part(name: str, words: Sequence[str], limit_s: float) -> Outcome:
    """Run a command and read the figures that it prints, until it ends or the time is over."""
    outcome, start = Outcome(name), time.perf_counter()
    child = subprocess.Popen(words, cwd=ROOT, stdout=-1, text=True)
    timer = Timer(limit_s, stop, (child.pid,))
    timer.start()
    for line in child.stdout or ():
        if line.startswith(MARK):
            figure, value = json.loads(line.removeprefix(MARK))
            (outcome.checks if isinstance(value, bool) else outcome.figures)[figure] = value
            print(f"{name}: {figure}: {shown(value)}", flush=True)
    code, is_over = child.wait(), not timer.is_alive()
    timer.cancel()
    outcome.seconds = time.perf_counter() - start
    outcome.problem = outcome.figures.pop("problem", "")
    if is_over:
        outcome.problem = f"BROKE: stopped after {limit_s:.0f} s"
    elif code:
        how = f"died ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        outcome.problem = f"BROKE: {how}"
    return outcome


def stop(pid: int) -> None:
    """Kill a process and its children."""
    for each in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        each.kill()


def do_part(proof: Proof, name: str) -> None:
    """Do the work of a part in this process and print its figures."""
    try:
        for figure in getattr(proof, name)():
            print(MARK + json.dumps(figure), flush=True)
    except ImportError as error:
        print(MARK + json.dumps(["problem", f"left out: {error}"]), flush=True)


def clustered(rows: int, dim: int, seed: int, device: str) -> Any:
    """Return unit vectors around 1,000 centres in a space of 48 dimensions, as a float32 tensor."""
    import torch

    drawn = torch.Generator(device).manual_seed(0)
    normal = partial(torch.randn, device=device, generator=drawn)
    basis, centres = normal((48, dim)), normal((1_000, 48))
    drawn.manual_seed(seed + 1)
    chosen = torch.randint(len(centres), (rows,), device=device, generator=drawn)
    made = (centres[chosen] + normal((rows, 48))) @ basis + normal((rows, dim))
    return torch.nn.functional.normalize(made)


def shared(hits: Hits, truth: Hits, depth: int = 0) -> float:
    """Return the share of the true hits that were found."""
    return float(recall_at_k(hits, truth, depth or truth.rows.shape[1]).mean())


def shown(value: object) -> str:
    """Return a figure with a few digits."""
    return f"{value:,.3g}" if isinstance(value, float) else str(value)


def table_of(outcomes: Sequence[Outcome]) -> str:
    """Return a row for the state of each part, and one for each figure."""
    rows: list[tuple[str, ...]] = []
    for outcome in outcomes:
        rows.append((outcome.name, f"{outcome.state} ({outcome.seconds:.0f} s)"))
        for figure, value in outcome.figures.items():
            text = f"{value:,}" if isinstance(value, int) else shown(value)
            rows.append(("", figure, text, *GOALS.get(figure, ())))
    head = ["part", "figure", "value", "H200 at 9c6977b8", "goal"]
    return tabulate(rows, head, tablefmt="github", disable_numparse=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and the JSON document, and judge."""
    import torch

    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _options(given)
    sizes = SMALL if options.dry_run else Sizes()
    sizes = replace(sizes, cases=options.cases or sizes.cases)
    proof = Proof(sizes, options.out.resolve())
    if options.case:
        print(proof.search_kind(options.case[0], int(options.case[1])))
        return 0
    if options.part:
        do_part(proof, options.part)
        return 0
    if sizes.device == "cuda" and not torch.cuda.is_available():
        parts = [f"    {name}: {getattr(Proof, name).__doc__}" for name in options.only]
        print("\n".join(["there is no GPU (try --dry-run); on one it would run", *parts]))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    end, outcomes = time.perf_counter() + TOTAL_S, list[Outcome]()
    with tempfile.TemporaryDirectory(dir=proof.folder) as folder:
        for name in options.only:
            limit = min(PARTS[name], end - time.perf_counter())
            words = [*SELF, *given, "--out", folder, "--part", name]
            late = Outcome(name, "left out: no time")
            outcomes.append(run_part(name, words, limit) if limit > MIN_S else late)
    document = {
        "conditions": msgspec.to_builtins(current_conditions(sizes.device)),
        "gpu": torch.cuda.get_device_name() if sizes.device == "cuda" else "",
        "sizes": asdict(sizes),
        "parts": [{**vars(outcome), "state": outcome.state} for outcome in outcomes],
    }
    (proof.folder / "proof.json").write_text(json.dumps(document, indent=1))
    print(f"\n{table_of(outcomes)}\n\n{json.dumps(document)}")
    return 1 if any("FAILED" in each.state or "BROKE" in each.state for each in outcomes) else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of proof.json")
    parser.add_argument("--dry-run", action="store_true", help="small sizes, on the CPU")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--cases", type=int, help="random cases of the part equal")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
