"""Errors, named by what the caller does about them.

Every message states the fact, the values, and the next step.
"""


class OpalError(Exception):
    """Root of all errors that this package raises on purpose."""


class ConflictError(OpalError):
    """Another commit made this work invalid: plan it again from the new head."""


class ExpiredError(ConflictError):
    """Retention let the version expire with which a job or a reader began: begin again with the newest one."""


class FencedError(ConflictError):
    """The application is not where this writer left it: another one has committed for it. `position` is where it stands."""

    def __init__(self, message: str, application: str, expected: int, position: int) -> None:
        super().__init__(message)
        self.application, self.expected, self.position = application, expected, position

    def __reduce__(self) -> tuple[type["FencedError"], tuple[str, str, int, int]]:
        return FencedError, (str(self), self.application, self.expected, self.position)


class ClockError(OpalError):
    """This machine's clock is ahead of the store's: set it right, or try again on another machine."""


class StorageError(OpalError):
    """The store failed or did not answer: try again."""


class NotWrittenError(StorageError):
    """The store refused to write, and nothing was written: see to the cause, then try again."""


class NoSpaceError(NotWrittenError):
    """The disk or a quota is full, and nothing was written: free space, then try again."""


class ReadOnlyError(NotWrittenError):
    """This process may not write there, and nothing was written: trying again fails again."""


class CommitUnknownError(OpalError):
    """It is unknown whether the commit landed: read the table back, then rerun with the same token."""


class NotFoundError(OpalError, KeyError):
    """The named thing is not there."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would print the repr


class InvalidInputError(OpalError, ValueError):
    """The caller's arguments or rows do not fit; trying again unchanged fails again."""


class NoRowsError(InvalidInputError):
    """A source has nothing to read, which some callers expect."""


class TableExistsError(InvalidInputError):
    """There is a table already; another writer may have made it this moment."""


class FunctionError(OpalError):
    """A user's own function failed; it may succeed when it is called again."""


class ReportError(OpalError):
    """A task reported files that cannot be committed: a bug, or tasks of another build."""


class FormatError(OpalError):
    """Bytes of a table are damaged or of an unknown format. Names the file."""


class PreReleaseError(FormatError):
    """A pre-release wrote the bytes: nothing is damaged, and nothing reads them."""


class RowCountError(FormatError):
    """A file whose footer says other rows than its commit."""


class ForeignPathError(FormatError):
    """A table's metadata names a file that is none of this table's."""


def pre_release(path: str) -> PreReleaseError:
    """Return the error for a file of a table that a pre-release made."""
    return PreReleaseError(
        f"{path} was written by a pre-release of this format and cannot be read; "
        "create the table again, in another place or after you have deleted this one"
    )


def count_text(number: int, noun: str) -> str:
    """`1 file`, `1,200 files`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
