"""Records of an evaluation, every field set; tests replace some."""

from bench.results.result import Conditions, Protocol, Result, Timings
from retrievers.models.recipe import Recipe

PROTOCOL = Protocol(
    collection="beir/tiny",
    version="1",
    split="test",
    title_track="",
    corpus_sha256="c" * 64,
    queries_sha256="d" * 64,
    qrels_sha256="e" * 64,
    exclude_self=True,
    depth=10,
    official=True,
)
CONDITIONS = Conditions(
    time="2026-01-02T03:04:05+00:00",
    bench="0.1",
    commit="0123456789abcdef",
    dirty=False,
    python="3.11.0",
    machine="Linux x86_64",
    device="cpu",
    search_device="cpu",
    threads=2,
    libraries={"numpy": "2"},
)
RESULT = Result(
    model="words",
    main_measure="nDCG@10",
    measures={"nDCG@10": 0.5},
    judged_at_10=None,
    tie_low=None,
    tie_high=None,
    queries=2,
    documents=3,
    unanswered=0,
    ignored=0,
    index="flat",
    index_recall={},
    in_domain=False,
    protocol=PROTOCOL,
    recipe=Recipe(model="words", kind="hashing", dim=8),
    fingerprint="f" * 64,
    preflight={},
    timings=Timings(),
    conditions=CONDITIONS,
)
