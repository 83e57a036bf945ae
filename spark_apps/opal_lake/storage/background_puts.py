"""Puts in threads, so that a task does not wait for a disk or a network after every file."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.protocol import Storage

# Files that are put at the same time; each stays in memory or in a spool until it is stored.
THREADS = 4


@dataclass(slots=True, kw_only=True)
class BackgroundPuts(ForwardingStore):
    """A store whose puts return before they complete.

    Every path must be unique: a put returns True before its outcome is known.
    """

    inner: Storage
    pool: ThreadPoolExecutor
    pending: deque[Future[bool]] = field(default_factory=deque)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        while len(self.pending) >= THREADS:
            self.pending.popleft().result()
        self.pending.append(self.pool.submit(self.inner.put_if_absent, path, data))
        return True


@contextmanager
def background_puts(storage: Storage) -> Iterator[Storage]:
    """Open a store that puts in threads; at the end, wait and raise the first error."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="opal-put") as pool:
        store = BackgroundPuts(inner=storage, pool=pool)
        yield store
        for put in store.pending:
            put.result()
