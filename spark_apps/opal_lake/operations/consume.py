"""Consume: pass the new rows of a table to a function of the user, at least once."""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import CONSUMER_ROWS, Function, one_of
from opal_lake.errors import FunctionError, InvalidInputError, NotFoundError, OpalError
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable

Consumed = Annotated[str, one_of(*CONSUMER_ROWS)]
_FOLDERS_SHOWN = 4  # how many folders of Python's path a message names
TableT = TypeVar("TableT")
FrameT = TypeVar("FrameT")


@dataclass(frozen=True, kw_only=True)  # no slots: they break calls of Change[...]
class Change(Generic[TableT, FrameT]):
    """The argument of a consumer's function: a table at a version, and its new rows.

    By partition the new rows are those that were ingested under `partition_key`. By version they
    are those that became visible after version `after`. A deleted primary key has no row: use
    `changes` to see deletes.
    """

    table: TableT
    version: int
    partition_key: str | None = None
    after: int | None = None
    rows_are: str = "visible"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spark(self) -> Any:
        """The session that works on the table, if its engine is Spark."""
        return self._open.executor.spark

    @property
    def rows(self) -> FrameT:
        """The new rows, for reports.

        By partition they are all rows that no later row of this partition key replaced or deleted.
        They stay the same until the partition key gets rows again, whatever other partition keys
        bring. By version they are the `valid_rows`, or the `changes` if the consumer asks for them.
        """
        if self.rows_are == "changes":
            return self.changes
        if self.partition_key is None:
            return self.valid_rows
        return self._read(partition_key=self.partition_key, net=True)

    @property
    def valid_rows(self) -> FrameT:
        """The new rows that are valid as of `version`, for a copy of the table."""
        return self._read(partition_key=self.partition_key, after=self.after)

    @property
    def changes(self) -> FrameT:
        """The rows that versions after `after` changed, before and after.

        If a consumer begins after the first versions have expired, all rows as of `version` are
        inserts.
        """
        from opal_lake.checked import LATEST
        from opal_lake.operations.read import Changes

        if self.after is None:
            raise InvalidInputError(
                "change.changes needs a consumer by version; consume with by='version'"
            )
        feed = Changes(LATEST)
        if self.after < self.version:
            feed = Changes(self.after + 1, self.version)
        try:
            changes: FrameT = feed.run(self._open)
        except NotFoundError:
            if self.after:
                raise
            return self._all_as_inserts()
        return changes

    @property
    def _open(self) -> Any:
        return self.table

    def _read(self, **which: Any) -> FrameT:
        from opal_lake.operations.read import Read

        rows: FrameT = Read(version=self.version, **which).run(self._open)
        return rows

    def _all_as_inserts(self) -> FrameT:
        from opal_lake.log.commit_times import CommitTimes
        from opal_lake.read.changed_rows import feed_fields

        head = self._open.log.head()
        # Only for its error: a column of the table may have the name of a column of the feed
        feed_fields(head.spec, None)
        committed_us = CommitTimes(head).of(self.version)
        inserts: FrameT = self._open.executor.as_inserts(
            self.valid_rows, self.version, committed_us
        )
        return inserts


@declaration
class Consume(Job):
    """Call a function with the rows of a partition key, or those after a version.

    The result is stored after the function has returned: a repeat with the same token does not call
    the function again.
    """

    name: ClassVar[str] = "consume"

    function: Function
    partition_key: str | None = None
    after: int | None = None
    version: int | None = None
    rows: Consumed = "visible"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError unless rows are new by partition key or by version."""
        if (given["partition_key"] is None) == (given["after"] is None):
            raise InvalidInputError(
                "consume needs either partition_key, such as '2026-11-01', or after, the last "
                "version that was seen, such as 7"
            )
        if given["rows"] == "changes" and given["partition_key"] is not None:
            raise InvalidInputError(
                "rows='changes' does not go with partition_key; "
                "give after, the last version that was seen, such as 7"
            )

    def run(self, table: "OpenTable") -> JobResult:
        """Call the function, and store its result."""
        from opal_lake.engine.results import keep_result, read_result

        version = table.snapshot_at(self.version).version
        if self.token is not None:
            earlier = read_result(table.storage, self.token)
            if earlier is not None:
                return earlier
        change: Change[Any, Any] = Change(
            table=table,
            version=version,
            partition_key=self.partition_key,
            after=self.after,
            rows_are=self.rows,
            arguments=self.arguments,
        )
        result = JobResult(
            operation=self.name,
            table=table.uri,
            version=version,
            token=self.token,
            counts=_counts_of(self.function, change),
        )
        return keep_result(table.storage, result)


def _counts_of(name: str, change: Change[Any, Any]) -> dict[str, int]:
    """Call a function, and return the counts that it returned."""
    function = load_function(name)
    try:
        counts = function(change)
    except OpalError:
        raise  # the type of the error says whether a retry can help
    except Exception as error:
        raise FunctionError(f"{name} failed: {type(error).__name__}: {error}") from error
    return _checked(counts, name)


def load_function(name: str) -> Callable[[Any], Any]:
    """Return the function that `package.module:function` names."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InvalidInputError(
            f"function={name!r} does not name a function; write it as 'package.module:function'"
        )
    try:
        function = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        folders = [folder for folder in sys.path[:_FOLDERS_SHOWN] if folder]
        raise InvalidInputError(
            f"function {name!r}: {error}. Python searches {', '.join(folders)}, ...; "
            "put the module next to the DAG file, or pass it with py_files="
        ) from error
    if not callable(function):
        raise InvalidInputError(
            f"function {name!r}: the module {module} has no function {attribute!r}; "
            "correct the name"
        )
    return function  # type: ignore[no-any-return]  # a call shows whether its arguments fit


def _checked(counts: object, function: str) -> dict[str, int]:
    """Return the counts that a function returned; refuse other values."""
    if counts is None:
        return {}
    if isinstance(counts, Mapping) and _are_counts(counts):
        return dict(counts)
    raise InvalidInputError(
        f"{function} returned {type(counts).__name__}; let the function return nothing, "
        "or counts by name such as {'orders': 12}"
    )


def _are_counts(members: Mapping[Any, Any]) -> bool:
    are_names = all(isinstance(name, str) for name in members)
    return are_names and all(isinstance(count, int) for count in members.values())
