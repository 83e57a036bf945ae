"""A bounded memory of what was made of immutable files: the files that were used last stay."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True, kw_only=True)
class Recent(Generic[K, V]):
    """Values by key, up to `max_bytes` as `size_of` counts them.

    A larger value is not remembered, unless `keeps_newest`: then the newest one stays in any case.
    Any number of threads may use it. Two that miss the same key at once both make its value.
    """

    max_bytes: int
    size_of: Callable[[V], int]
    keeps_newest: bool = False
    _values: OrderedDict[K, V] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, and make it where it is not known."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        size = self.size_of(value)
        if size > self.max_bytes and not self.keeps_newest:
            return value
        with self._lock:
            self._drop(key)
            self._values[key] = value
            self._bytes += size
            while self._bytes > self.max_bytes and len(self._values) > 1:
                self._drop(next(iter(self._values)))
        return value

    def _drop(self, key: K) -> None:
        if key in self._values:
            self._bytes -= self.size_of(self._values.pop(key))
