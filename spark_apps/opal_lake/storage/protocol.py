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

        It is atomic: no reader sees a part. Raises StorageError when the outcome is unknown or the
        store refused; the object may exist then.

        False may also mean that the first try of the store's client succeeded and was repeated: a
        caller that needs to know reads the object back.
        """
        ...

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        """Yield the objects whose path starts with `prefix` and is after `start_after`.

        They come in path order, by code point, and are listed as they are consumed.
        """
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""
        ...

    def parent(self) -> "Storage | None":
        """Return the store of the folder above, or None."""
        ...

    def now_us(self) -> int | None:
        """Return the store's own time, by which it stamps objects, if it is known.

        It is exact to a second or so, and needs no request: it is the time of the last response,
        plus the time since then.
        """
        ...
