"""What a table asks of a store: a few verbs, and nothing is ever overwritten.

Paths are relative to the store's root, `/`-separated, never absolute and never with `..`. All of it may be called from many threads.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

READERS = 8  # files that are read at once


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One entry of a listing."""

    path: str
    size: int
    modified_us: int


class Storage(Protocol):
    """A flat space of immutable objects."""

    @property
    def uri(self) -> str:
        """The root as the user wrote it, normalised (no trailing slash)."""
        ...

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes `[start, start+length)`; a negative start counts from the end. Raises NotFoundError, StorageError."""
        ...

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        """Create the object whole, or return False when the path exists already.

        Atomic: no reader sees a part. Raises StorageError when the outcome is unknown or the store refused; the object may exist then.
        False may be the echo of a caller's own first try that the store's client repeated: whoever needs to know reads it back.
        """
        ...

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        """Objects whose path starts with `prefix` and is greater than `start_after`, in path order (by code point); lazy."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects; absent ones are no error."""
        ...

    def parent(self) -> "Storage | None":
        """Return the store of the folder above; None where there is none."""
        ...

    def now_us(self) -> int | None:
        """The store's own time, by which it stamps objects, to a second or so; None where it tells none.

        Costs no request: it is the time in the last answer, plus the time since then.
        """
        ...
