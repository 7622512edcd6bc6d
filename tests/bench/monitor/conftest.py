"""A real training, whose checkpoints the tests copy."""

from pathlib import Path

import pytest

from tests.support.training import train


@pytest.fixture(scope="package")
def trained(tmp_path_factory) -> Path:
    """Checkpoints as the Hugging Face Trainer leaves them."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder)
    return folder
