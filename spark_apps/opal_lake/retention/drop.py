"""Drop a table: delete its files, so that no reader ever sees a part of it (FORMAT, §17).

The first file deleted that a reader needs is the newest checkpoint, then the commit of version 0:
without both, no table exists. All other files follow. A marker stands during the drop, so that no
table is created meanwhile and a killed drop can be finished.
"""

from collections.abc import Iterator
from itertools import chain

from opal_lake import layout
from opal_lake.errors import FormatError, InvalidInputError, NotFoundError, count_text
from opal_lake.log.checkpoint import checkpoint_paths
from opal_lake.log.claim import claimed_operation
from opal_lake.log.commit import CREATE, FORMAT_VERSION, canonical_json, seal
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.version_window import savepoints_text
from opal_lake.result import JobResult
from opal_lake.storage.left_overs import find_left_overs, remove_empty_folders, remove_left_overs

OPERATION = "drop"


def drop_table(log: CommitLog, *, purge: bool = False) -> JobResult:
    """Delete the files of a table; finish a drop that was killed.

    Files that are not the table's stay. Raises InvalidInputError, unless `purge` is true, for a
    table that is damaged, or of which savepoints or business snapshots hold versions. Raises
    NotFoundError if no table exists. Stop the table's writers before.
    """
    storage = log.storage
    if not is_being_dropped(log):
        if not any(storage.list(layout.LOG)) and not any(storage.list(layout.CHECKPOINTS)):
            log.head()  # raises the error of a path without a table
        if not purge:
            _refuse_held(log)
        storage.put_if_absent(layout.DROPPED, _marker())
    # From the oldest on: until the last one is deleted, the newest shows the whole table
    oldest_first = [*checkpoint_paths(storage)][::-1]
    for path in oldest_first:
        storage.delete([path])
    storage.delete([layout.commit_path(0)])
    deleted = len(oldest_first) + 1
    for paths in _other_files(log):
        storage.delete(paths)
        deleted += len(paths)
    remove_left_overs(storage, [left_over.path for left_over in find_left_overs(storage)])
    storage.delete([layout.DROPPED])
    remove_empty_folders(storage)
    notes = [f"deleted {count_text(deleted, 'file')}"]
    remaining = next(iter(storage.list("")), None)
    if remaining is not None:
        notes.append(f"files that are not the table's stay, such as {remaining.path!r}")
    return JobResult(
        operation=OPERATION, table=storage.uri, counts={"files": deleted}, notes=tuple(notes)
    )


def remove_unfinished(log: CommitLog) -> bool:
    """Delete a table whose creation failed before its rows; return whether it is gone.

    Only the job that began the table may call this, once it writes no more. The table stays if
    another creation goes on with it, or has finished it.
    """
    if not _is_given_up(log):
        return False
    if not log.storage.put_if_absent(layout.DROPPED, _marker()):
        return False
    # Another creation claims a number, and looks for the marker before it commits. So either this
    # finds the claim, or the other one finds the marker.
    if not _is_given_up(log):
        log.storage.delete([layout.DROPPED])
        return False
    drop_table(log)
    return True


def _is_given_up(log: CommitLog) -> bool:
    """Return whether an unfinished table has no other creation that goes on with it."""
    if not log.newest().root.unfinished:
        return False
    claims = (entry.path for entry in log.storage.list(layout.CLAIMS))
    return all(claimed_operation(log.storage, path) != CREATE for path in claims)


def is_being_dropped(log: CommitLog) -> bool:
    """Return whether a drop of the table has begun and not finished."""
    return any(log.storage.list(layout.DROPPED))


def _marker() -> bytes:
    return seal(canonical_json({"format": FORMAT_VERSION}))


def _refuse_held(log: CommitLog) -> None:
    """Raise InvalidInputError if savepoints hold versions of the table."""
    try:
        # Also a table whose creation was killed
        root = log.newest().root
    except (FormatError, NotFoundError) as error:
        raise InvalidInputError(
            f"{error}. To delete the table in this state, write DROP TABLE ... PURGE"
        ) from error
    if root.savepoints:
        raise InvalidInputError(
            f"{log.storage.uri} has savepoints: {savepoints_text(root.savepoints)}; release them, "
            "or write DROP TABLE ... PURGE to delete them with the table"
        )


_BATCH = 1_000  # files of one request of S3


def _other_files(log: CommitLog) -> Iterator[list[str]]:
    """Yield the paths of the table's files in batches, without those of other tables."""
    storage = log.storage
    batch: list[str] = []
    for entry in chain(storage.list(layout.META), storage.list(layout.DATA)):
        if entry.path == layout.DROPPED or layout.inner_table(entry.path) is not None:
            continue
        batch.append(entry.path)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
