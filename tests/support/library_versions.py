"""Two versions of the libraries: the installed one, and one that is pretended."""

import pytest
from tokenizers import normalizers

from bench.store import store
from foundation.machine import library_version
from retrievers.encoders import tokens, tower
from retrievers.models import loading

LOAD = tokens.load_tokenizer


def pretend_version(
    patch: pytest.MonkeyPatch, version: str, *, other_tokens: bool = False, other_weights: float = 0
) -> None:
    """Let transformers have a ``version`` with other token ids, or other results of its networks.

    Args:
        patch: undoes it.
        version: version that transformers states.
        other_tokens: read each "the" as "river".
        other_weights: share by which the weights of layers change.
    """

    def named(name: str) -> str:
        return version if name == "transformers" else library_version(name)

    def load_tokenizer(*args: object) -> object:
        tokenizer = LOAD(*args)
        backend = tokenizer.backend_tokenizer
        if other_tokens:
            replace = normalizers.Replace("the", "river")
            backend.normalizer = normalizers.Sequence([backend.normalizer, replace])
        return tokenizer

    read = loading.read_weights

    def read_weights(*args: object) -> object:
        network, report = read(*args)
        for name, weight in network.named_parameters():
            if name.endswith("dense.weight"):
                weight.data *= 1 + other_weights
        return network, report

    patch.setattr(store, "library_version", named)
    patch.setattr(tokens, "load_tokenizer", load_tokenizer)
    patch.setattr(tower, "load_tokenizer", load_tokenizer)
    patch.setattr(loading, "read_weights", read_weights)
