"""Factory strings that FAISS parses: each works with the right ids, or is bad input.

FAISS makes indexes that end the process (a size of 0), or that refuse documents only when they
come (IDMap). Strings are tried in a process of their own, which a crash does not survive.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import HANGS_S

pytest.importorskip("faiss")

BEFORE = ["", "", "", "OPQ4,", "OPQ4_16,", "OPQ0,", "PCA8,", "PCAR40,", "PCA0,", "RR16,", "RR0,"]
BEFORE += ["L2norm,", "ITQ16,", "Pad64,", "Pad0,", "IDMap,", "IDMap2,"]


def words(text: str) -> list[str]:
    return text.split()


CODES = words("Flat PQ4 PQ4x4 PQ4x0 PQ4x4fs PQ5 PQ0 SQ8 SQfp16 RQ2x4 RQ2x4fs LSQ2x4 PRQ2x2x4")
CODES += words("RaBitQ RaBitQfs LSH ZnLattice2x4_2 Nonsense")
LISTS = words("IVF4, IVF0, IVF4_HNSW4, IVF4_HNSW1, IVF4_NSG4, IVF4(IVF2,Flat), IMI2x4,")
GRAPHS = words("HNSW16 HNSW2 HNSW1 HNSW0 HNSW16,SQ8 HNSW16_PQ4 NSG16 NSG1 NSG0")
AFTER = words(",RFlat ,Refine(SQ8) ,Refine(PQ4) ,Refine(IVF4,Flat) ,Refine(HNSW8)")
AFTER = ["", "", "", *AFTER, ",Refine(RaBitQfs)", ",IDMap", ",RFlat,RFlat"]
SINGLE = [
    *CODES,
    *(lists + "Flat" for lists in LISTS),
    *GRAPHS,
    *("Flat" + after for after in AFTER[3:]),
    *(before + "Flat" for before in BEFORE[3:]),
    *words("PQ4x24 IVF99999999999,Flat IVF100000000,Flat PQ99999999999 HNSW100000000"),
    *("", *words(", Flat, ,Flat (Flat) IVF4(Flat Flat) IVF,Flat IVF-1,Flat Fl\u00e4t")),
    "IVF4(" * 5_000 + "Flat" + "),Flat" * 5_000,
    *("IVF4,PQ4,RFlat?k_factor_rf=1e12", "IVF4,Flat?nprobe=1e30", "HNSW16?efSearch=-3"),
    *("IVF4,Flat?nprobe=-1", "PQ4,RFlat?k_factor_rf=0", "PQ4?seed=99999999999"),
]
TRIAL = """
import json, sys
import numpy as np
from foundation.errors import BenchError
from retrievers.index.faiss_index import FaissIndex, IndexSpec

rng = np.random.default_rng(0)
documents = rng.standard_normal((300, 16)).astype(np.float32)
documents[::2] += 2.5  # even rows on one side of the origin, odd rows on the other
documents[1::2] -= 2.5
queries = documents[:8]

def tried(text):
    try:
        index = FaissIndex(IndexSpec.parse(text), 16)
        if index.needs_training:
            index.train(documents[index.training_rows(len(documents))])
        for start in range(0, len(documents), 70):
            index.add(documents[start : start + 70])
        hits = index.search(queries, 5)
    except BenchError as error:
        return "refused" if str(error).strip() else "refused without a word"
    filled = hits.rows >= 0
    if len(index) != 300 or (hits.rows >= 300).any() or not np.isfinite(hits.scores[filled]).all():
        return "rows that do not exist"
    if any(len(set(row[row >= 0])) != (row >= 0).sum() for row in hits.rows):
        return "a row twice"
    same_side = hits.rows % 2 == np.arange(8)[:, None] % 2
    return "works" if filled[:, 0].all() and same_side[filled].all() else "other documents"

for text in json.load(sys.stdin):
    print(json.dumps(tried(text)), flush=True)
"""


def outcomes(texts: list[str]) -> dict[str, str]:
    """What became of each string; what ends the process is said with the string."""
    done = subprocess.run(
        [sys.executable, "-c", TRIAL],
        input=json.dumps(texts),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if len(lines) < len(texts):
        lines.append(f"ended with {done.returncode}: {done.stderr[-300:]}")
    return dict(zip(texts, lines, strict=False))


def combined(count: int) -> list[str]:
    rng = random.Random(12)
    texts = set()
    while len(texts) < count:
        middle = rng.choice([*CODES, *(lists + rng.choice(CODES) for lists in LISTS), *GRAPHS])
        texts.add(rng.choice(BEFORE) + middle + rng.choice(AFTER))
    return sorted(texts)


@pytest.mark.slow
def test_each_part_of_a_factory_string_works_or_is_refused() -> None:
    found = outcomes(SINGLE)
    assert {text: said for text, said in found.items() if said not in ("works", "refused")} == {}
    working = {"Flat", "PQ4", "SQ8", "HNSW16", "IVF4,Flat", "Flat,RFlat", "OPQ4,Flat", "RR16,Flat"}
    assert {text for text in working if found[text] != "works"} == set()
    refused = {"IDMap,Flat", "Flat,IDMap", "HNSW1", "HNSW0", "NSG16", "RR0,Flat", "PQ4x0"}
    assert {text for text in refused if found[text] != "refused"} == set()


@pytest.mark.slow
def test_combined_parts_of_factory_strings_work_or_are_refused() -> None:
    found = outcomes(combined(80))
    assert {text: said for text, said in found.items() if said not in ("works", "refused")} == {}
    assert {"works", "refused"} == set(found.values())
