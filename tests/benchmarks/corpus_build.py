"""How much time and memory a corpus of a million passages takes to build and to open again.

What is measured, each in a fresh process:

- ``build``: read a synthetic BEIR ``corpus.jsonl``, write the Arrow corpus, sort its ids. Seconds,
  and the peak resident set of the process (``ru_maxrss``). That figure counts everything resident,
  so pages of the memory-mapped corpus that the id sort touched are in it, although the system can
  drop them at any time; pages that only sit in the file cache are not.
- ``open``: open the finished corpus, which checks its ids, and the samples of its source; find an
  id. Seconds, imports left out.
- ``check``: compare all titles and texts with their checksums, then the whole source. Seconds of
  each: a run that reads no text waits for neither, they pass in the background of its search.

Why: a collection such as MS MARCO must never be held in memory as Python objects, and a second
run must not wait for its corpus. Wanted for 1,000,000 passages: a peak under 1 GB, opened in
under 1 s.

The last line of stdout is one JSON document. Run from the repository root:

    python -m tests.benchmarks.corpus_build --documents 1000000 --words 60 --folder /tmp/corpus
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
VOCABULARY = 30_000


def main() -> None:
    """Write the passages, then build and open in processes of their own."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source, target = Path(folder) / "corpus.jsonl", Path(folder) / "corpus"
        write_passages(source, options.documents, options.words)
        report = {
            "documents": options.documents,
            "words": options.words,
            "source_bytes": source.stat().st_size,
            "build": _in_a_process("build", source, target),
            "corpus_bytes": sum(path.stat().st_size for path in target.iterdir()),
            "open": _in_a_process("open", source, target),
            "check": _in_a_process("check", source, target),
        }
    print(json.dumps(report))


def write_passages(path: Path, documents: int, words: int) -> None:
    """Write passages of ``words`` words, with shuffled numbers as ids; always the same ones."""
    draw = random.Random(0)
    vocabulary = [f"{draw.getrandbits(24 + number % 9):x}" for number in range(VOCABULARY)]
    numbers = list(range(documents))
    draw.shuffle(numbers)
    with path.open("w") as lines:
        for number in numbers:
            text = " ".join(draw.choices(vocabulary, k=words))
            lines.write(json.dumps({"_id": str(number), "title": "", "text": text}) + "\n")


def measure_build(source: Path, target: Path) -> dict[str, float]:
    """Build the corpus in this process."""
    from datasets_cfg.corpus import Corpus
    from datasets_cfg.readers.beir import read_documents

    start = time.perf_counter()
    corpus = Corpus.build(read_documents(source), target, [source])
    seconds = time.perf_counter() - start
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "peak_rss_mb": peak_kib * 1024 / 1e6, "documents": len(corpus)}


def measure_open(source: Path, target: Path) -> dict[str, float]:
    """Open the corpus in this process."""
    from datasets_cfg.corpus import Corpus

    start = time.perf_counter()
    corpus = Corpus.open(target)
    opened = time.perf_counter()
    (row,) = corpus.rows_of(["0"]).tolist()
    return {"seconds": opened - start, "find_id_s": time.perf_counter() - opened, "row": row}


def measure_check(source: Path, target: Path) -> dict[str, float]:
    """Compare the documents with their checksums, in this process."""
    from datasets_cfg.corpus import Corpus

    corpus = Corpus.open(target)
    start = time.perf_counter()
    _ = corpus.texts
    return {"seconds": time.perf_counter() - start}


MEASUREMENTS = {"build": measure_build, "open": measure_open, "check": measure_check}


def _in_a_process(name: str, source: Path, target: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.corpus_build"]
    child = subprocess.run(
        [*command, "--measure", name, str(source), str(target)],
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
    )
    measured: dict[str, float] = json.loads(child.stdout)
    return measured


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--words", type=int, default=60, help="words per passage")
    parser.add_argument("--folder", type=Path, help="where to write (about 1 GB)")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        name, source, target = sys.argv[2:]
        print(json.dumps(MEASUREMENTS[name](Path(source), Path(target))))
    else:
        main()
