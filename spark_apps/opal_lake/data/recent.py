"""A bounded cache of values that are made from immutable things."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True, kw_only=True)
class Recent(Generic[K, V]):
    """The values used last, by key. Several threads may share them.

    `max_size` bounds the sum of their sizes by `size_of`; by default it bounds their number. A
    larger value is not stored, unless `keeps_newest`: then the newest value is always stored. Two
    threads that miss the same key at the same time both make its value.
    """

    max_size: int
    size_of: Callable[[V], int] = lambda _: 1
    keeps_newest: bool = False
    _values: OrderedDict[K, V] = field(default_factory=OrderedDict)
    _size: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key; make it if it is missing."""
        known = self.known(key)
        if known is not None:
            return known
        value = make()
        self.put(key, value)
        return value

    def known(self, key: K) -> V | None:
        """Return the value of a key, which then counts as just used; None if missing."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: K, value: V) -> None:
        """Store the value of a key; drop the least recently used values to make room."""
        size = self.size_of(value)
        if size > self.max_size and not self.keeps_newest:
            return
        with self._lock:
            self._drop(key)
            self._values[key] = value
            self._size += size
            while self._size > self.max_size and len(self._values) > 1:
                self._drop(next(iter(self._values)))

    def forget(self, key: K) -> None:
        """Drop the value of a key, if there is one."""
        with self._lock:
            self._drop(key)

    def __iter__(self) -> Iterator[K]:
        with self._lock:
            return iter([*self._values])  # a copy: other threads may change the original

    def __len__(self) -> int:
        return len(self._values)

    def _drop(self, key: K) -> None:
        if key in self._values:
            self._size -= self.size_of(self._values.pop(key))
