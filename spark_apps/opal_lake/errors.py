"""Errors, each named by what the caller should do about it.

Every message states the fact, the values, and the next step.
"""

from collections.abc import Collection


class OpalError(Exception):
    """Root of all errors that this package raises on purpose."""


class ConflictError(OpalError):
    """A job that another commit made invalid: plan it again from the new head."""


class ExpiredError(ConflictError):
    """A version that expired while a job or reader used it: begin with the newest one."""


class FencedError(ConflictError):
    """A conflict with another writer, which has committed for the same application.

    `position` is the application's position in the table, and `expected` the position after this
    writer's last commit.
    """

    def __init__(self, message: str, application: str, expected: int, position: int) -> None:
        super().__init__(message)
        self.application, self.expected, self.position = application, expected, position

    def __reduce__(self) -> tuple[type["FencedError"], tuple[str, str, int, int]]:
        return FencedError, (str(self), self.application, self.expected, self.position)


class ClockError(OpalError):
    """A clock of this machine that is ahead of the store's.

    Set it right, or try again on another machine.
    """


class StorageError(OpalError):
    """A failure of the store, or of the network to it: try again."""


class NotWrittenError(StorageError):
    """A refused write, of which nothing was written: remove the cause, then try again."""


class NoSpaceError(NotWrittenError):
    """A write to a full disk or quota, of which nothing was written: free space first."""


class ReadOnlyError(NotWrittenError):
    """A write without permission: another try fails as well.

    Nothing was written, but a delete of several files may have deleted some of them.
    """


class CommitUnknownError(OpalError):
    """A commit of unknown outcome: read the table, then rerun with the same token."""


class NotFoundError(OpalError, KeyError):
    """A named thing that does not exist."""

    def __str__(self) -> str:
        # KeyError would return the repr of the message.
        return str(self.args[0]) if self.args else ""


class InvalidInputError(OpalError, ValueError):
    """An argument or a row that does not fit: another try fails as well.

    `arguments` names arguments that the message mentions: the command line shows their flags.
    """

    def __init__(self, *args: object, arguments: Collection[str] = ()) -> None:
        super().__init__(*args)
        self.arguments = arguments


class NoRowsError(InvalidInputError):
    """A source without rows. Some callers catch this error and go on."""


class TableExistsError(InvalidInputError):
    """A table that exists already; another writer may have created it a moment ago."""


class FunctionError(OpalError):
    """A failure of a user's own function; another call may succeed."""


class ReportError(OpalError):
    """A task's report of files that cannot be committed: a bug, or another build."""


class FormatError(OpalError):
    """A file of a table that is damaged or of an unknown format; the message names it."""


class PreReleaseError(FormatError):
    """Bytes that a pre-release wrote: they are not damaged, but cannot be read."""


class RowCountError(FormatError):
    """A file whose footer has another number of rows than its commit."""


class ForeignPathError(FormatError):
    """A path in a table's metadata that does not belong to this table."""


def pre_release(path: str) -> PreReleaseError:
    """Return the error for a file of a table that a pre-release of the format wrote."""
    return PreReleaseError(
        f"{path} was written by a pre-release of this format and cannot be read; "
        "create the table again, at another path or after you have deleted this one"
    )


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `1,200 files`."""
    plural = "" if number == 1 else "s"
    return f"{number:,} {noun}{plural}"
