"""Rerankers: a cross-encoder that sentence-transformers loads, or code of the user.

A reranker scores the texts of documents for a query. Code of the user is an object with
``rerank(query, texts)``, or such a function, that returns one number for each text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foundation.arrays import Float32Array
from foundation.errors import BenchError, wrap_errors
from retrievers.encoders.objects import convert_vectors, make_object
from retrievers.models.resolve import Model

FIX = "Fix the reranker and run again; scores that were stored are not computed again."


@dataclass(frozen=True)
class Reranker:
    """A reranker as it is asked.

    Attributes:
        name: its name in messages.
        function: maps a query and texts to their scores.
    """

    name: str
    function: Callable[[str, list[str]], Any]

    def score(self, query_id: str, query: str, texts: Sequence[str]) -> Float32Array:
        """Return the scores of ``texts`` for ``query``, float32 ``(n,)``.

        Args:
            query_id: id of the query, for messages.
            query: its text.
            texts: titles and texts of documents.

        Raises:
            BenchError: the reranker fails, or returns something else than a finite number for each
                text.
        """
        about = f"{self.name} on query {query_id!r}"
        with wrap_errors(f"{about} failed", FIX):
            scores = convert_vectors(self.function(query, list(texts)), about, "(texts,)")
        if scores.shape == (len(texts), 1):
            scores = scores[:, 0]
        if scores.shape != (len(texts),):
            shape = " x ".join(map(str, scores.shape)) or "1"
            problem = f"{about} returned {shape} scores for {len(texts)} texts"
            raise BenchError(problem, "Return one number for each text, in the order of the texts.")
        if not np.isfinite(scores).all():
            place = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise BenchError(f"{about} returned {scores[place]} for text {place + 1}", FIX)
        return scores


def open_reranker(model: Model, device: str) -> Reranker:
    """Open the reranker of a resolved model.

    Args:
        model: result of `resolve_model`.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        BenchError: the folder is not a cross-encoder with one score, or the object does not rerank.
    """
    name = model.card.reranker
    if model.document is not None:
        from retrievers.encoders.library import load_cross_encoder

        encoder = load_cross_encoder(model.document.root, device, model.card.dtype)
        model.check_unchanged()
        return Reranker(
            name,
            lambda query, texts: encoder.predict(
                [(query, text) for text in texts], show_progress_bar=False
            ),
        )
    made = make_object(name, device)
    function = getattr(made, "rerank", made)
    if not callable(function) or isinstance(made, type):
        problem = f"{name} is {type(made).__name__}, which has no rerank(query, texts)"
        raise BenchError(problem, "Name an object with this method, or a function.")
    return Reranker(name, function)
