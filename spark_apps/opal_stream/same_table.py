"""A check that the table is still the one that a process began with.

A table that was dropped and created again at its URI has another id. The log alone does not show
that the table is another one: its commits may have the same version numbers. A process that only
asks for later versions would see an idle table.
"""

from opal_lake.errors import FormatError, NotFoundError
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.snapshot import Root, Snapshot
from opal_stream.errors import TableReplacedError


def follow(log: CommitLog, known: Snapshot, *, is_checked: bool = True) -> Snapshot:
    """Return the newest snapshot; raise if the table is no longer the known one.

    With `is_checked=False` an unchanged version costs no second request, but is not checked: for
    callers that ask often and have nothing to write.
    """
    try:
        newest = log.follow(known)
    except FormatError:  # this log does not continue the known snapshot's log
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
    except (FormatError, NotFoundError):  # the commit has expired, or the table was dropped
        pass
    check_id(log.storage.uri, log.head().root, known)


def check_id(uri: str, current: Root, known: Root) -> None:
    """Raise TableReplacedError if the current root is of another table than the known."""
    if current.table_id == known.table_id:
        return
    raise TableReplacedError(
        f"{uri} is another table now, with id {current.table_id}. This process began with the "
        f"table of id {known.table_id}, which was dropped, and writes nothing more. To read into "
        "the new table, start the stream again: it reads everything that Kafka still has"
    )
