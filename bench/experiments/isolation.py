"""Work in a process apart: one that runs out of memory takes nothing else with it.

The processes are forked from a server that has imported the libraries and done nothing else, so
that each costs a fraction of a second. Each ends when the process that asked for it does.
"""

import errno
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from foundation.errors import BenchError, first_line, lacks_memory, lacks_room, sendable

PRELOADED = ("torch", "transformers", "bench.evaluate.pipeline")
NO_MEMORY_HINT = (
    "a smaller batch_size with more accumulate is the same recipe; so are gradient_checkpointing "
    "and a smaller cache_chunk"
)


def isolated(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do a piece of work in a process apart and return what it returns.

    Args:
        work: a function of a module, with picklable arguments and result.

    Raises:
        BenchError: it had bad input, no memory or no room on a disk (see `lacks_room`), or was
            killed.
        WorkerError: it failed in another way.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, work, arguments))
    process.start()
    sender.close()
    try:
        succeeded, answer = receiver.recv()
    except EOFError:
        process.join()
        raise _ended(process.exitcode) from None
    finally:
        if process.is_alive():
            process.join(timeout=5)
        if process.is_alive():
            process.terminate()
        process.join()
        receiver.close()
    if not succeeded:
        error, cause = answer
        raise error from cause
    return answer


def _answer(sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer = (True, work(*arguments))
    except KeyboardInterrupt:
        return
    except Exception as error:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if lacks_room(error) else None
        answer = (False, (_plain(error), full))  # an error that is sent loses its cause
    sender.send(answer)


def _end_with_parent() -> None:
    """End this process, whatever it does, when the one that asked for it is no more."""
    if parent := multiprocessing.parent_process():
        wait([parent.sentinel])
        os._exit(1)


def _plain(error: Exception) -> Exception:
    """An error that can be sent: no memory as such, others as `sendable`."""
    if lacks_memory(error):
        return BenchError(f"out of memory: {first_line(error)}", NO_MEMORY_HINT)
    return sendable(error)


def _ended(code: int | None) -> BenchError:
    if code == -signal.SIGKILL:
        return BenchError("killed by the system: most likely out of memory", NO_MEMORY_HINT)
    return BenchError(f"its process ended with {code}", "type the same command to try again")
