"""A store that counts the requests to it, as an object store would bill them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.protocol import Storage, StoredObject


@dataclass(slots=True, kw_only=True)
class CountingStore(ForwardingStore):
    """A store that counts requests by kind: get, put and list."""

    inner: Storage
    requests: Counter[str] = field(default_factory=Counter)

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.requests["get"] += 1
        return self.inner.get(path, start, length)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        self.requests["put"] += 1
        return self.inner.put_if_absent(path, data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        self.requests["list"] += 1
        return self.inner.list(prefix, start_after)

    def delete(self, paths: Iterable[str]) -> None:
        self.requests["delete"] += 1
        self.inner.delete(paths)
