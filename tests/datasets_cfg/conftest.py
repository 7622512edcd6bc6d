"""A server of files for downloads."""

from collections.abc import Callable, Iterator

import pytest

from datasets_cfg.dataset import Dataset, open_dataset
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


@pytest.fixture
def open_(tmp_path) -> Callable[..., Dataset]:
    """`open_dataset` with a cache of this test and no downloads, unless they are asked for."""

    def open_with_cache(name: object, **options) -> Dataset:
        return open_dataset(
            str(name), **{"cache_dir": tmp_path / "cache", "download": False, **options}
        )

    return open_with_cache
