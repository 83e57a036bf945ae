"""Puts that run in threads, so that a task does not wait for a disk or a network after every file."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.protocol import Storage

THREADS = (
    4  # files on their way at once, which are held, in memory or in a spool, until they are there
)


@dataclass(slots=True, kw_only=True)
class BackgroundPuts(ForwardingStore):
    """A store whose puts return before they complete. Only for unique names: they return True before the outcome is known."""

    inner: Storage
    pool: ThreadPoolExecutor
    under_way: deque[Future[bool]] = field(default_factory=deque)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        while len(self.under_way) >= THREADS:
            self.under_way.popleft().result()
        self.under_way.append(self.pool.submit(self.inner.put_if_absent, path, data))
        return True


@contextmanager
def background_puts(storage: Storage) -> Iterator[Storage]:
    """All puts are done at the end, or the first one's error is raised."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="opal-put") as pool:
        store = BackgroundPuts(inner=storage, pool=pool)
        yield store
        for put in store.under_way:
            put.result()
