"""A figure for a paper: a forest plot of the differences between two stored models.

python -m bench run beir/scifact beir/nfcorpus --model minilm bm25
python examples/figure_for_a_paper.py results minilm bm25 forest.pdf
"""

import sys

import bench

folder, a, b, file = sys.argv[1:]
frame = bench.results(folder)


def results_of(model: str) -> list[bench.Evaluation]:
    """The newest result of a model on each collection."""
    folders = frame[frame.model == model].groupby("collection").folder.last()
    return [bench.load_result(folder) for folder in folders]


comparison = bench.compare(results_of(a), results_of(b))
print(
    comparison.table[["collection", "difference", "low", "high", "p_holm"]].to_string(index=False)
)
bench.plot(comparison).savefig(file)
