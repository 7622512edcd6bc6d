"""The one error class of the program: bad input, told in one message."""


class BenchError(Exception):
    """Bad input: what was asked, what was found.

    ``hint`` is what to type or change next; it may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class MissingFileError(BenchError):
    """A file of a collection that is not there."""


def first_line(error: BaseException) -> str:
    """First line of another library's error message, or its class where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
