"""Incomplete files of killed writers: they are not objects, and listings leave them out.

A store in a folder has temporary files, and a store in memory has none. On S3 this project puts an
object with one request, which leaves nothing when it is interrupted. Other programs may leave
multipart uploads there: a lifecycle rule of the bucket aborts them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from opal_lake.storage.protocol import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """A file that is not an object yet, or never becomes one if its writer is gone.

    `age_us` is measured by the store's own time.
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

        If the writer of one is still at work, it tries again.
        """
        ...


@runtime_checkable
class HasFolders(Protocol):
    """A store whose folders stay when their files are deleted."""

    def remove_empty_folders(self) -> None: ...


def remove_empty_folders(storage: Storage) -> None:
    """Remove the empty folders of a store, and its root if nothing is in it."""
    if isinstance(storage, HasFolders):
        storage.remove_empty_folders()


def find_left_overs(storage: Storage, least_age_us: int = 0) -> list[LeftOver]:
    """Return left-overs of at least this age whose writers are not at work."""
    if not isinstance(storage, KeepsLeftOvers):
        return []
    idle = [left_over for left_over in storage.left_overs() if not left_over.is_at_work]
    return [left_over for left_over in idle if left_over.age_us >= least_age_us]


def remove_left_overs(storage: Storage, paths: Iterable[str]) -> None:
    if isinstance(storage, KeepsLeftOvers):
        storage.remove_left_overs(paths)
