"""The greatest memory of a process and all of its children."""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psutil

SAMPLE_S = 0.25
_TREE_EVERY = 4  # samples: looking for new children reads the whole process table


@dataclass(slots=True, kw_only=True)
class Memory:
    """High-water marks in bytes.

    `private` leaves out pages of files and pages shared between processes, if the system reports
    them.
    """

    resident: int = 0
    private: int = 0

    def forget(self) -> None:
        self.resident = self.private = 0

    def sample(self, tree: Iterable[psutil.Process]) -> int:
        """Sample the memory of a tree; what processes share counts once for each."""
        resident = private = 0
        for process in tree:
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info()
                resident += memory.rss
                private += memory.rss - getattr(memory, "shared", 0)
        self.resident = max(self.resident, resident)
        self.private = max(self.private, private)
        return resident


@contextlib.contextmanager
def watched(pid: int, memory: Memory) -> Iterator[None]:
    """Sample the tree of a process until the block ends."""
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(pid, memory, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(pid: int, memory: Memory, ended: threading.Event) -> None:
    tree: list[psutil.Process] = []
    turn = 0
    while True:
        if turn % _TREE_EVERY == 0:
            with contextlib.suppress(psutil.Error):
                leader = psutil.Process(pid)
                tree = [leader, *leader.children(recursive=True)]
        memory.sample(tree)
        turn += 1
        if ended.wait(SAMPLE_S):
            return
