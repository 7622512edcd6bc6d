"""A whole report of speed, small and made up."""

from bench.speed.speed_report import (
    IndexCurve,
    IndexPoint,
    QueryLatency,
    SpeedReport,
    Spread,
    ToolComparison,
    ToolTiming,
)
from retrievers.models.card import Recipe
from tests.support.results import CONDITIONS

PEER = "sentence-transformers (batch 32, its default)"


def contestant(tool: str, seconds: float, **fields) -> ToolTiming:
    return ToolTiming(
        tool=tool,
        version="1.2",
        wall_s=Spread.of([seconds * 0.9, seconds, seconds * 1.2]),
        processor_s=Spread.of([seconds * 1.5]),
        **fields,
    )


def encoding(name: str, tokens: int, *tools: ToolTiming) -> ToolComparison:
    mean = tokens / 100
    p95 = mean * (1 if name.endswith("tokens") else 2)
    return ToolComparison(
        name=name, documents=100, tokens=tokens, p95=p95, tolerance=1e-5, tools=tools
    )


def point(index: str, recall: float, rate: float) -> IndexPoint:
    return IndexPoint(
        index=index,
        recall=recall,
        queries_per_s=Spread.of([rate, rate * 1.1]),
        build_s=1.5,
        index_bytes=46_080_000,
    )


def race(*tools: ToolTiming) -> ToolComparison:
    return ToolComparison(
        name="beir/nfcorpus",
        documents=3633,
        queries=323,
        measure="nDCG@10",
        tolerance=0.0005,
        tools=tools,
    )


REPORT = SpeedReport(
    model="minilm",
    fingerprint="f",
    recipe=Recipe(model="minilm", kind="transformer", dim=384),
    conditions=CONDITIONS,
    processor="Some Processor",
    torch_threads=2,
    load=0.25,
    repeats=3,
    encoding=(
        encoding(
            "32 tokens",
            3200,
            contestant("bench", 1.0, phases_s={"forward": Spread.of([0.8, 0.9])}),
            contestant(PEER, 2.0, difference=2e-7, ratio=2.0),
        ),
        encoding(
            "as in stdlib-code",
            9000,
            contestant("bench", 2.0),
            contestant(PEER, 3.0, difference=0.1, agrees=False),
        ),
    ),
    latency=(
        QueryLatency("encode", 30_000, 100, 5.0, 7.0, (5.0, 5.0, 7.0)),
        QueryLatency("search", 30_000, 100, 1.0, 2.0, (1.0, 1.0, 2.0)),
        QueryLatency("both", 30_000, 100, 6.0, 9.0, (6.0, 6.0, 9.0)),
    ),
    indexes=IndexCurve(
        rows=30_000,
        dim=384,
        k=10,
        queries=200,
        vectors="documents of stdlib-code",
        points=(point("flat", 1.0, 3000), point("HNSW32?efSearch=16", 0.95, 6000)),
    ),
    races=(
        race(
            contestant("bench", 100, score=0.31594, phases_s={"search": Spread.of([0.5])}),
            contestant("mteb", 200, score=0.3160, ratio=2.0),
        ),
    ),
)
