"""Texts to the tensors that a network reads, exactly as the suite's encoder prepares them.

Prompts, the rule for titles, lengths and segment ids come from the recipe with which the finished
checkpoint is evaluated: a model that is trained on other inputs than it is used with is worse, and
nothing says so.
"""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foundation.errors import BenchError
from retrievers.encoders.document_text import join
from retrievers.models.recipe import Recipe

if TYPE_CHECKING:
    from retrievers.encoders.document_text import Segments

Tensors = dict[str, torch.Tensor]


class Inputs:
    """Queries and documents of one recipe as padded batches.

    Args:
        tokenizer: fast tokenizer of the checkpoint.
        network: whose ``forward`` says whether it reads segment ids.
        recipe: prompts, title rule, segment ids and lengths.
    """

    def __init__(self, tokenizer: Any, network: Any, recipe: Recipe) -> None:
        reads = inspect.signature(network.forward).parameters
        self._reads_types = recipe.segment_ids and "token_type_ids" in reads
        self._tokenizer = tokenizer
        self._recipe = recipe
        if recipe.title_join == "sep" and not tokenizer.sep_token:
            raise BenchError(
                f"{recipe.model}: its tokenizer has no separator token", 'use title_join = "space"'
            )

    def queries(self, texts: Sequence[str]) -> Tensors:
        """Token ids, mask and segment ids of queries, int64 ``(n, longest)``."""
        prompt = self._recipe.prompts.query
        return self._tensors([(prompt + text, None) for text in texts], True)

    def documents(self, titles: Sequence[str], texts: Sequence[str]) -> Tensors:
        """Token ids, mask and segment ids of documents, int64 ``(n, longest)``."""
        rule, prompt = self._recipe.title_join, self._recipe.prompts.document
        separator = str(self._tokenizer.sep_token) if rule == "sep" else ""
        pairs = zip(titles, texts, strict=True)
        return self._tensors([join(rule, prompt, *pair, separator) for pair in pairs], False)

    def _tensors(self, segments: "Sequence[Segments]", are_queries: bool) -> Tensors:
        recipe = self._recipe
        length = recipe.max_query_tokens if are_queries else recipe.max_document_tokens
        ids, types = self._encode(segments, length)
        mask = np.arange(max(map(len, ids))) < np.array([[len(row)] for row in ids])
        tensors = {
            "input_ids": _padded(ids, mask, int(self._tokenizer.pad_token_id or 0)),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
        }
        if self._reads_types:
            tensors["token_type_ids"] = _padded(types, mask, 0)
        return tensors

    def _encode(
        self, segments: "Sequence[Segments]", length: int
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Token ids and segment ids of each text; pairs go to the tokenizer apart."""
        ids: list[list[int]] = [[]] * len(segments)
        types: list[list[int]] = [[]] * len(segments)
        for paired in (False, True):
            rows = [i for i, pair in enumerate(segments) if (pair[1] is not None) == paired]
            if not rows:
                continue
            encoded = self._tokenizer(
                [segments[i][0] for i in rows],
                [segments[i][1] for i in rows] if paired else None,
                truncation=True,
                max_length=length,
                return_attention_mask=False,
                return_token_type_ids=self._reads_types,
                verbose=False,
            )
            for place, i in enumerate(rows):
                ids[i] = encoded["input_ids"][place]
                types[i] = encoded["token_type_ids"][place] if self._reads_types else []
        return ids, types


def _padded(values: Sequence[Sequence[int]], mask: Any, fill: int) -> torch.Tensor:
    padded = np.full(mask.shape, fill, dtype=np.int64)
    padded[mask] = np.concatenate(values)
    return torch.from_numpy(padded)
