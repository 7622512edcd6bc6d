"""The one error of this room."""


class RetrieverError(Exception):
    """A model or index that cannot be used: what was asked, what was found.

    ``hint`` is what to type or change next; it may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
