"""The embedded collections: complete, disjoint, and what their version says."""

from collections import Counter

import pytest

from datasets_cfg.dataset import Dataset, open_dataset
from datasets_cfg.verification import count_differences
from foundation.files import hash_records


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> list[Dataset]:
    """The collection to evaluate on, and the one to train on."""
    cache = tmp_path_factory.mktemp("cache")
    return [open_dataset(name, cache_dir=cache) for name in ("stdlib-code", "stdlib-code/train")]


@pytest.mark.parametrize("which", [0, 1])
def test_the_version_is_a_hash_of_the_content(which, opened):
    dataset = opened[which]
    documents = hash_records((id_, text) for id_, _, text in dataset.reader.documents())
    queries = zip(dataset.queries.ids, dataset.queries.texts, strict=True)
    asked = hash_records((id_.removeprefix("q:"), text) for id_, text in queries)
    assert dataset.metadata.version == f"py3.11.7-{hash_records([(documents, asked)])[:12]}"
    assert count_differences(dataset) == []


def test_each_query_has_one_relevant_document_that_does_not_contain_it(opened):
    evaluated, _ = opened
    code_of = {document.id: document.text for document in evaluated.reader.documents()}
    assert {grade for *_, grade in evaluated.qrels} == {1}
    assert all(query == f"q:{document}" for query, document, _ in evaluated.qrels)
    assert Counter(code_of.values()).most_common(1)[0][1] == 1
    for id_, sentence in zip(evaluated.queries.ids, evaluated.queries.texts, strict=True):
        assert sentence not in code_of[id_.removeprefix("q:")]


def test_training_data_are_not_evaluated(opened):
    evaluated, training = opened
    first, second = (list(each.reader.documents()) for each in (evaluated, training))
    assert not {one.id for one in first} & {one.id for one in second}
    assert not {one.text for one in first} & {one.text for one in second}
    asked = {bare(text) for text in evaluated.queries.texts}
    assert not asked & set(map(bare, training.queries.texts))


def bare(text: str) -> str:
    """A sentence without anything but letters and digits."""
    return "".join(sign for sign in text.casefold() if sign.isalnum())
