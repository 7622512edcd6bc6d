"""Check of a server: whether it returns the vectors of its checkpoint, also under load.

First it gets a few texts one by one, forwards and backwards: each must have the same vector twice,
or nothing else about the server can be found out. Then it gets a sample of texts in small requests,
one after the other, and `explain` looks for the setting that explains the vectors. If they are as
stated, it gets the texts one by one over many connections at a time: each must have the same vector
again.

The length that a server reads is found by bisection on synthetic texts. Three texts differ in their
first or their last word only. If their vectors differ, the server reads all of them. It does not if
it cuts texts at either end, or if it encodes them in pieces and returns the vector of the last one.
Words are single tokens, so lengths are exact, and a request has one text, so a server that mixes up
its answers misleads nobody.
"""

import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isqrt
from typing import Any

import numpy as np
from attrs import evolve
from tqdm import tqdm

from bench.evaluation.encoding import sample_documents
from bench.explain.deviation_search import answer_question
from bench.explain.evidence import FLOOR, PRECISIONS, GivenVectors, encode_texts
from bench.explain.question import Question
from bench.explain.setup import (
    CORRECT_THERE,
    LENGTHS,
    LONGEST,
    STORED,
    Answer,
    Observation,
    cut_settings,
)
from bench.gate.check_record import CHECKPOINT, Check, CheckRow, Reason
from bench.requests.deciding import ServerCheckRequest
from bench.runner.workspace import load_models, open_endpoint, open_workspace
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.encoders.endpoint import EndpointEncoder, RefusedError
from retrievers.encoders.preflight import BATCH_TOLERANCE, find_mixed_up, relative_distances
from retrievers.encoders.tokens import load_tokenizer
from retrievers.models.card import Role
from retrievers.models.resolve import Model

AGREE = "vectors that agree"
SERVED_DOCUMENTS, SERVED_QUERIES = 48, 16  # largest sample of a server
REPEATED = 8  # documents that are sent forwards and backwards
SAME = BATCH_TOLERANCE["bfloat16"]  # relative distance of two vectors of one text
CONNECTIONS = 16
ROUNDS = 10
SECONDS = 15.0  # after which no other round begins
SEARCH_SECONDS = 30.0  # after which no pair of deviations is tried
BEYOND = 30.0  # times the largest typical error of its precision that one vector may have
LEVELS = dict(PRECISIONS)  # largest typical error of each precision, as a decimal logarithm
MOST_TOKENS = 8_192  # of a text
MOST_LENGTHS = 15  # of texts that are tried: those two of the checkpoint, and a bisection
WORDS, LOOKED_AT = 16, 5_000  # words of the texts, and tokens among which they are looked for
NOISE = 10.0  # times the squared distance of the vectors of equal texts, and
ROUNDING = 1e-12  # the relative squared distance, above which vectors differ


def check_server(request: ServerCheckRequest) -> Check:
    """Decide whether a server returns the vectors of its checkpoint."""
    if not request.against or len(request.on) > 1:
        raise BenchError(
            "--served needs --against, and at most one collection",
            "Run `python -m bench check --served URL --against CHECKPOINT --on COLLECTION`.",
        )
    workspace = open_workspace(request)
    # Both describe the server; the checkpoint is loaded as its card says.
    use = evolve(request, dtype=None, endpoint_model=None)
    (model,) = load_models(workspace, (request.against,), use)
    dataset = workspace.dataset((request.on or ("stdlib-code",))[0])  # on every machine
    encoder = open_endpoint(request.served, request.endpoint_model, model)
    stated, name = request.dtype or model.recipe.precision, encoder.recipe.model
    if unstable := _check_repeated(encoder, model.name, dataset):
        return unstable
    length = find_length(encoder, model.model)
    question = Question(
        model,
        [dataset],
        workspace.dataset,
        workspace.device,
        sampled_documents=SERVED_DOCUMENTS,
        sampled_queries=SERVED_QUERIES,
        lengths=[*LENGTHS, length.tokens] if length else LENGTHS,
        notes=[length.note] if length else [],
    )
    evidence = question.of_encoder(encoder, name)
    answer = answer_question(question, [evidence], SEARCH_SECONDS, stated)
    cause, precision = _describe_cause(answer, stated, length), answer.precision or "int8"
    errors = evidence.fit(question.setup, False).errors
    share = float((errors <= BEYOND * 10 ** LEVELS[stated]).mean())
    row = partial(CheckRow, measure=AGREE, mean_b=1.0)
    rows = [row(on=f"{dataset.name}, one request at a time", mean_a=share, failure=cause)]
    if not cause:
        most = BEYOND * 10 ** LEVELS[precision]
        counts = _repeat_under_load(encoder.for_dataset(dataset.name), evidence.given, most)
        sent, changed, mixed = counts
        if changed:
            cause = (
                f"under load, {changed:,} of {sent:,} vectors changed, {mixed:,} of them into the "
                "vector of another text"
            )
        under_load = f"{dataset.name}, {CONNECTIONS} requests at a time"
        rows.append(row(on=under_load, mean_a=1 - changed / sent, failure=cause))
    agree = f"the vectors agree within the precision of {precision}"
    seen = [one.name for one in answer.seen if one.name not in cause]
    return Check(
        candidate=name,
        baseline=answer.model,
        role=CHECKPOINT,
        outcome="DRIFT" if cause else "OK",
        reasons=tuple(map(Reason, [cause or agree, *seen])),
        rows=tuple(rows),
        answer=answer,
    )


