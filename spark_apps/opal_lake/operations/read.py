"""Read: visible rows now or at a past moment, rows of keys, history, and changes."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import opal_lake.arguments.values as kinds
from opal_lake.arguments.declared import Declared, declaration
from opal_lake.arguments.values import Help, Moment, Where, one_of
from opal_lake.operations.verb import Operation, RowsOperation

if TYPE_CHECKING:
    import pyarrow as pa

    from opal_lake.engine.open_table import OpenTable
    from opal_lake.read.change_range import VersionRange
    from opal_lake.read.view import View

ExportFormat = Annotated[str, one_of("parquet", "csv", "json", "orc")]
SHOWN_ROWS = 20
VERSION = Help("as of this version")
TIMESTAMP = Help("as of this commit time, such as 2026-01-31T12:00:00+00:00", "TIME")
EVENT_TIME = Help("rows valid at this time at the source, by the delta column", "VALUE")


@declaration
class Read(RowsOperation):
    """Return the visible rows: now, as of a version, a commit time or an event time.

    An event time may be combined with a version or a commit time. `business_snapshot` reads the
    table as of the end of a business snapshot, or as it is now if that is open. `partition_key`
    selects the rows that were ingested under it, and `after` the rows that became visible after a
    version. `partition_key` with `net` selects all rows of this partition key that no later row of
    the same partition key replaced or deleted, whatever other partition keys brought. `where`
    selects rows that meet a condition: files without such rows are skipped where possible. An older
    version has the columns that it had; with `newest_columns` it has those of the newest version.
    """

    name: ClassVar[str] = "read"

    version: Annotated[int | None, VERSION] = field(default=None, kw_only=False)
    timestamp: Annotated[Moment | None, TIMESTAMP] = field(default=None, kw_only=False)
    event_time: Annotated[Any, EVENT_TIME] = field(default=None, kw_only=False)
    columns: Sequence[str] | None = field(default=None, kw_only=False)
    where: Where | None = field(default=None, kw_only=False)
    business_snapshot: Annotated[
        str | None,
        Help("as of the end of this business snapshot, or as of now if it is open", "NAME"),
    ] = None
    partition_key: Annotated[
        str | None, Help("only rows that were ingested under this partition key", "KEY")
    ] = None
    after: int | None = None
    net: Annotated[
        bool,
        Help("with a partition key: also its rows that other partition keys replaced or deleted"),
    ] = False
    newest_columns: Annotated[
        bool, Help("with the columns of the newest version, instead of the version's own")
    ] = False

    def run(self, table: "OpenTable") -> Any:
        """Choose the version now; return the engine's frame, which reads the rows."""
        return table.executor.rows(self.view(table))

    def view(self, table: "OpenTable") -> "View":
        """Return the view to read: a version, and the selection of its rows."""
        from opal_lake.read.result_columns import check_columns
        from opal_lake.read.view import view_of

        snapshot = table.snapshot_at(self.version, self.timestamp, self.business_snapshot)
        if self.newest_columns:
            snapshot = snapshot.read_as(table.log.head().spec)
        check_columns(snapshot.spec, self.columns)
        return view_of(
            table.log,
            snapshot,
            event_time=self.event_time,
            columns=self.columns,
            where=self.where,
            partition_key=self.partition_key,
            after=self.after,
            net=self.net,
        )


