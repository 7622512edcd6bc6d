"""A collection of three shards, and a tiny model."""

import pytest

from tests.support.engines import several_shards, tiny_bert


@pytest.fixture(scope="session")
def collection(tmp_path_factory):
    return several_shards(tmp_path_factory.mktemp("collection") / "words")


@pytest.fixture(scope="session")
def card(tmp_path_factory):
    return str(tiny_bert(tmp_path_factory.mktemp("model")))
