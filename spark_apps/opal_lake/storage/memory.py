"""A store in a dictionary, for tests and small experiments."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock

from opal_lake.clock import Clock, ManualClock
from opal_lake.errors import NotFoundError
from opal_lake.storage.paths import byte_range, check_length, check_path, check_prefix
from opal_lake.storage.protocol import StoredObject

_PAGE_OBJECTS = 1000  # objects of a page of a listing; writes may come between two pages
_registry: dict[str, "MemoryStorage"] = {}
_registry_lock = Lock()


class MemoryStorage:
    """A store in memory. Its own clock, used without `clock`, moves with each put.

    `named` returns the same store for the same name; the constructor makes a separate store.
    """

    def __init__(
        self,
        name: str = "unnamed",
        clock: Clock | None = None,
        *,
        page_objects: int = _PAGE_OBJECTS,
    ) -> None:
        self._name = name
        self._page_objects = page_objects
        self._clock = clock or ManualClock()
        self._has_real_time = clock is not None
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._paths: list[str] = []
        self._lock = Lock()

    @classmethod
    def named(cls, name: str) -> "MemoryStorage":
        with _registry_lock:
            return _registry.setdefault(name, cls(name))

    @property
    def uri(self) -> str:
        return f"memory://{self._name}"

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        check_length(length)
        entry = self._objects.get(check_path(path))
        if entry is None:
            raise NotFoundError(
                f"'{path}' is not in {self.uri}: it was never written, or deleted since"
            )
        data, _ = entry
        begin, end = byte_range(len(data), start, length)
        return data[begin:end]

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        check_path(path)
        with self._lock:
            if path in self._objects:
                return False
            self._objects[path] = bytes(data), self._clock.now_us()
            insort(self._paths, path)
            return True

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        check_prefix(prefix)
        return self._pages(prefix, start_after)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            check_path(path)
            with self._lock:
                if self._objects.pop(path, None) is not None:
                    del self._paths[bisect_left(self._paths, path)]

    def parent(self) -> None:
        """Return None: a name is not a path."""

    def now_us(self) -> int | None:
        """Return the time of the given clock; None for the store's own, unreal clock."""
        return self._clock.now_us() if self._has_real_time else None

    def _pages(self, prefix: str, start_after: str) -> Iterator[StoredObject]:
        while page := self._page(prefix, start_after):
            yield from page
            start_after = page[-1].path

    def _page(self, prefix: str, start_after: str) -> Sequence[StoredObject]:
        first = max(prefix, start_after + "\0")  # the least string after start_after
        with self._lock:
            begin = bisect_left(self._paths, first)
            following = self._paths[begin : begin + self._page_objects]
            paths = [path for path in following if path.startswith(prefix)]
            return [_stored(path, *self._objects[path]) for path in paths]

    def __reduce__(self) -> tuple[object, tuple[str]]:
        if _registry.get(self._name) is not self:
            raise TypeError(
                f"{self.uri} is a separate store and cannot be pickled: "
                "open it by name, or use a folder"
            )
        return MemoryStorage.named, (self._name,)

    def __repr__(self) -> str:
        return f"MemoryStorage({self.uri!r})"


def _stored(path: str, data: bytes, modified_us: int) -> StoredObject:
    return StoredObject(path=path, size=len(data), modified_us=modified_us)
