"""A store that counts the requests to it, as an object store would bill them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.protocol import Storage, StoredObject

LISTED = 1_000  # objects of one request of S3


@dataclass(slots=True, kw_only=True)
class CountingStore(ForwardingStore):
    """A store that counts requests by kind, as S3 would get them.

    A listing and a deletion take one for each thousand objects.
    """

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
        for position, entry in enumerate(self.inner.list(prefix, start_after)):
            self.requests["list"] += position > 0 and position % LISTED == 0
            yield entry

    def delete(self, paths: Iterable[str]) -> None:
        every = [*paths]
        self.requests["delete"] += -(-len(every) // LISTED)
        self.inner.delete(every)