def _check_repeated(encoder: EndpointEncoder, model: str, dataset: Dataset) -> Check | None:
    """Send documents one by one, then in reverse. Return the verdict if their vectors changed."""
    encoder = encoder.for_dataset(dataset.name)
    titles, texts = sample_documents(dataset.corpus, REPEATED)
    order = [*range(len(texts)), *reversed(range(len(texts)))]
    shown = tqdm(order, "sending texts twice", unit=" requests")
    vectors = np.concatenate([encoder.encode_documents([titles[i]], [texts[i]]) for i in shown])
    first, second = np.split(vectors, 2)
    moved = relative_distances(first, second[::-1])
    if moved.max() <= SAME:
        return None
    cause = (
        f"the same text, sent twice, has vectors that differ by up to {moved.max():.2g} of their "
        "length: they depend on more than the text"
    )
    name, share = f"{dataset.name}, the same text twice", float((moved <= SAME).mean())
    row = CheckRow(on=name, measure=AGREE, mean_a=share, mean_b=1.0, failure=cause)
    return Check(
        candidate=encoder.recipe.model,
        baseline=model,
        role=CHECKPOINT,
        outcome="DRIFT",
        reasons=(Reason(cause),),
        rows=(row,),
    )


@dataclass(frozen=True)
class ServedLength:
    """Length that a server reads.

    Attributes:
        tokens: of the longest text that is read as a whole, special tokens included.
        longer: what happens to longer texts, such as ``lose their end``; "" if all are read.
        stated: length of the documents of the checkpoint.
    """

    tokens: int
    longer: str
    stated: int

    @property
    def note(self) -> Observation:
        """The length, and the setting that does the same here."""
        size = f"{self.tokens:,} tokens" + ("" if self.agrees else f", not {self.stated:,}")
        if not self.longer:
            return Observation(f"the server reads texts of {size}", "")
        name = f"the server reads at most {size}: longer texts {self.longer}"
        same = cut_settings(self.tokens) if self.longer == "lose their end" else CORRECT_THERE
        return Observation(name, "" if self.agrees else same)

    @property
    def agrees(self) -> bool:
        """True if the server reads as many tokens as the checkpoint does."""
        return self.tokens == self.stated or (not self.longer and self.stated > MOST_TOKENS)


def find_length(server: EndpointEncoder, model: Model) -> ServedLength | None:
    """Find the maximum length of a server by bisection, starting at its checkpoint's.

    Returns:
        None if the checkpoint's words are not single tokens, or if the server's vectors do not
        depend on a text alone.
    """
    if not model.recipe.traits.is_network:
        return None
    tokenizer = load_tokenizer(model.checkpoint)
    words = _find_words(tokenizer)
    if len(words) < WORDS // 2:
        return None
    recipe, around = model.recipe, tokenizer.num_special_tokens_to_add()
    stated = recipe.max_document_tokens or LONGEST
    stated = min(stated, model.checkpoint.position_limit or stated)
    low, high, longer = around, MOST_TOKENS + 1, ""  # read, and not read
    with tqdm(desc="finding the length that is read", total=MOST_LENGTHS, unit=" lengths") as bar:
        while high - low > 1:
            middle = max(low + 1, isqrt(low * high))
            tokens = next((each for each in (stated, stated + 1) if low < each < high), middle)
            problem = _find_unread(server.server, words, tokens - around)
            bar.update()
            if problem is None:
                return None
            low, high = (low, tokens) if problem else (tokens, high)
            longer = problem or longer
    return ServedLength(low, longer, stated) if low > around else None


