"""Leases that are objects of a store, and hold among machines.

A lease is an object that one writer alone can create. Its holder writes it anew every few seconds;
it has expired when whoever wants it has seen it unchanged for ``ttl_s``, by a clock of its own:
clocks of machines are never compared. An expired lease is not removed, because two might do that
one after the other and both go on: it is followed by ``NAME.lease-1``, which again one alone can
create. Objects are asked for by their keys, never listed.
"""

import hashlib
import platform
import secrets
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from foundation.errors import BenchError
from foundation.locks import FileLock, FileLocks
from foundation.object_store import RemotePath

_GIVEN_BACK = b""  # content of a lease that followed another


@dataclass(frozen=True, eq=False)
class ObjectLeases:
    """Leases ``NAME.lease-0`` below a URL, each taken with a locked file of a local folder.

    The file settles it among processes of one machine. It also ends with its process: whoever has
    it knows that an earlier holder from the same folder is no more, and does not wait.

    Attributes:
        place: holds the objects. Its store should know conditional writes, as S3 does; where it
            does not, two machines that ask at the same moment may both have a lease.
        local: locks of the folder on this machine.
        ttl_s: seconds after which a lease that is not renewed has expired.
    """

    place: RemotePath
    local: FileLocks
    ttl_s: float = 60.0
    _seen: dict[str, tuple[bytes, float]] = field(default_factory=dict, repr=False)

    def take(self, name: str) -> "ObjectLease | None":
        """Take a lease; None where another holds it.

        Raises:
            BenchError: the store refuses.
        """
        lock = self.local.take(name)
        if lock is None:
            return None
        with ExitStack() as undo:
            undo.callback(lock.release)
            lease = self._created(name, lock)
            if lease is not None:
                undo.pop_all()
            return lease

    def wait(self, name: str) -> "ObjectLease":
        """Take a lease when its holder lets go of it, or has not renewed it.

        Raises:
            BenchError: the store refuses.
        """
        lock = self.local.wait(name)
        with ExitStack() as undo:
            undo.callback(lock.release)
            while (lease := self._created(name, lock)) is None:
                time.sleep(self.ttl_s / 30)
            undo.pop_all()
            return lease

    def _created(self, name: str, lock: FileLock) -> "ObjectLease | None":
        """The first generation that is not there, if all before it have expired."""
        token = f"{self._here} {secrets.token_hex(8)}"
        generation = 0
        while True:
            lease = self.place / f"{name}.lease-{generation}"
            following = self.place / f"{name}.lease-{generation + 1}"
            try:
                if not self._has_expired(lease):
                    return None
            except FileNotFoundError:
                if not lease.is_created(token.encode()):
                    return None
                return ObjectLease(lease, following, token, lock, self.ttl_s)
            generation += 1

    def _has_expired(self, path: RemotePath) -> bool:
        """True for a lease whose holder is no more, or gave it back.

        Raises:
            FileNotFoundError: there is none.
        """
        asked = time.monotonic()
        content = path.read_bytes()
        now = time.monotonic()
        known, since = self._seen.get(path.url, (None, now))
        if content != known or now - asked > self.ttl_s / 4:  # its holder had no answer either
            self._seen[path.url] = content, now
            since = now
        is_dead = content.startswith(self._here.encode()) or content == _GIVEN_BACK
        return is_dead or now - since >= self.ttl_s

    @cached_property
    def _here(self) -> str:
        """Name of the local folder among those of all machines."""
        status = self.local.folder.stat()
        facts = platform.node(), str(self.local.folder.resolve()), status.st_dev, status.st_ino
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


class ObjectLease:
    """A lease that a thread renews until `release`, or until another has followed it."""

    def __init__(
        self, path: RemotePath, following: RemotePath, token: str, lock: FileLock, ttl_s: float
    ) -> None:
        self._path = replace(path, patience_s=0)
        self._following = replace(following, patience_s=0)
        self._token = token
        self._lock = lock
        self._ttl_s = ttl_s
        self._is_followed = False
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)
        self._renewing.start()

    @property
    def held(self) -> bool:
        """False after `release`, and once this process has seen that another followed."""
        return not (self._ended.is_set() or self._is_followed)

    def release(self) -> None:
        """Let others in. Nothing happens the second time."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._renewing.join()
        with suppress(BenchError):  # a store that refuses: the lease expires
            if not self._path.name.endswith(".lease-0"):
                self._path.write_bytes(_GIVEN_BACK)  # it stays, so that the next one is new, too
            elif not self._is_followed:
                self._path.unlink()
        self._lock.release()

    def _renew(self) -> None:
        renewals = 0
        while not self._ended.wait(self._ttl_s / 4):
            with suppress(BenchError):  # the next time, if that is soon enough
                if self._following.exists():
                    self._is_followed = True
                    return
                renewals += 1
                self._path.write_bytes(f"{self._token} {renewals}".encode())
