"""How often `check --served` names what a server does to the vectors of its checkpoint.

    python -m tests.benchmarks.explain --data-dir DIR --part served [--model minilm cls cased]

Uvicorn on the loopback interface serves MiniLM, or a checkpoint like RetroMAE over its weights, by
transformers, text by text.
"""

import copy
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.gate.check_record import PairVerdict
from bench.gate.served import DOCUMENTS, QUERIES, check_server, repeat_under_load
from bench.runner.workspace import open_endpoint
from tests.benchmarks.explain import IndependentEncoder, Laboratory, Usage
from tests.support.embedding_server import serving

TRIES = 20
RATE = 0.02  # of requests that get the vector of another one, if another is being answered
PAUSE_S = 0.002  # for which requests overlap at least
STEPS, BATCH = 20, 16


class LyingServer:
    """The checkpoint of a laboratory behind a server.

    Attributes:
        usage: how vectors are made; its prompts are ignored, since clients send them.
        encoder: network and tokenizers.
        change_text: applied to every text that arrives.
        rate: of requests that get the vector of another one.
    """

    def __init__(
        self,
        usage: Usage,
        encoder: IndependentEncoder,
        change_text: Callable[[str], str] = lambda text: text,
        rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.usage, self.encoder, self.change_text, self.rate = usage, encoder, change_text, rate
        self._random = np.random.default_rng(seed)
        self._lock, self._in_flight = threading.Lock(), list[list[str]]()

    def __call__(self, texts: list[str]) -> np.ndarray:
        """Return vectors, or now and then those of a request that is answered at the same time."""
        with self._lock:
            self._in_flight.append(texts)
        time.sleep(PAUSE_S)
        with self._lock:
            others = [each for each in self._in_flight if each is not texts]
            mixed = bool(others) and self._random.random() < self.rate
            vectors = [self._encode(text) for text in (others[-1] if mixed else texts)]
            self._in_flight = others
        return np.resize(np.stack(vectors), (len(texts), len(vectors[0])))

    def _encode(self, text: str) -> np.ndarray:
        return self.encoder._vector(self.usage, self.change_text(text))


@dataclass(frozen=True)
class Lie:
    """What a server does, and how a correct answer names it."""

    named: str
    usage: Mapping[str, Any]
    change_text: Callable[[str], str] = lambda text: text
    encoder: str = "float32"
    rate: float = 0.0
    shuffles: bool = False


def lies(lab: Laboratory) -> dict[str, Lie]:
    """The lies that are possible with the checkpoint of a laboratory."""
    prompts = lab.base.query_prompt, lab.base.document_prompt
    found = {
        "BOS missing": Lie("no token before the text", {"first": False}),
        "EOS missing": Lie("no token after the text", {"last": False}),
        "cut short": Lie("texts cut at 128 tokens", {"length": 128}),
        "bfloat16": Lie("as exact as bfloat16", {}, encoder="bfloat16"),
        "int8": Lie("int8", {}, encoder="int8"),
        "another checkpoint": Lie("as with another checkpoint", {}, encoder="other"),
        "title lost": Lie("title left out", {}, partial(_without_title, _titles(lab))),
        "order mixed": Lie("vectors in another order", {}, shuffles=True),
        "mixed under load": Lie("into the vector of another text", {}, rate=RATE),
    }
    if lab.base.cased:
        return {"lower-cased": Lie("texts lower-cased", {}, str.lower)}
    if lab.base.dense:
        found |= {
            "Dense missing": Lie("dense layer 2_Dense not applied", {"dense": False}),
            "pooling ignored": Lie("mean pooling", {"pooling": "mean"}),
            "prompt missing": Lie("no prompt at all", {}, partial(_without_prompt, prompts)),
            "normalised": Lie("cosine: vectors normalised", {"normalize": True}),
        }
    else:
        found |= {
            "pooling ignored": Lie("pooling by the first token", {"pooling": "cls"}),
            "unnormalised": Lie("vectors not normalised", {"normalize": False}),
            "case kept": Lie("texts not lower-cased", {"cased": True}),
        }
    return found


def _without_prompt(prompts: tuple[str, str], text: str) -> str:
    for prompt in prompts:
        text = text.removeprefix(prompt)
    return text


def _titles(lab: Laboratory) -> dict[str, str]:
    """Documents without their titles, by the text that a client sends."""
    prompt = lab.base.document_prompt
    return {
        f"{prompt}{title} {text}".strip(): prompt + text
        for title, text in lab.collections[0].documents.values()
    }


def _without_title(known: dict[str, str], text: str) -> str:
    return known.get(text, text)


def encoders(lab: Laboratory) -> dict[str, Callable[[], IndependentEncoder]]:
    """The checkpoint at each precision, and another one."""
    dense = lab.independent.dense

    def quantised() -> IndependentEncoder:
        made = IndependentEncoder(dense)
        made.network = torch.ao.quantization.quantize_dynamic(
            made.network, {torch.nn.Linear}, dtype=torch.qint8
        )
        return made

    return {
        "float32": lambda: lab.independent,
        "bfloat16": lambda: IndependentEncoder(dense, torch.bfloat16),
        "int8": quantised,
        "other": partial(fine_tuned, lab),
    }


def fine_tuned(lab: Laboratory) -> IndependentEncoder:
    """The checkpoint after a few steps with queries, their documents and in-batch negatives."""
    made = IndependentEncoder(lab.independent.dense)
    made.network = copy.deepcopy(made.network).train()
    collection = lab.collections[0]
    pairs = [
        (collection.queries[query], collection.documents[document][1])
        for query, judged in collection.qrels.items()
        for document in judged
    ]
    optimizer = torch.optim.AdamW(made.network.parameters(), lr=1e-4)
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    for _ in range(STEPS):
        chosen = [pairs[row] for row in random.permutation(len(pairs))[:BATCH]]
        sides = [
            made.lower(
                list(side), padding=True, truncation=True, return_tensors="pt", max_length=64
            )
            for side in zip(*chosen, strict=True)
        ]
        queries, documents = (
            torch.nn.functional.normalize(made.network(**side).last_hidden_state[:, 0], dim=1)
            for side in sides
        )
        scores = 20 * queries @ documents.T
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    made.network.eval()
    return made


@contextmanager
def served(lab: Laboratory, server: LyingServer, **fields: Any) -> Iterator[Any]:
    """Serve a model; gives the encoder of the client."""
    with serving(server, **fields) as (url, _):
        yield open_endpoint(url, None, lab.question.model)


def shuffled(entries: list[dict[str, Any]], _: Any) -> list[dict[str, Any]]:
    """Vectors of one answer under each other's index."""
    order = np.random.default_rng(0).permutation(len(entries))
    return [
        {**entry, "embedding": entries[row]["embedding"]}
        for entry, row in zip(entries, order, strict=True)
    ]


def check_lie(
    lab: Laboratory, lie: Lie, stated: str = "float32", **fields: Any
) -> tuple[PairVerdict, str]:
    """The verdict on one server, and the time until it, with the server's."""
    encoder = encoders(lab)[lie.encoder]()
    server = LyingServer(replace(lab.base, **lie.usage), encoder, lie.change_text, lie.rate)
    if lie.shuffles:
        fields["change"] = shuffled
    start, cpu = time.perf_counter(), time.process_time()
    with served(lab, server, **fields) as client:
        done, _ = check_server(lab.question, client, stated)
    seconds = f"{time.perf_counter() - start:.0f} s ({time.process_time() - cpu:.0f} s of CPU)"
    return done, seconds


def report_served(lab: Laboratory) -> None:
    """Print the tables of lying servers, faithful servers and load."""
    named = 0
    known = lies(lab)
    for name, lie in known.items():
        done, seconds = check_lie(lab, lie)
        is_named = done.outcome == "DRIFT" and lie.named in done.reasons[0]
        named += is_named
        mark = "named" if is_named else "MISSED"
        row = f"| {name} | {done.outcome} | {mark} | {done.reasons[0]} | {seconds} |"
        print(row, flush=True)
    print(f"\nnamed: {named} of {len(known)}\n", flush=True)
    if lab.base.cased:
        return
    for stated in ("float32", "bfloat16", "int8"):
        done, seconds = check_lie(lab, Lie("", {}, encoder=stated), stated)
        print(f"| faithful, {stated} | {done.outcome} | {done.reasons[0]} | {seconds} |")
    for rate in (RATE, RATE / 4, RATE / 20, 0.0):
        found = load_alarms(lab, rate)
        print(f"| {rate:.1%} of requests mixed | found in {found} of {TRIES} tries |", flush=True)


def load_alarms(lab: Laboratory, rate: float) -> int:
    """In how many tries a changed vector is found."""
    question = replace(lab.question, sampled_documents=DOCUMENTS, sampled_queries=QUERIES)
    found = 0
    for seed in range(TRIES):
        server = LyingServer(lab.base, lab.independent, rate=rate, seed=seed)
        with served(lab, server) as client:
            given = question.of_encoder(client, "server").given
            client = client.for_dataset(question.dataset.name)
            found += bool(repeat_under_load(client, given, 1e-7)[1])
    return found
