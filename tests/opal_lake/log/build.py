"""Stores of the log's tests."""

from collections.abc import Iterator

from opal_lake.storage import Storage
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.protocol import StoredObject


class Counting(ForwardingStore):
    """A store that records requests; a listing counts for each 1,000 entries."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.asked: list[tuple[str, str]] = []

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.asked.append(("get", path))
        return self.inner.get(path, start, length)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        self.asked.append(("put", path))
        return self.inner.put_if_absent(path, data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        for number, entry in enumerate(self.inner.list(prefix, start_after)):
            if number % 1000 == 0:
                self.asked.append(("list", prefix))
            yield entry

    def below(self, part: str) -> int:
        return sum(path.startswith(part) for _, path in self.asked)
