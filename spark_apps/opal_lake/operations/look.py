"""Look at a table: its definition, commits, files, segments, and invariants."""

from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Help, Limit
from opal_lake.operations.verb import Operation

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable
    from opal_lake.inspect.check.check import CheckedList
    from opal_lake.log.commit import Commit

Row = dict[str, Any]


@declaration
class Describe(Operation[Row]):
    """Return the definition of the table, and its size."""

    name: ClassVar[str] = "describe"

    def run(self, table: "OpenTable") -> Row:
        """Read its metadata."""
        from opal_lake.inspect.describe import describe

        return describe(table)


@declaration
class History(Operation[list[Row]]):
    """Return commits, newest first: at most `limit`, or all with 0 or without a limit."""

    name: ClassVar[str] = "history"

    limit: Limit | None = field(default=None, kw_only=False)

    def run(self, table: "OpenTable") -> list[Row]:
        """Read the log."""
        from opal_lake.inspect.describe import history_rows

        return history_rows(table, self.limit)


@declaration
class Commits(Operation[Iterator["Commit"]]):
    """Return commits as the log holds them, newest first.

    There are at most `limit` commits, or all with 0 or without a limit. Commit times that a clock
    repair corrected are the corrected ones.
    """

    name: ClassVar[str] = "commits"

    limit: Limit | None = field(default=None, kw_only=False)

    def run(self, table: "OpenTable") -> Iterator["Commit"]:
        """Read the log, only as far as the caller iterates."""
        from opal_lake.inspect.describe import commits_of

        return commits_of(table, self.limit)


@declaration
class ListFiles(Operation[list[Row]]):
    """Return the data files of a version, by default the newest."""

    name: ClassVar[str] = "files"

    version: int | None = field(default=None, kw_only=False)

    def run(self, table: "OpenTable") -> list[Row]:
        """Read its metadata."""
        from opal_lake.inspect.describe import file_rows

        return file_rows(table, self.version)


@declaration
class ListSegments(Operation[list[Row]]):
    """Return the segments of a version, each with its number of invisible rows."""

    name: ClassVar[str] = "segments"

    version: int | None = field(default=None, kw_only=False)

    def run(self, table: "OpenTable") -> list[Row]:
        """Read its metadata."""
        from opal_lake.inspect.describe import segment_rows

        return segment_rows(table, self.version)


@declaration
class Check(Operation["CheckedList"]):
    """Return every broken invariant of the format; an empty list if all hold.

    With a `sample`, such as "1%", all metadata is checked, and the rows of that share of the keys;
    each version selects other keys. With `quick` no data file is read. With `all` the files of
    savepoints and of all readable versions are checked, too. `looked_at` of the list names what was
    checked.
    """

    name: ClassVar[str] = "check"

    sample: Annotated[
        str | None,
        Help(
            "check all metadata, but only the rows of some keys: a share such as 1%, or a rough "
            "number of rows such as 100000; each version selects other keys",
            "SHARE",
        ),
    ] = None
    quick: Annotated[bool, Help("check metadata only: read no data file")] = False
    all: Annotated[
        bool, Help("also check the files of savepoints and of all readable versions, each once")
    ] = False

    def run(self, table: "OpenTable") -> "CheckedList":
        """Check metadata in this process, and rows by the engine's tasks."""
        from opal_lake.inspect.check.check import CheckedList, check

        return CheckedList(check(table, self))
