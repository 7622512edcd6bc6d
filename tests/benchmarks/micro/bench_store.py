"""Planning what of a corpus must be encoded: every text is read and hashed, none encoded."""

from bench.store.store import VectorStore
from datasets_cfg.corpus import Corpus
from datasets_cfg.readers.reader import Document
from retrievers.encoders.hashing import HashingEncoder
from retrievers.models.card import Recipe

DOCUMENTS = 100_000


def bench_plan_100_000_texts(benchmark, texts, tmp_path):
    documents = (
        Document(str(row), "", f"{row} {texts[row % len(texts)]}") for row in range(DOCUMENTS)
    )
    corpus = Corpus.build(documents, tmp_path / "corpus")
    encoder = HashingEncoder(Recipe(model="hashing", kind="hashing", dim=64, normalize=True))
    store = VectorStore(tmp_path / "vectors")
    plan = benchmark(store.plan, encoder, corpus)
    assert plan.missing_rows == DOCUMENTS
