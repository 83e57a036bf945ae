"""Whether the table is still the one that a process began with: one that was dropped and made anew at its place has another id.

The log of another table need not look like one: below the version that is known it goes on as it likes, and a process that only asks for
later commits would believe that nothing happens.
"""

from opal_lake.errors import FormatError, NotFoundError
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.snapshot import Root, Snapshot
from opal_stream.errors import TableReplacedError


def follow(log: CommitLog, known: Snapshot, *, is_checked: bool = True) -> Snapshot:
    """The newest version of the same table. Who has nothing to do need not have it checked each time that the version stands still."""
    try:
        newest = log.follow(known)
    except FormatError:  # a log that does not go on from the known one
        check_same(log, known.root)
        raise
    if (
        is_checked and newest.version == known.version
    ) or newest.root.table_id != known.root.table_id:
        check_same(log, known.root)
    return newest


def check_same(log: CommitLog, known: Root) -> None:
    """TableReplacedError if it is another one, NotFoundError if there is none any more."""
    try:
        if log.read_commit(known.version).write_id == known.write_id:
            return
    except (FormatError, NotFoundError):  # it has expired, or went with its table
        pass
    check_id(log.storage.uri, log.head().root, known)


def check_id(uri: str, found: Root, known: Root) -> None:
    if found.table_id != known.table_id:
        raise TableReplacedError(
            f"{uri} is another table now, with id {found.table_id}: the one with id {known.table_id}, which this process began with, was "
            "dropped and made anew; nothing more is written. To read into the new one, start it again: it reads all that Kafka still has"
        )
