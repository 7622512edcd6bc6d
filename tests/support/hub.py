"""The Hugging Face Hub's cache on this machine, with the Hub itself out of reach."""

from pathlib import Path

import pytest


def write_hub(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str = "name",
    commit: str = "c0ffee",
) -> Path:
    """Move a folder into the cache, as a commit of org/name; returns where it lies."""
    from huggingface_hub import constants

    cache = tmp_path / "hub" / f"models--org--{name}"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(commit)
    (cache / "snapshots").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return folder.rename(cache / "snapshots" / commit)
