"""The one error of this room, and the kind of it that says that a file is not there."""


class DatasetError(Exception):
    """A collection that cannot be used: what was asked, what was found.

    ``hint`` is what to type or change next; it may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class MissingFileError(DatasetError):
    """A file of a collection that is not there."""
