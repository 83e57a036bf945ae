"""A store in front of another one."""

from collections.abc import Iterable, Iterator

from opal_lake.storage.protocol import Storage, StoredObject


class ForwardingStore:
    """A store that passes every call on to `inner`; its subclasses change some calls.

    A subclass declares `inner` as a field or an attribute.
    """

    __slots__ = ()

    inner: Storage

    @property
    def uri(self) -> str:
        return self.inner.uri

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self.inner.get(path, start, length)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        return self.inner.put_if_absent(path, data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        return self.inner.list(prefix, start_after)

    def delete(self, paths: Iterable[str]) -> None:
        self.inner.delete(paths)

    def parent(self) -> Storage | None:
        return self.inner.parent()

    def now_us(self) -> int | None:
        return self.inner.now_us()