def _find_words(tokenizer: Any) -> list[str]:
    """Return words that are one token each, the most frequent ones first."""
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    bare = (token.lstrip("Ġ▁") for token, _ in tokens)
    known = dict.fromkeys(word for word in bare if re.fullmatch("[a-z]{3,}", word))
    words = list(islice(known, LOOKED_AT))
    ids = tokenizer([f"{word} {word}" for word in words], add_special_tokens=False)["input_ids"]
    pairs = zip(words, ids, strict=True)
    unknown = tokenizer.unk_token_id
    return [word for word, row in pairs if len(row) == 2 and unknown not in row][:WORDS]


def _find_unread(server: EndpointEncoder, words: list[str], count: int) -> str | None:
    """Return what happens to a text of ``count`` words, or "" if a server reads all of it.

    None stands for a server that has two vectors of the same text.
    """
    text = np.random.default_rng(count).choice(words, count).tolist()
    first, last = (words[words.index(each) - 1] for each in (text[0], text[-1]))
    texts = [text, text, [first, *text[1:]], [*text[:-1], last]]
    try:
        alone = [server.encode_queries([" ".join(each)]) for each in texts]
    except RefusedError:
        return "are refused"
    vectors = np.concatenate(alone).astype(np.float64)
    noise, at_start, at_end = ((vectors[1:] - vectors[0]) ** 2).sum(axis=1)
    if noise > SAME**2 * (vectors[0] ** 2).sum():
        return None
    least = max(NOISE * noise, ROUNDING * (vectors[0] ** 2).sum())
    if at_end <= least:
        return "lose their end"
    return "lose their beginning" if at_start <= least else ""


def _describe_cause(answer: Answer, stated: str, length: ServedLength | None) -> str:
    """Return the difference that explains the vectors, or "" if they are as stated."""
    if answer.verdict == "none":
        return "; ".join(["no deviation explains the vectors", *(one.name for one in answer.seen)])
    best = answer.explanations[0] if answer.explanations else None
    if best and best.deviations != (STORED.get(stated),):
        return f"the cause is: {best.name} ({'; '.join(best.apply)})"
    if not best and LEVELS[answer.precision] > LEVELS[stated]:
        return f"the vectors are as exact as {answer.precision}, and {stated} is stated"
    return "" if length is None or length.agrees else length.note.name


def _repeat_under_load(
    encoder: EndpointEncoder, given: Mapping[Role, GivenVectors], most: float
) -> tuple[int, int, int]:
    """Send texts one by one over many connections, and count requests, changes and mix-ups.

    A vector changed if its relative squared distance to the one of ``given`` is above ``most``. One
    that is much closer to the vector of another text went to the wrong request.
    """
    tasks = []
    for role, each in given.items():
        tasks += [(role, each.texts, slice(row, row + 1)) for row in range(len(each.texts.ids))]
    from scipy.spatial.distance import cdist  # late: other commands do without it

    first = np.concatenate([each.vectors for each in given.values()])
    squares = np.maximum(np.einsum("ij,ij->i", first, first)[:, None], FLOOR)
    sent = changed = mixed = 0
    start = time.monotonic()
    bar = tqdm(desc="sending texts under load", total=0, unit=" requests")
    with ThreadPoolExecutor(CONNECTIONS) as pool, bar:
        while sent < ROUNDS * len(tasks) and time.monotonic() < start + SECONDS:
            bar.total += len(tasks)  # of this round: whether another one begins depends on time
            again = []
            for vector in pool.map(lambda task: encode_texts(encoder, *task), tasks):
                again.append(vector)
                bar.update()
            distances = cdist(np.concatenate(again), first, "sqeuclidean") / squares
            errors = distances.diagonal()
            is_mixed = find_mixed_up(distances, errors)
            sent += len(tasks)
            changed += int((is_mixed | (errors > most)).sum())
            mixed += int(is_mixed.sum())
    return sent, changed, mixed
