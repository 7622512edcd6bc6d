"""Vectors of texts under any configuration, with forward passes shared between configurations.

Pooling, later layers, normalisation, dimensions and precision are applied to the same pooled token
states. A sequence of tokens is encoded once for each network, so that a configuration which changes
few texts costs few.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from bench.explain.setup import EvaluationSetup, Precision, Weights
from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError, format_names
from retrievers.encoders.protocol import PhaseTimer, Segments, join
from retrievers.encoders.tokens import TextTokenizer, Tokens
from retrievers.encoders.transformer import CPU_TOKENS, CUDA_TOKENS, plan_batches
from retrievers.encoders.views import binarize, decode_codes, encode_codes
from retrievers.models.card import EVERY_POOLING
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.resolve import Model

if TYPE_CHECKING:
    from retrievers.encoders.tower import Tower

MOST_KEPT = 1 << 16  # pooled texts in memory: 600 MB at a width of 768


class ForwardPasses:
    """Vectors of texts by one model, or by ``other`` weights, under any configuration.

    ``encoded`` is the number of texts that went through a network so far.

    Raises:
        BenchError: a model is not a transformer, or has routed adapters.
    """

    def __init__(self, model: Model, device: str = "auto", other: Model | None = None) -> None:
        recipe = model.recipe
        for each in filter(None, (model, other)):
            if not each.recipe.traits.is_network or each.document is None:
                inside = [one.recipe.model for one in each.members if one.recipe.traits.is_network]
                hint = f"Name a transformer{' in it: ' if inside else ''}{format_names(inside)}."
                raise BenchError(f"{each.recipe.model} is not a transformer", hint)
        if model.routing is not None:
            raise BenchError(f"{recipe.model} has routed adapters", "Name one with one adapter.")
        self.model, self.other = model, other
        self.encoded = 0
        self._device_name = device
        self._tokenizers: dict[tuple[str, bool, str, str], TextTokenizer] = {}
        self._pooled: dict[tuple[str, bool, bool, str], dict[bytes, Float32Array]] = {}
        self._towers, self._stages = cache(self._load_tower), cache(self._load_stages)

    def queries(self, setup: EvaluationSetup, texts: Sequence[str]) -> Float32Array:
        """Return vectors of queries, float32 ``(n, dim)``."""
        segments = [(_fold_case(setup.query_prompt + text, setup), None) for text in texts]
        tokens = self._tokens(setup, setup.query_weights, segments, setup.max_query_tokens)
        vectors = self._finish(setup, setup.query_weights, tokens)
        return binarize(vectors) if setup.precision == "binary" else vectors

    def documents(
        self, setup: EvaluationSetup, titles: Sequence[str], texts: Sequence[str]
    ) -> Float32Array:
        """Return vectors of documents, float32 ``(n, dim)``."""
        weights = setup.document_weights
        separator = self._tower(setup, weights).separator if setup.title == "sep" else ""
        pairs = zip(titles, texts, strict=True)
        segments = [_segments(setup, title, text, separator) for title, text in pairs]
        tokens = self._tokens(setup, weights, segments, setup.max_document_tokens)
        return round_to(self._finish(setup, weights, tokens), setup.precision)

    def _model(self, weights: Weights) -> Model:
        return self.other if weights == "other" and self.other else self.model

    def _checkpoint(self, weights: Weights) -> Checkpoint:
        model = self._model(weights)
        return cast("Checkpoint", model.query if weights == "query" else model.document)

    def _tower(self, setup: EvaluationSetup, weights: Weights) -> "Tower":
        return self._towers(*_network_key(setup, weights))

    def _load_tower(
        self, weights: Weights, with_adapter: bool, with_pooler: bool, stored: str
    ) -> "Tower":
        from retrievers.encoders.device import pick_device
        from retrievers.encoders.tower import Tower

        model, checkpoint = self._model(weights), self._checkpoint(weights)
        recipe = msgspec.structs.replace(  # of pooled states, before any later layer
            model.recipe,
            pooling="pooler" if with_pooler else "every",
            dim=checkpoint.hidden_width * (1 if with_pooler else len(EVERY_POOLING)),
            stages=(),
            normalize=False,
            similarity="dot",
            adapter=model.recipe.adapter if with_adapter else None,
            backend="torch",
        )
        folder = model.adapter if with_adapter else None
        change = partial(round_weights, precision=stored)
        device = pick_device(self._device_name)
        return Tower(checkpoint, recipe, folder, device, PhaseTimer(), change=change)

    def _tokenizer(self, setup: EvaluationSetup, weights: Weights) -> TextTokenizer:
        from retrievers.encoders.tokens import load_tokenizer

        key = (weights, setup.other_tokenizer, setup.case, setup.side)
        if key not in self._tokenizers:
            lower = self.model.recipe.lower_case and setup.case != "cased"
            own: Weights = "document" if weights == "other" else weights
            source = self._checkpoint("other" if setup.other_tokenizer else own)
            tokenizer = load_tokenizer(source, setup.side, lower)
            known = self._checkpoint(weights).config.get("vocab_size")
            if setup.other_tokenizer and isinstance(known, int) and len(tokenizer) > known:
                raise BenchError(f"the tokenizer in {source.folder} has other tokens")
            backend = tokenizer.backend_tokenizer
            is_bert = type(backend.normalizer).__name__ == "BertNormalizer"
            if is_bert and setup.case in ("cased", "accents"):
                backend.normalizer.strip_accents = False
                if setup.case == "cased":
                    backend.normalizer.lowercase = False
            made_for = self._tower(setup, weights).text_tokenizer
            self._tokenizers[key] = TextTokenizer(
                *(backend, setup.side, made_for.typed),
                split_special_tokens=made_for.split_special_tokens,
            )
        return self._tokenizers[key]

    def _tokens(
        self, setup: EvaluationSetup, weights: Weights, segments: Sequence[Segments], most: int
    ) -> Tokens:
        tokenizer = self._tokenizer(setup, weights)
        most = min(most, self._checkpoint(weights).position_limit or most)
        if not setup.missing:
            return tokenizer(segments, most)
        around = tokenizer.tokenizer.encode("a").special_tokens_mask
        first, last = around.index(0), around[::-1].index(0)
        first, last = first * ("first" in setup.missing), last * ("last" in setup.missing)
        return _drop_special(tokenizer(segments, most + first + last), first, last)

    def _states(self, setup: EvaluationSetup, weights: Weights, tokens: Tokens) -> Float32Array:
        """Return pooled states of each text, each pooling next to the others."""
        tower = self._tower(setup, weights)
        known = self._pooled.setdefault(_network_key(setup, weights), {})
        names = [
            tokens.ids[start : start + length].tobytes()
            + (b"" if tokens.types is None else tokens.types[start : start + length].tobytes())
            for start, length in zip(tokens.starts.tolist(), tokens.lengths.tolist(), strict=True)
        ]
        if len(known) + len(names) > MOST_KEPT:
            known.clear()
        places = {name: row for row, name in enumerate(names) if name not in known}
        new: Int64Array = np.fromiter(places.values(), np.int64, len(places))
        if len(new):
            missing = tokens.take(new)
            budget = CUDA_TOKENS if tower.is_asynchronous else CPU_TOKENS
            mixable = tower.mixable_length
            batches = list(plan_batches(missing.lengths, budget, tower.is_packed, mixable))
            for rows, states in tower.vectors(missing, batches):
                for row, state in zip(rows.tolist(), states, strict=True):
                    known[names[new[row]]] = state.copy()
            self.encoded += len(new)
        return np.stack([known[name] for name in names])

    def _finish(self, setup: EvaluationSetup, weights: Weights, tokens: Tokens) -> Float32Array:
        """Return vectors before they are rounded to a precision."""
        import torch
        from torch.nn.functional import normalize

        states = self._states(setup, weights, tokens)
        if setup.pooling != "pooler":
            width = states.shape[1] // len(EVERY_POOLING)
            first = EVERY_POOLING.index(setup.pooling) * width
            states = states[:, first : first + width]
        with torch.inference_mode():
            vectors = torch.from_numpy(np.ascontiguousarray(states))
            for place in setup.stages:
                vectors = self._stages(weights)[place](vectors)
            if setup.normalize and not setup.scaled_after_cut:
                vectors = normalize(vectors, dim=1)
            vectors = vectors[:, : setup.dimensions]
            if setup.normalize and setup.scaled_after_cut:
                vectors = normalize(vectors, dim=1)
            finished: Float32Array = vectors.numpy()
        return finished

    def _load_stages(self, weights: Weights) -> list[Any]:
        import torch

        from retrievers.models.loading import load_stage

        checkpoint = self._checkpoint("other" if weights == "other" else "document")
        stages, cpu = self._model(weights).recipe.stages, torch.device("cpu")
        return [load_stage(each, checkpoint, cpu) for each in stages]


def round_to(vectors: Float32Array, precision: Precision) -> Float32Array:
    """Return float32 ``(n, dim)`` as they are stored in a precision."""
    import torch

    if precision == "binary":
        return binarize(vectors)
    if precision == "int8":
        ranges = np.vstack([vectors.min(axis=0), vectors.max(axis=0)])
        codes = encode_codes(vectors, precision, ranges)
        return decode_codes(codes, precision, ranges, vectors.shape[1])
    rounded: Float32Array = torch.from_numpy(vectors).to(getattr(torch, precision)).float().numpy()
    return rounded


def round_weights(network: Any, precision: str) -> None:
    """Round the weights of ``network`` to a precision, see `EvaluationSetup.stored`."""
    import torch

    with torch.no_grad():
        if precision in ("float16", "bfloat16"):
            for weight in network.parameters():
                weight.copy_(weight.to(getattr(torch, precision)))
        if precision != "int8":
            return
        for layer in network.modules():
            if isinstance(layer, torch.nn.Linear):
                step = layer.weight.abs().max() / 127
                layer.weight.copy_((layer.weight / step).round() * step)


def _network_key(setup: EvaluationSetup, weights: Weights) -> tuple[Weights, bool, bool, str]:
    return weights, setup.adapter, setup.pooling == "pooler", setup.stored


def _segments(setup: EvaluationSetup, title: str, text: str, separator: str) -> Segments:
    """Return a document as one or two segments, by the configuration's title rule."""
    title, text, prompt = (_fold_case(each, setup) for each in (title, text, setup.document_prompt))
    if setup.title == "template":
        return f"{prompt}title: {title or 'none'} | text: {text}", None
    return join(setup.title, prompt, title, text, separator)


def _fold_case(text: str, setup: EvaluationSetup) -> str:
    if setup.case == "lower":
        return text.lower()
    if setup.case == "no-accents":
        split = unicodedata.normalize("NFD", text)
        return "".join(each for each in split if unicodedata.category(each) != "Mn")
    return text


def _drop_special(tokens: Tokens, first: int, last: int) -> Tokens:
    """Drop ``first`` and ``last`` tokens of each text, but leave at least one."""
    first_kept = np.minimum(first, tokens.lengths - 1)
    kept = np.maximum(1, tokens.lengths - first_kept - last)
    starts = np.repeat(tokens.starts + first_kept, kept)
    places = starts + np.arange(int(kept.sum())) - np.repeat(kept.cumsum() - kept, kept)
    types = None if tokens.types is None else tokens.types[places]
    return Tokens(tokens.ids[places], kept, types)
