"""A check that the table is still the one that a process began with.

A table that was dropped and created again at its URI has another id. The log of another table need
not look like one: above the known version it goes on with its own commits, and a process that only
asks for later commits would believe that nothing happens.
"""

from opal_lake.errors import FormatError, NotFoundError
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.snapshot import Root, Snapshot
from opal_stream.errors import TableReplacedError


def follow(log: CommitLog, known: Snapshot, *, is_checked: bool = True) -> Snapshot:
    """Return the newest version of the same table.

    An idle caller passes `is_checked=False`, so that an unchanged version costs no second request.
    """
    try:
        newest = log.follow(known)
    except FormatError:  # this log does not continue the known one
        check_same(log, known.root)
        raise
    is_unchanged = newest.version == known.version
    has_other_id = newest.root.table_id != known.root.table_id
    if has_other_id or (is_checked and is_unchanged):
        check_same(log, known.root)
    return newest


def check_same(log: CommitLog, known: Root) -> None:
    """Raise TableReplacedError for another table, NotFoundError if it was dropped."""
    try:
        if log.read_commit(known.version).write_id == known.write_id:
            return
    except (FormatError, NotFoundError):  # the commit has expired, or went with its table
        pass
    check_id(log.storage.uri, log.head().root, known)


def check_id(uri: str, current: Root, known: Root) -> None:
    """Raise TableReplacedError if two roots are not of one table."""
    if current.table_id == known.table_id:
        return
    raise TableReplacedError(
        f"{uri} is another table now, with id {current.table_id}: the one with id "
        f"{known.table_id}, which this process began with, was dropped and created again; "
        "nothing more is written. To read into the new one, start the stream again: it reads all "
        "that Kafka still has"
    )
