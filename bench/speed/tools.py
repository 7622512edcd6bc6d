"""Other tools as seen from here: which are installed, what they are asked, how they answer."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np

from bench.speed.encode import Pass
from bench.speed.machine import peak_bytes
from bench.speed.peers.job import Job
from bench.speed.texts import Texts
from foundation.errors import BenchError
from retrievers.models.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.02
LOG = "stderr"
SENTENCE_TRANSFORMERS = "sentence-transformers"
# What each tool's module is called, and the batch size that it has by default.
MODULES: Mapping[str, str] = MappingProxyType(
    {SENTENCE_TRANSFORMERS: "sentence_transformers", "beir": "beir", "mteb": "mteb"}
)
DEFAULT_BATCH: Mapping[str, int] = MappingProxyType(
    {SENTENCE_TRANSFORMERS: 32, "beir": 128, "mteb": 32}
)
OTHER_BATCHES = (16,)  # of sentence-transformers: on CPUs smaller ones are faster


def check_installed(tools: Sequence[str]) -> None:
    """All tools that were named can be imported.

    Raises:
        BenchError: one is not installed.
    """
    missing = [tool for tool in tools if importlib.util.find_spec(MODULES[tool]) is None]
    if missing:
        raise BenchError(
            f"not installed here: {', '.join(missing)}",
            f"pip install {' '.join(missing)} (or `tox -e race`, which makes an environment)",
        )


def job_for(recipe: Recipe, weights: Path, device: str, threads: int) -> Job:
    """The same weights, length and precision for another tool."""
    return Job(
        weights=str(weights),
        device=device,
        dtype=recipe.dtype,
        threads=threads,
        max_tokens=recipe.max_document_tokens,
        similarity=recipe.similarity,
        query_prompt=recipe.prompts.query,
        document_prompt=recipe.prompts.document,
    )


def environment(threads: int) -> dict[str, str]:
    """Of every process of a race: this code importable, no hub, the same threads."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
    }


@dataclass(frozen=True)
class FinishedProcess:
    """A process that ended well: seconds on the wall and of the processor, VmHWM, what it printed.

    The processor's seconds are of all threads, and of the children that it waited for.
    """

    seconds: float
    processor_s: float
    peak_bytes: int
    stdout: str


def run_process(command: Sequence[str], threads: int, what: str) -> FinishedProcess:
    """Run a command from start to end, watching its memory.

    Raises:
        BenchError: it failed; its last words are in the message.
    """
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment(threads), stdout=stdout, stderr=stderr, text=True
        )
        peak = 0
        try:
            while True:
                peak = max(peak, peak_bytes(process.pid))
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
                if ended:
                    break
                time.sleep(POLL_S)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            process.kill()
        seconds = time.perf_counter() - start
        if process.returncode:
            raise _failed(what, _content(stderr))
        return FinishedProcess(seconds, usage.ru_utime + usage.ru_stime, peak, _content(stdout))


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _failed(what: str, stderr: str) -> BenchError:
    lines = [line for line in stderr.splitlines() if line.strip()] or ["it said nothing"]
    return BenchError(f"{what} failed: {lines[-1]}", "\n  ".join(["its last lines:", *lines[-8:]]))


def last_line(stdout: str, what: str) -> dict[str, Any]:
    """The JSON document on the last line that a peer printed.

    Raises:
        BenchError: there is none.
    """
    try:
        answer: dict[str, Any] = json.loads(stdout.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise BenchError(f"{what} gave no result") from error
    return answer


@dataclass(frozen=True)
class SentenceTransformers:
    """sentence-transformers in a process of its own; a `Contestant`.

    Attributes:
        folder: where texts, vectors and what it says on stderr are put.
    """

    process: "subprocess.Popen[str]"
    folder: Path
    tool: str
    version: str = ""

    def encode(self, texts: Texts) -> Pass:
        """Encode the documents once. Its own clock is read: handing texts over is not counted."""
        name = texts.name.replace("/", "_")
        asked, vectors = self.folder / f"{name}.json", self.folder / f"{name}.npy"
        if not asked.exists():
            asked.write_text(json.dumps(texts.texts), encoding="utf-8")
        answer = self.ask({"texts": str(asked), "vectors": str(vectors)})
        return Pass(float(answer["seconds"]), float(answer["processor_s"]), np.load(vectors))

    def ask(self, question: dict[str, str] | None = None) -> dict[str, Any]:
        """The next line that it answers.

        Raises:
            BenchError: it has ended.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise ValueError("a peer is started with pipes")
        try:
            if question:
                stdin.write(json.dumps(question) + "\n")
                stdin.flush()
            answer: dict[str, Any] = json.loads(stdout.readline())
        except (OSError, ValueError) as error:
            said = (self.folder / LOG).read_text(encoding="utf-8", errors="replace")
            raise _failed(self.tool, said) from error
        return answer


@contextmanager
def sentence_transformers(job: Job, batch_size: int) -> Iterator[SentenceTransformers]:
    """sentence-transformers with its weights loaded and one batch size; it ends with the block.

    Raises:
        BenchError: it does not start.
    """
    command = [sys.executable, "-m", "bench.speed.peers.sbert"]
    command.append(replace(job, batch_size=batch_size).to_json())
    default = ", its default" if batch_size == DEFAULT_BATCH[SENTENCE_TRANSFORMERS] else ""
    tool = f"{SENTENCE_TRANSFORMERS} (batch {batch_size}{default})"
    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / LOG).open("w") as log:
            process = subprocess.Popen(
                command,
                env=environment(job.threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        peer = SentenceTransformers(process, Path(folder), tool)
        try:
            yield replace(peer, version=str(peer.ask()["version"]))
        finally:
            process.kill()
            process.communicate()
