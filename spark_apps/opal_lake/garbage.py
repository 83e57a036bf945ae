"""Which stored files nothing needs any more, and why."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from opal_lake import layout
from opal_lake.errors import NotFoundError
from opal_lake.reachable import Needed
from opal_lake.storage.protocol import Storage, StoredObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """A file that can go. `kind` is what it is counted as."""

    path: str
    size: int
    kind: str
    why: str


_Judge = Callable[[StoredObject, Needed, Storage], str]


def find_garbage(storage: Storage, needed: Needed) -> Iterator[Garbage]:
    """In an order in which they can be deleted: a root goes before the sections that it names, claims before the commits that used them."""
    for prefix, kind, judge in _KINDS:
        for found in storage.list(prefix):
            if found.path not in needed.paths and (why := judge(found, needed, storage)):
                yield Garbage(path=found.path, size=found.size, kind=kind, why=why)


def _of_job(found: StoredObject, needed: Needed, _: Storage) -> str:
    """Files of a job that will not commit (again), and that no readable version names."""
    number = layout.job_number(found.path)
    if number is None or not needed.numbers.has_ended(number):
        return ""
    return f"no readable version names it, and job {number} has ended"


def _rejected(found: StoredObject, needed: Needed, storage: Storage) -> str:
    """Rows that were put aside are for people, and no version names them: they stay as long as the commit that tells of them."""
    number = layout.job_number(found.path)
    return "" if number in needed.numbers.logged else _of_job(found, needed, storage)


def _rebuild_record(found: StoredObject, needed: Needed, storage: Storage) -> str:
    number = (layout.rebuild_place(found.path) or (None,))[0]
    return f"the rebuild of job {number} has ended" if number is not None and needed.numbers.has_ended(number) else ""


def _claim(found: StoredObject, needed: Needed, _: Storage) -> str:
    """A number above the greatest one in use stays claimed: it would be given out again."""
    number, numbers = layout.claim_number(found.path), needed.numbers
    if number is None or number > numbers.greatest or number in numbers.logged or not numbers.has_ended(number):
        return ""
    return f"job {number} has ended, and its commit has expired"


def _result(found: StoredObject, needed: Needed, storage: Storage) -> str:
    """One that names no version counts by when it was stored."""
    try:
        version = json.loads(storage.get(found.path))["version"]
    except (ValueError, KeyError, TypeError, NotFoundError):
        return ""
    if not isinstance(version, int):
        return "it was kept longer than the oldest version" if found.modified_us < needed.oldest_us else ""
    return _expired(version, needed)


def _expired(version: int | None, needed: Needed) -> str:
    return f"version {version} has expired" if version is not None and version < needed.begin else ""


def _commit(found: StoredObject, needed: Needed, _: Storage) -> str:
    return _expired(layout.commit_version(found.path), needed)


def _checkpoint(found: StoredObject, needed: Needed, _: Storage) -> str:
    version = layout.checkpoint_version(found.path)
    return "" if version in needed.savepoints else _expired(version, needed)


def _section(found: StoredObject, needed: Needed, _: Storage) -> str:
    """A younger one may belong to a checkpoint that is being written."""
    return _expired(layout.section_version(found.path), needed)


def _base(found: StoredObject, needed: Needed, _: Storage) -> str:
    return _expired(layout.bitmap_version(found.path), needed)


_KINDS: tuple[tuple[str, str, _Judge], ...] = (
    (layout.DATA, "data_files", _of_job),
    (layout.SEGMENT_LOGS, "segment_logs", _of_job),
    (layout.KEY_STORE, "key_store_runs", _of_job),
    (layout.SIDE, "side_files", _of_job),
    (layout.REJECTED, "rejected_files", _rejected),
    (layout.REBUILD, "rebuild_records", _rebuild_record),
    (layout.RESULTS, "results", _result),
    (layout.CONSUMED, "results", _result),
    (layout.CLAIMS, "claims", _claim),
    (layout.LOG, "commits", _commit),
    (layout.CHECKPOINTS, "checkpoints", _checkpoint),
    (layout.SECTIONS, "sections", _section),
    (layout.BITMAPS, "bitmap_bases", _base),
)
