"""Collections as training sets, and the suite's search for their negatives."""

import msgspec
import numpy as np
import pytest

from bench.evaluation.retriever import Resources
from bench.store.store import VectorStore
from bench.training.training_sets import CorpusTexts, TrainSplit, training_set
from bench.training.trainings import CorpusSearch, apply_prompts
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import open_dataset
from datasets_cfg.readers.reader import Document
from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.models.card import Prompts
from retrievers.models.resolve import resolve_model
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import DOCUMENTS, write_collection

OTHER = {"d1": ("", "river and stone"), "d2": ("cloud", "the cloud"), "d3": ("", "alpha beta")}


def opened(folder, tmp_path, split="test"):
    return open_dataset(str(folder), cache_dir=tmp_path / "cache", split=split)


@pytest.fixture
def datasets(tmp_path):
    first = write_collection(tmp_path / "first")
    second = write_collection(
        tmp_path / "second",
        OTHER,
        {"q1": "stone", "d3": "alpha"},
        {("q1", "d1"): 1, ("d3", "d2"): 1},
    )
    (second / "dataset.toml").write_text("exclude_self = true\n")
    return [opened(first, tmp_path), opened(second, tmp_path)]


@pytest.fixture
def model(tmp_path):
    tiny.write_bert(tmp_path / "bert")
    return resolve_model(
        str(tiny.write_card(tmp_path / "m.toml", checkpoint="bert", pooling="cls"))
    )


def searcher(splits, tmp_path, own="out", max_memory=None):
    resources = Resources(VectorStore(tmp_path / "vectors"), "cpu", max_memory)
    return CorpusSearch(tuple(splits), resources, tmp_path / own)


def test_relevant_is_what_has_a_grade_and_is_in_the_corpus(datasets):
    split = TrainSplit.of(datasets[0])
    rows = {id_: row for row, id_ in enumerate(datasets[0].corpus.ids.to_pylist())}
    assert split.dataset.queries.ids == ("q1", "q2", "q3")
    expected = [["d1", "d2"], ["d9"], ["d10", "q3"]]
    assert [own.tolist() for own in split.positives] == [
        sorted(rows[name] for name in names) for names in expected
    ]


def test_queries_that_leak_are_left_out(datasets):
    left = TrainSplit.of(datasets[0], frozenset({"q1", "q3"}))
    assert left.dataset.queries.ids == ("q2",)
    with pytest.raises(BenchError, match="no queries to train on"):
        TrainSplit.of(datasets[0], frozenset({"q1", "q2", "q3"}))


def test_rows_of_several_collections_follow_each_other(datasets):
    training = training_set([TrainSplit.of(one) for one in datasets])
    assert len(training.documents) == 6 + 3
    assert training.queries[3:] == ("stone", "alpha")
    assert [own.tolist() for own in training.positives[3:]] == [[6], [7]]
    titles, texts = training.documents.read(np.array([7, 0, 8]))
    assert titles == ["cloud", "Wings", ""]
    assert texts[2] == "alpha beta"
    assert training.trained_on == ("first", "second")


def test_an_exact_search_is_that_of_every_pair_and_stays_in_its_collection(
    datasets, model, tmp_path
):
    splits = [TrainSplit.of(one) for one in datasets]
    found = searcher(splits, tmp_path)(model, 4)
    encoder, training = open_encoder(model, "cpu"), training_set(splits)
    titles, texts = training.documents.read(np.arange(9))
    scores = (
        encoder.encode_queries(list(training.queries)) @ encoder.encode_documents(titles, texts).T
    )
    for query in range(5):
        rows = found.hits.rows[query]
        own = range(6) if query < 3 else range(6, 9)
        allowed = [row for row in own if not (query == 4 and row == 8)]  # d3 asks, and is d3
        best = sorted(scores[query][allowed], reverse=True)[:4]
        filled = rows[rows >= 0]
        assert set(filled) <= set(allowed)
        np.testing.assert_allclose(found.hits.scores[query][: len(filled)], best, atol=1e-4)
        lowest = scores[query][training.positives[query]].min()
        assert found.lowest[query] == pytest.approx(lowest, abs=1e-4)


def test_mining_keeps_to_the_memory_that_it_may_take(datasets, model, tmp_path):
    splits = [TrainSplit.of(one) for one in datasets]
    with pytest.raises(BenchError, match="search needs at least"):
        searcher(splits, tmp_path, max_memory=1 << 20)(model, 4)


def test_bm25_finds_shared_words_and_has_no_scores_of_relevant_documents(datasets, tmp_path):
    splits = [TrainSplit.of(one) for one in datasets]
    found = searcher(splits, tmp_path)(None, 3)
    ids = [id_ for one in datasets for id_ in one.corpus.ids.to_pylist()]
    names = [[ids[row] for row in rows if row >= 0] for rows in found.hits.rows]
    assert names[0][0] == "d1"
    assert names[3] == ["d1"]
    assert names[4] == []  # the only one with the word is the query itself
    assert np.isinf(found.lowest).all()


def test_vectors_of_a_model_in_training_are_not_stored(datasets, tmp_path):
    splits = [TrainSplit.of(datasets[0])]
    tiny.write_bert(tmp_path / "out" / "refreshed")
    card = tiny.write_card(tmp_path / "r.toml", checkpoint="out/refreshed", pooling="cls")
    searcher(splits, tmp_path)(resolve_model(str(card)), 3)
    assert not (tmp_path / "vectors").exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["refreshed"]


def test_vectors_of_the_start_are_those_that_other_commands_use(datasets, model, tmp_path):
    searcher([TrainSplit.of(datasets[0])], tmp_path)(model, 3)
    encoder = open_encoder(model, "cpu")
    plan = VectorStore(tmp_path / "vectors").plan(encoder, datasets[0].corpus)
    assert plan.missing_rows == 0


def test_collections_with_different_prompts_are_refused(model):
    prompts = {"beir/quora": Prompts("", ""), "beir": Prompts("ask: ", "")}
    recipe = msgspec.structs.replace(model.recipe, dataset_prompts=prompts)
    other = type(model)(model.card, recipe, model.document)
    assert apply_prompts(other, ["beir/nfcorpus", "beir/scifact"]).recipe.prompts.query == "ask: "
    with pytest.raises(BenchError, match="different prompts"):
        apply_prompts(other, ["beir/nfcorpus", "beir/quora"])


def test_texts_are_titles_and_texts_of_all_corpora_without_the_empty(tmp_path):
    documents = [Document(name, *parts) for name, parts in DOCUMENTS.items()]
    one = Corpus.build(documents, tmp_path / "one")
    other = Corpus.build([Document("a", "", " \n"), Document("b", "T", "t")], tmp_path / "other")
    texts = CorpusTexts([other, one])
    expected = ["T t", *(f"{title} {text}".strip() for title, text in DOCUMENTS.values())]
    assert list(texts) == expected
    assert texts[-2:] == expected[-2:]
    with pytest.raises(IndexError):
        texts[len(expected)]
