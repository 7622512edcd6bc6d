"""Title and text of a document as a model reads them: one text, or a pair of segments."""

from collections.abc import Sequence

from foundation.errors import BenchError
from retrievers.models.recipe import Recipe, TitleJoin

Segments = tuple[str, str | None]


def join(rule: TitleJoin, prompt: str, title: str, text: str, separator: str = "") -> Segments:
    """A document as one or two segments; without a title it is its text alone."""
    if rule == "none" or not title:
        return prompt + (text.strip() if rule == "space" else text), None
    if rule == "pair":
        return prompt + title, text
    if rule == "sep":
        return f"{prompt}{title} {separator} {text}", None
    return prompt + f"{title} {text}".strip(), None


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
