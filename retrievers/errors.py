"""The one error of this room, and what others say."""


class RetrieverError(Exception):
    """A model or index that cannot be used: what was asked, what was found.

    ``hint`` is what to type or change next; it may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def first_line(error: Exception) -> str:
    """What another library's error says, as far as it fits into a message of ours."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
