"""Writing while the work goes on: puts run in threads, so that a task does not wait for a disk or a network after every file."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from opal_lake.storage.protocol import Storage, StoredObject

THREADS = 4  # files on their way at once, which are held, in memory or in a spool, until they are there


@dataclass(slots=True, kw_only=True)
class PutsBehind:
    """A store whose puts are under way when they return. Only for names that nobody else gives: True is said before it is known."""

    inner: Storage
    pool: ThreadPoolExecutor
    under_way: deque[Future[bool]] = field(default_factory=deque)

    @property
    def uri(self) -> str:
        return self.inner.uri

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self.inner.get(path, start, length)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        while len(self.under_way) >= THREADS:
            self.under_way.popleft().result()
        self.under_way.append(self.pool.submit(self.inner.put_if_absent, path, data))
        return True

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        return self.inner.list(prefix, start_after)

    def delete(self, paths: Iterable[str]) -> None:
        self.inner.delete(paths)


@contextmanager
def puts_behind(storage: Storage) -> Iterator[Storage]:
    """All puts are done at the end, or the first one's error is raised."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="opal-put") as pool:
        behind = PutsBehind(inner=storage, pool=pool)
        yield behind
        for put in behind.under_way:
            put.result()
