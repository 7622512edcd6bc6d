"""Conditions of this process: the machine, the libraries, and the program itself."""

import hashlib
import platform
import subprocess
from functools import cache
from pathlib import Path

from bench.results.result import Conditions
from foundation.machine import library_version, now

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "faiss-cpu",
    "faiss-gpu",
    "numpy",
    "pystemmer",
    "ir-measures",
    "adapters",
    "peft",
)
# All that vectors, rankings and scores come from; commands, reports and decisions are left out.
PACKAGES = ("foundation", "datasets_cfg", "retrievers", "bench/evaluate", "bench/store")


@cache
def program_digest(root: Path = ROOT) -> str:
    """16 hexadecimal digits of the source files and cards; "" where they are not at hand."""
    files = sorted(
        path
        for name in PACKAGES
        for path in (root / name).rglob("*")
        if path.suffix in (".py", ".toml")
    )
    content = hashlib.sha256()
    for path in files:
        source = path.read_bytes()
        content.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode())
        content.update(source)
    return content.hexdigest()[:16] if files else ""


def conditions(device: str, search_device: str, threads: int) -> Conditions:
    """The conditions of this machine and program, now."""
    from bench import __version__

    commit = _git(ROOT, "rev-parse", "HEAD")
    return Conditions(
        time=now(),
        bench=__version__,
        commit=commit,
        dirty=bool(commit and _git(ROOT, "status", "--porcelain", "--untracked-files=no")),
        python=platform.python_version(),
        machine=machine(),
        device=device,
        search_device=search_device,
        threads=threads,
        libraries=library_versions(),
        program=program_digest(),
    )


def machine() -> str:
    """Operating system and processor family of this machine."""
    return f"{platform.system()} {platform.machine()}"


def library_versions() -> dict[str, str]:
    """Versions of the libraries that vectors, rankings and scores come from."""
    return {name: installed for name in LIBRARIES if (installed := library_version(name))}


@cache
def _git(root: Path, *arguments: str) -> str:
    """Output of git in a checkout, "" where there is none; asked once in a process."""
    if not (root / ".git").exists():
        return ""
    try:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