@declaration
class Get(Operation["pa.Table"]):
    """Return the rows of some keys, such as `[{"id": 7}]`, as an Arrow table.

    The rows are in the order of the keys, and keys without a row are left out. The key store finds
    the rows, so that no task runs. `where` selects rows that meet a condition.
    """

    name: ClassVar[str] = "get"

    keys: Any = field(kw_only=False)
    version: Annotated[int | None, VERSION] = None
    timestamp: Annotated[Moment | None, TIMESTAMP] = None
    event_time: Annotated[Any, EVENT_TIME] = None
    columns: Sequence[str] | None = None
    where: Where | None = None

    def run(self, table: "OpenTable") -> "pa.Table":
        """Look the keys up."""
        from opal_lake.read.get import get_rows
        from opal_lake.read.read import event_time_of
        from opal_lake.read.result_columns import check_columns
        from opal_lake.read.where import matching, needed_names, where_condition

        snapshot = table.snapshot_at(self.version, self.timestamp)
        check_columns(snapshot.spec, self.columns)
        as_of = event_time_of(snapshot, self.event_time)
        condition = where_condition(self.where, snapshot.spec)
        if condition is None:
            return get_rows(snapshot, table.cache, self.keys, as_of, self.columns)
        shown, needed = needed_names(snapshot.spec, self.columns, condition)
        rows = get_rows(snapshot, table.cache, self.keys, as_of, needed)
        return matching(rows, condition).select(shown)


@declaration
class HistoryView(RowsOperation):
    """Return every row with the time in which it was the valid row of its key.

    `valid_from` is the delta of the row, and `valid_until` the delta of the key's next row, or null
    if `is_current`. `deleted` is true if the key had no valid row afterwards. With `keys`, such as
    `[{"id": 7}]`, only the rows of these keys are read, through the key store.
    """

    name: ClassVar[str] = "history_view"

    keys: Any = None
    version: Annotated[int | None, VERSION] = None
    timestamp: Annotated[Moment | None, TIMESTAMP] = None
    columns: Sequence[str] | None = None
    where: Where | None = None

    def run(self, table: "OpenTable") -> Any:
        """Choose the version now; return the engine's frame, which reads the rows."""
        from opal_lake.read.history_view import view_types
        from opal_lake.read.result_columns import check_columns
        from opal_lake.read.view import HistoryPlan
        from opal_lake.read.where import where_condition

        snapshot = table.snapshot_at(self.version, self.timestamp)
        snapshot.spec.require_keys("a history view")
        own = view_types(snapshot.spec)
        check_columns(snapshot.spec, self.columns, own, "a history view")
        return table.executor.history(
            HistoryPlan(
                snapshot=snapshot,
                cache=table.cache,
                keys=self.keys,
                columns=self.columns,
                condition=where_condition(self.where, snapshot.spec, own),
            )
        )


@declaration
class Changes(RowsOperation):
    """Return the rows that the versions `start` to `end` changed, both included.

    A bound is a version, a commit time, or the name of a savepoint. A savepoint as `start` stands
    for the version after it, and `start="latest"` for the version that is committed next. By
    default `end` is the newest version. The column `_change_type` is `insert`, `delete`,
    `update_preimage` or `update_postimage`. With `compute_updates=False` an update is a `delete`
    and an `insert`. `_commit_version` and `_commit_timestamp` are those of the change.
    `mode="netChanges"` leaves out changes that later versions of the range undid.
    `axis="event_time"` reports changes of the rows of the history view, so also late rows that
    change only the past.
    """

    name: ClassVar[str] = "changes"

    start: Annotated[
        kinds.Bound,
        Help(
            "the first version, or a commit time; latest: the version that is committed next; "
            "a savepoint: the version after it",
            "BOUND",
        ),
    ] = field(kw_only=False)
    end: Annotated[
        kinds.Bound | None,
        Help("the last version, a commit time, or a savepoint (default: the newest)", "BOUND"),
    ] = field(default=None, kw_only=False)
    mode: Annotated[
        kinds.ChangeMode, Help("netChanges leaves out changes that later versions undid")
    ] = "none"
    compute_updates: bool = True
    axis: Annotated[
        kinds.ChangeAxis,
        Help("commit: changes of the current view; event_time: changes of the whole history"),
    ] = "commit"
    columns: Sequence[str] | None = None
    where: Where | None = None

    @property
    def is_of_history(self) -> bool:
        """True if the changes are those of the history instead of the current view."""
        return self.axis == kinds.CHANGE_AXES[1]

    @property
    def is_net(self) -> bool:
        """True if changes that later versions of the range undid are left out."""
        return self.mode == kinds.NET

    def run(self, table: "OpenTable") -> Any:
        """Choose the versions now; return the engine's frame, which reads the changes."""
        from opal_lake.read.change_range import version_range

        return self.of_versions(table, version_range(table.log, self.start, self.end))

    def of_versions(self, table: "OpenTable", versions: "VersionRange") -> Any:
        """Return the changes of versions as a frame of the engine."""
        from opal_lake.read.changed_rows import FEED_TYPES
        from opal_lake.read.history_view import view_types
        from opal_lake.read.result_columns import check_columns
        from opal_lake.read.view import ChangesPlan
        from opal_lake.read.where import where_condition

        spec = versions.head.spec
        spec.require_keys("a change feed")
        own = FEED_TYPES
        if self.is_of_history:
            own = {**FEED_TYPES, **view_types(spec)}
        check_columns(spec, self.columns, own, "a change feed")
        return table.executor.changes(
            ChangesPlan(
                log=table.log,
                cache=table.cache,
                versions=versions,
                feed=self,
                condition=where_condition(self.where, spec, own),
            )
        )


