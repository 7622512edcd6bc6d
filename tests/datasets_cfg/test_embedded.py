"""The embedded collections: complete, disjoint, and what their version says."""

from collections import Counter

import pytest

from datasets_cfg.dataset import Dataset, count_differences, open_dataset
from foundation.files import hash_records


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory) -> Dataset:
    return open_dataset("stdlib-code", cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Dataset:
    return open_dataset("stdlib-code/train", cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", ["evaluated", "training"])
def test_the_version_is_a_hash_of_the_content(name, request):
    dataset = request.getfixturevalue(name)
    documents = hash_records((id_, text) for id_, _, text in dataset.reader.documents())
    queries = zip(dataset.queries.ids, dataset.queries.texts, strict=True)
    asked = hash_records((id_.removeprefix("q:"), text) for id_, text in queries)
    assert dataset.facts.version == f"py3.11.7-{hash_records([(documents, asked)])[:12]}"
    assert count_differences(dataset) == []


def test_each_query_has_one_relevant_document_that_does_not_contain_it(evaluated):
    code_of = {document.id: document.text for document in evaluated.reader.documents()}
    assert {grade for *_, grade in evaluated.qrels} == {1}
    assert all(query == f"q:{document}" for query, document, _ in evaluated.qrels)
    assert Counter(code_of.values()).most_common(1)[0][1] == 1
    for id_, sentence in zip(evaluated.queries.ids, evaluated.queries.texts, strict=True):
        assert sentence not in code_of[id_.removeprefix("q:")]


def test_training_data_are_not_evaluated(evaluated, training):
    first, second = (list(each.reader.documents()) for each in (evaluated, training))
    assert not {one.id for one in first} & {one.id for one in second}
    assert not {one.text for one in first} & {one.text for one in second}
    asked = {bare(text) for text in evaluated.queries.texts}
    assert not asked & set(map(bare, training.queries.texts))


def bare(text: str) -> str:
    """A sentence without anything but letters and digits."""
    return "".join(sign for sign in text.casefold() if sign.isalnum())
