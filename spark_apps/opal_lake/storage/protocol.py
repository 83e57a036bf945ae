"""The protocol of a store: few methods, and objects are never overwritten.

Paths are relative to the store's root, `/`-separated, never absolute and never with `..`. Many
threads may call all methods.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

READERS = 8  # files that are read at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An entry of a listing."""

    path: str
    size: int
    modified_us: int


class Storage(Protocol):
    """A flat space of immutable objects."""

    @property
    def uri(self) -> str:
        """The root as the user wrote it, without a trailing slash."""
        ...

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes `[start, start+length)`; a negative start counts from the end.

        Raises NotFoundError, StorageError.
        """
        ...

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        """Create the object whole; return False if the path exists already.

        The put is atomic: no reader sees a part of the object. Raises StorageError if the outcome
        is unknown or the store refused; then the object may exist.

        The store's client may repeat a put whose first try succeeded. Then False is returned,
        although this call has created the object. A caller that needs to know reads it back.
        """
        ...

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        """Yield the objects whose path starts with `prefix` and is after `start_after`.

        Objects are in path order, by code point, and are listed as they are consumed.
        """
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""
        ...

    def parent(self) -> "Storage | None":
        """Return the store of the folder above, or None."""
        ...

    def now_us(self) -> int | None:
        """Return the store's own time, by which it stamps objects; None if unknown.

        The time is exact to about a second. It takes no request: it is the time of the last
        response, plus the time since then.
        """
        ...