@declaration
class Explain(Operation[dict[str, Any]]):
    """Return which files a read would open and which it would skip, and why.

    A file is skipped by its bounds and a condition, by event time, or because none of its rows is
    visible. The result also says how much of the table is in Z-order. Only metadata is read.
    """

    name: ClassVar[str] = "explain"

    where: Where | None = field(default=None, kw_only=False)
    version: Annotated[int | None, VERSION] = field(default=None, kw_only=False)
    timestamp: Annotated[Moment | None, TIMESTAMP] = field(default=None, kw_only=False)
    event_time: Annotated[Any, EVENT_TIME] = field(default=None, kw_only=False)

    def run(self, table: "OpenTable") -> dict[str, Any]:
        """Plan the read, and return the explanation."""
        from opal_lake.log.visibility import invalid_rows
        from opal_lake.read.explain import explain
        from opal_lake.read.read import event_time_of, file_filter
        from opal_lake.read.where import where_condition, where_predicate

        snapshot = table.snapshot_at(self.version, self.timestamp)
        as_of = event_time_of(snapshot, self.event_time)
        predicate = where_predicate(where_condition(self.where, snapshot.spec))
        return explain(file_filter(snapshot, as_of, predicate, invalid_rows(snapshot, as_of)))


@declaration
class Shown(Declared):
    """The arguments that show the rows of a job in its result, or export them."""

    limit: Annotated[
        int | None, Help(f"at most this many rows (default: {SHOWN_ROWS} shown, all exported)")
    ] = None
    to: Annotated[
        str | None, Help("write the rows to this folder instead of showing them", "PATH")
    ] = None
    format: Annotated[ExportFormat, Help("the format of the exported files")] = "parquet"
    overwrite: Annotated[bool, Help("replace the content of the folder")] = False
    writer_options: Mapping[str, str] | None = None

    @property
    def shown_rows(self) -> int:
        """The greatest number of rows to show."""
        if self.limit is None:
            return SHOWN_ROWS
        return self.limit


@declaration
class ShowRows(Read, Shown):
    """Show or export the rows of a table, as they are now or were at a past moment."""

    token_argument: ClassVar[str] = "token"

    token: str | None = None

    def at(self, version: int) -> Read:
        """Return the read of a known version."""
        arguments = Read.among(vars(self))
        arguments.update(version=version, timestamp=None, business_snapshot=None)
        return Read(**arguments)


@declaration
class ShowChanges(Changes, Shown):
    """Show or export the rows that versions changed, each with its change."""

    token_argument: ClassVar[str] = "token"

    token: str | None = None
