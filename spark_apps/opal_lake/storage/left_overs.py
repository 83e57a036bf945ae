"""What writers that were killed leave in a store, and what no listing shows, as it is no object.

A store in a folder has files in the making. One in memory has none. S3 has none of ours: an object is put by one request, which leaves
nothing when it is cut off. Uploads in parts, which stay until they are aborted, are other programs': a bucket's lifecycle rule aborts them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from opal_lake.storage.protocol import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """A file that never became an object. Its age is by the store's own time; its writer may still be at work."""

    path: str
    size: int
    age_us: int
    is_at_work: bool


@runtime_checkable
class KeepsLeftOvers(Protocol):
    """A store that can have some."""

    def left_overs(self) -> Iterator[LeftOver]: ...

    def remove_left_overs(self, paths: Iterable[str]) -> None:
        """Absent ones are no error. A writer that was at work nevertheless tries again."""
        ...


def find_left_overs(storage: Storage, least_age_us: int = 0) -> list[LeftOver]:
    """Those that old, but for those of writers that are known to be at work."""
    if not isinstance(storage, KeepsLeftOvers):
        return []
    return [
        item for item in storage.left_overs() if item.age_us >= least_age_us and not item.is_at_work
    ]


def remove_left_overs(storage: Storage, paths: Iterable[str]) -> None:
    if isinstance(storage, KeepsLeftOvers):
        storage.remove_left_overs(paths)
