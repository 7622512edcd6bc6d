"""A server of files for downloads."""

from collections.abc import Iterator

import pytest

from tests.support.file_server import FileServer, serve


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reach the loopback interface directly, whatever proxy the environment names."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def file_server() -> Iterator[FileServer]:
    """A running server that forgets everything after the test."""
    with serve() as server:
        yield server
