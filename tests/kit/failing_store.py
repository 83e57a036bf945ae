"""Stores that fail or stall at a chosen call, to walk through every place where a writer can die.

A dry run with `fail_at=None` gives the trace; a test then repeats the work with `fail_at` =
1..len(trace).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from threading import Event, Lock
from typing import Literal, TypeVar

from opal_lake.errors import StorageError
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.protocol import Storage, StoredObject

Mode = Literal["before", "after", "failed", "done_but_failed"]
Verb = Literal["get", "put_if_absent", "list", "delete"]
_T = TypeVar("_T")


class Crash(BaseException):  # the process is gone: code cannot handle it
    """The death of a process, which no `except Exception` catches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that a store saw. A deletion of n paths is n calls."""

    verb: Verb
    path: str


class FailingStore(ForwardingStore):
    """A store that fails at the n-th call (from 1).

    The process dies `before` or `after` the effect of the call. `failed` and `done_but_failed`
    raise a StorageError once, without or with the effect. A listing fails behind its first entry.
    """

    def __init__(self, inner: Storage, fail_at: int | None = None, mode: Mode = "before") -> None:
        self.inner = inner
        self.fail_at = fail_at
        self.mode = mode
        self.trace: list[Call] = []
        self.crashed = False
        self._lock = Lock()

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        fails = self._enter("get", path)
        return self._leave(fails, path, self.inner.get(path, start, length))

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        fails = self._enter("put_if_absent", path)
        return self._leave(fails, path, self.inner.put_if_absent(path, data))

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        fails = self._enter("list", prefix)
        return self._listing(fails, prefix, self.inner.list(prefix, start_after))

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            fails = self._enter("delete", path)
            self.inner.delete([path])
            self._leave(fails, path, None)

    def _enter(self, verb: Verb, path: str) -> bool:
        """Count the call; True when it is the one that fails behind its effect."""
        with self._lock:
            if self.crashed:
                raise Crash("the process is dead already")
            self.trace.append(Call(verb=verb, path=path))
            if len(self.trace) != self.fail_at:
                return False
            if self.mode == "before":
                self._crash(path)
            if self.mode == "failed":
                raise StorageError(
                    f"call {self.fail_at} on '{path}' fails without effect, as asked: try again"
                )
            return True

    def _leave(self, fails: bool, path: str, result: _T) -> _T:
        if fails and self.mode == "after":
            self._crash(path)
        if fails:
            raise StorageError(
                f"call {self.fail_at} on '{path}' has had its effect and fails, as asked: "
                "read back, or try again"
            )
        if self.crashed:
            raise Crash("another thread of this process died meanwhile")
        return result

    def _listing(
        self, fails: bool, prefix: str, objects: Iterator[StoredObject]
    ) -> Iterator[StoredObject]:
        for entry in objects:
            yield entry
            self._leave(fails, prefix, None)
        self._leave(fails, prefix, None)

    def _crash(self, path: str) -> None:
        self.crashed = True
        raise Crash(f"the process dies {self.mode} call {self.fail_at}, on '{path}'")


class RefusingStore(ForwardingStore):
    """Raises an error at each put, as a store that may only be read."""

    def __init__(self, inner: Storage, error: Exception) -> None:
        self.inner = inner
        self.error = error

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        raise self.error


class StallingStore(ForwardingStore):
    """A store that stalls before the first put whose path contains `part`."""

    def __init__(self, inner: Storage, part: str, timeout_s: float = 60.0) -> None:
        self.inner = inner
        self.part = part
        self.timeout_s = timeout_s
        self._lock = Lock()
        self._stalls = True
        self._stalled = Event()
        self._released = Event()

    def wait_until_stalled(self) -> None:
        """Return once a writer stands still; TimeoutError when none comes."""
        if not self._stalled.wait(self.timeout_s):
            raise TimeoutError(
                f"no put of a path with '{self.part}' within {self.timeout_s} s: "
                "is that path still written?"
            )

    def release(self) -> None:
        """Let the writer go on."""
        self._released.set()

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        if self._is_first(path):
            self._stalled.set()
            if not self._released.wait(self.timeout_s):
                raise TimeoutError(
                    f"the put of '{path}' was not released within {self.timeout_s} s: "
                    "call release()"
                )
        return self.inner.put_if_absent(path, data)

    def _is_first(self, path: str) -> bool:
        with self._lock:
            first = self._stalls and self.part in path
            self._stalls = self._stalls and not first
            return first
