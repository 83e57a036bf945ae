"""Look at a table: its definition, commits, files and segments, and its soundness."""

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
    """Return commits, newest first: at most `limit`, or all with 0 or without one."""

    name: ClassVar[str] = "history"

    limit: Limit | None = field(default=None, kw_only=False)

    def run(self, table: "OpenTable") -> list[Row]:
        """Read the log."""
        from opal_lake.inspect.describe import history_rows

        return history_rows(table, self.limit)


@declaration
class Commits(Operation[Iterator["Commit"]]):
    """Return commits as the log holds them, newest first.

    `limit` is that of `history`.

    Where a clock was repaired, they have their corrected times.
    """

    name: ClassVar[str] = "commits"

    limit: Limit | None = field(default=None, kw_only=False)

    def run(self, table: "OpenTable") -> Iterator["Commit"]:
        """Read the log, as far as the caller goes."""
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

    A `sample`, as "1%", checks all metadata, and all rows of that share of the keys; each version
    selects other keys. `quick` reads no data file. `all` also checks the files of savepoints and of
    all readable versions. `looked_at` of the list names what was checked.
    """

    name: ClassVar[str] = "check"

    sample: Annotated[
        str | None,
        Help(
            "check all metadata, but only the rows of some keys: a share, as 1%, or about this "
            "many rows, as 100000; each version selects other keys",
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
