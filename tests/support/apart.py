"""Work for a process apart that ends badly; it imports little, so that the process begins soon."""

import errno
import os
import signal

from foundation.errors import BenchError


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def no_memory():
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes")


def bad_input():
    raise BenchError("no such preset", "use another")


def full():
    raise OSError(errno.ENOSPC, "No space left on device", "vectors")


def defect():
    raise ZeroDivisionError("division by zero")
