"""Incomplete files of killed writers, which are not objects and in no listing.

A store in a folder has temporary files; one in memory has none. S3 has none from this project: one
request puts an object, and leaves nothing when it is cut off. Multipart uploads stay until they are
aborted, but are those of other programs: a bucket's lifecycle rule aborts them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from opal_lake.storage.protocol import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """A file that is not an object yet, or never becomes one if its writer is gone.

    Its age is by the store's own time.
    """

    path: str
    size: int
    age_us: int
    is_at_work: bool


@runtime_checkable
class KeepsLeftOvers(Protocol):
    """A store that can have left-overs."""

    def left_overs(self) -> Iterator[LeftOver]: ...

    def remove_left_overs(self, paths: Iterable[str]) -> None:
        """Remove left-overs; missing ones are ignored.

        A writer that was still at work tries again.
        """
        ...


def find_left_overs(storage: Storage, least_age_us: int = 0) -> list[LeftOver]:
    """Return left-overs of at least an age, without those of writers that are at work."""
    if not isinstance(storage, KeepsLeftOvers):
        return []
    idle = [left_over for left_over in storage.left_overs() if not left_over.is_at_work]
    return [left_over for left_over in idle if left_over.age_us >= least_age_us]


def remove_left_overs(storage: Storage, paths: Iterable[str]) -> None:
    if isinstance(storage, KeepsLeftOvers):
        storage.remove_left_overs(paths)
