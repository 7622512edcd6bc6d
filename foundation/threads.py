"""Work that threads share: done once, or in the background."""

import threading
from collections.abc import Callable


class Once:
    """Work that is done by the thread that asks first; others wait until it is.

    Work that fails is done again for the next caller, who thus meets the same failure.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = False

    def do(self, work: Callable[[], None]) -> None:
        """Return when the work is done.

        Raises:
            Exception: what the work raised.
        """
        with self._lock:
            if not self._done:
                work()
                self._done = True


class InBackground:
    """Work in a thread that does not keep the process alive; `finish` waits for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until the work is done.

        Raises:
            Exception: what the work raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # handed to whoever waits
            self._error = error
