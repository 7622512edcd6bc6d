"""Documents as one text each, for models that count words."""

from collections.abc import Sequence

from foundation.errors import BenchError
from retrievers.encoders.transformer import join
from retrievers.models.recipe import Recipe


def joined(recipe: Recipe, titles: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Prompt, title and text of each document by the recipe's rule; a pair is two lines.

    Raises:
        BenchError: not as many titles as texts.
    """
    if len(titles) != len(texts):
        raise BenchError(f"{len(titles)} titles for {len(texts)} texts")
    rule, prompt = recipe.title_join, recipe.prompts.document
    pairs = (join(rule, prompt, title, text) for title, text in zip(titles, texts, strict=True))
    return ["\n".join(filter(None, pair)) for pair in pairs]
