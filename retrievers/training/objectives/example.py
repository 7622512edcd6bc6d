"""Examples, one at each place of a training's stream, and the collator that batches them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


class Example(TypedDict):
    """One place in the stream of training texts.

    Attributes:
        text: of the document.
        draw: a number of its own for every place, the same in every run with the same seed: what
            a collator draws must follow from it alone, so that a resumed run draws the same.
    """

    text: str
    draw: int


Collator = Callable[[Sequence[Example]], "dict[str, Tensor]"]
