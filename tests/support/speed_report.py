"""A whole report of speed, small and made up."""

from bench.speed.records import (
    Growth,
    IndexPoint,
    Latency,
    Lengths,
    Phases,
    Race,
    RaceRun,
    SpeedReport,
    Spread,
    Throughput,
)
from retrievers.models.recipe import Recipe
from tests.support.results import CONDITIONS


def throughput(tool: str, name: str, mean: float, seconds: float, **fields) -> Throughput:
    documents = 100
    equal = name.endswith("tokens")
    lengths = Lengths(name, documents, int(mean * documents), mean, mean, mean * (2 - equal))
    return Throughput(
        tool=tool,
        version="1.2",
        lengths=lengths,
        seconds=Spread.of([seconds * 0.9, seconds, seconds * 1.2]),
        documents_per_s=documents / seconds,
        tokens_per_s=lengths.tokens / seconds,
        **fields,
    )


def point(index: str, recall: float, rate: float) -> IndexPoint:
    return IndexPoint(
        index=index,
        rows=30_000,
        dim=384,
        k=10,
        queries=200,
        recall=recall,
        queries_per_s=Spread.of([rate, rate * 1.1]),
        build_s=1.5,
        index_bytes=46_080_000,
        vectors="documents of stdlib-code",
    )


def racer(tool: str, score: float, wall_s: float, ratio: float | None = None) -> RaceRun:
    return RaceRun(
        tool=tool,
        version="2.2.0",
        wall_s=Spread.of([wall_s]),
        scores=(score,),
        peak_bytes=800_000_000,
        ratio=ratio,
        processor_s=Spread.of([wall_s * 1.5]),
        processor_ratio=ratio,
    )


PEER = "sentence-transformers (batch 32, its default)"
REPORT = SpeedReport(
    model="minilm",
    fingerprint="f",
    recipe=Recipe(model="minilm", kind="transformer", dim=384),
    conditions=CONDITIONS,
    processor="Some Processor",
    torch_threads=2,
    libraries={},
    load=0.25,
    repeats=3,
    phases=Phases(
        collection="stdlib-code",
        documents=64,
        queries=17,
        tokens=11_739,
        cold_s=2.5,
        wall_s=Spread.of([2.0, 2.2]),
        busy_s={"load": Spread.of([0.1, 0.1]), "forward": Spread.of([1.9, 2.0])},
    ),
    throughput=(
        throughput("bench", "32 tokens", 32, 1.0),
        throughput(PEER, "32 tokens", 32, 2.0, difference=2e-7, speedup=2.0),
        throughput("bench", "as in stdlib-code", 90, 2.0),
        throughput(PEER, "as in stdlib-code", 90, 3.0, difference=0.1, agrees=False),
    ),
    latency=(
        Latency("encode", 30_000, 100, 5.0, 7.0, (5.0, 5.0, 7.0)),
        Latency("search", 30_000, 100, 1.0, 2.0, (1.0, 1.0, 2.0)),
        Latency("both", 30_000, 100, 6.0, 9.0, (6.0, 6.0, 9.0)),
    ),
    indexes=(point("flat", 1.0, 3000), point("HNSW32?efSearch=16", 0.95, 6000)),
    growth=(
        Growth(
            x="documents",
            y="encode, s",
            at="128 tokens each",
            sizes=(10, 20, 40),
            costs=tuple(Spread.of([cost]) for cost in (1.0, 2.1, 3.9)),
            exponent=0.98,
            error=0.02,
            constant=0.1,
            base=0.03,
            per_x=0.097,
        ),
    ),
    races=(
        Race(
            collection="beir/nfcorpus",
            documents=3633,
            queries=323,
            limit=None,
            measure="nDCG@10",
            tolerance=0.0005,
            runs=(racer("bench", 0.31594, 100), racer("mteb", 0.3160, 200, 0.5)),
            agree=True,
            ratio=0.5,
        ),
    ),
    peak_bytes=900_000_000,
)
