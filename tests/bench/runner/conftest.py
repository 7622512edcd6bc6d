"""A collection of five shards, a tiny model, and what one process makes of them."""

import pytest

from tests.support.engines import Bed, several_shards, tiny_bert


@pytest.fixture(scope="session")
def collection(tmp_path_factory):
    return several_shards(tmp_path_factory.mktemp("collection") / "words")


@pytest.fixture(scope="session")
def card(tmp_path_factory):
    return str(tiny_bert(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="session")
def undisturbed(collection, card, tmp_path_factory):
    """Encoded by this process alone, on one thread."""
    bed = Bed(tmp_path_factory.mktemp("undisturbed"), collection, card)
    bed.encode_on_one_thread()
    return bed
