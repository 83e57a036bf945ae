"""The store of a machine: at chosen calls others run, or the machine fails."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from opal_lake import layout
from opal_lake.errors import StorageError
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.protocol import Storage, StoredObject
from tests.kit.failing_store import Crash, Mode

_T = TypeVar("_T")


@dataclass(kw_only=True)
class Plan:
    """The events of one operation.

    `interrupts` are by the number of the store call, from 1; `before_commits` get in when the
    operation is about to commit, where most races are decided. `author` is whose operation it is,
    and `began` the newest version when it began.

    Calls that an operation makes by threads of its own are not counted: their order is not that of
    the seed, and two of them could let others in at once.
    """

    interrupts: dict[int, Callable[[], None]] = field(default_factory=dict)
    before_commits: list[Callable[[], None]] = field(default_factory=list)
    fault_at: int | None = None
    fault: Mode = "before"
    has_faulted: bool = False
    calls: int = 0
    author: Any = None
    began: int = 0
    thread: int = field(default_factory=threading.get_ident)


class RacingStore(ForwardingStore):
    """A store that runs the plan of the current operation, or only passes calls on.

    `authors` tells of each commit which plan put it, by the path of the commit.
    """

    def __init__(self, inner: Storage, authors: dict[str, Plan]) -> None:
        self.inner = inner
        self.authors = authors
        self.plans: deque[Plan] = deque()
        self.is_dead = False

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        fails = self._enter(path)
        return self._leave(fails, path, self.inner.get(path, start, length))

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        if self.plans and path.startswith(layout.LOG) and self.plans[-1].before_commits:
            self.plans[-1].before_commits.pop()()
        fails = self._enter(path)
        is_new = self.inner.put_if_absent(path, data)
        if is_new and self.plans and path.startswith(layout.LOG):
            self.authors[path] = self.plans[-1]
        return self._leave(fails, path, is_new)

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        fails = self._enter(prefix)
        # a listing that is read later shows what was there when each page was read
        yield from self.inner.list(prefix, start_after)
        self._leave(fails, prefix, None)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            fails = self._enter(path)
            self.inner.delete([path])
            self._leave(fails, path, None)

    def _enter(self, path: str) -> bool:
        """Count the call; return whether it is the one that fails after its effect."""
        if self.is_dead:
            raise Crash("the process is dead already")
        if not self.plans:
            return False
        plan = self.plans[-1]
        if threading.get_ident() != plan.thread:
            return False
        plan.calls += 1
        interrupt = plan.interrupts.pop(plan.calls, None)
        if interrupt is not None:
            interrupt()
        if plan.calls != plan.fault_at:
            return False
        plan.has_faulted = True
        if plan.fault == "before":
            self._die(path)
        if plan.fault == "failed":
            raise StorageError(f"the call on '{path}' fails without effect, as asked")
        return True

    def _leave(self, fails: bool, path: str, result: _T) -> _T:
        if not fails:
            return result
        if self.plans[-1].fault == "after":
            self._die(path)
        raise StorageError(f"the call on '{path}' has had its effect and fails, as asked")

    def _die(self, path: str) -> None:
        self.is_dead = True
        raise Crash(f"the process dies at the call on '{path}'")
