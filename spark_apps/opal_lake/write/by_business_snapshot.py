"""An ingest of rows of several business snapshots: a column has the business snapshot of each row.

The ingest makes a commit for each business snapshot, in the order of their names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from opal_lake.definition.business_snapshots import BusinessSnapshots, first_of
from opal_lake.definition.schema import Atomic, type_name
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import ReadAs, Rows, Source, SplitRows
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.log.pending import Selection
from opal_lake.log.snapshot import Snapshot
from opal_lake.result import JobResult
from opal_lake.savepoints.business_snapshot import is_over, segments_due
from opal_lake.write.ingest_job import check_names, ingest
from opal_lake.write.metagen_job import metagen
from opal_lake.write.spec_change import with_new_columns

if TYPE_CHECKING:
    from opal_lake.operations.ingest import Ingest

MAX_VALUES = 1_000
_COLUMN_TYPES = ("string", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The rows of one commit: those of business snapshot `name`, if any, and bad ones.

    `bad` maps a value of the column to the reason why rows with this value are bad.
    """

    name: str | None
    bad: Mapping[str | None, str] = field(default_factory=dict)

    @property
    def values(self) -> set[str | None]:
        """The values of the column in the rows of this part."""
        if self.name is None:
            return {*self.bad}
        return {*self.bad, self.name}

    def ingest(self, asked: "Ingest") -> "Ingest":
        """Return the ingest of this part alone."""
        return replace(asked, business_snapshot=self.name, business_snapshot_column=None)

    def rows(self, counts: Mapping[str | None, int]) -> int:
        """Return how many rows the part has; `counts` has the number of rows by value.

        The ingest fails if the source then gives another number of rows.
        """
        return sum(counts[value] for value in self.values)


def ingest_rows(table: OpenTable, asked: "Ingest") -> JobResult:
    """Ingest the rows of a source; with a column, each business snapshot is a commit."""
    how = ReadAs(
        deleted=asked.deleted,
        ignores_new_columns=asked.on_new_columns == "ignore",
        in_partitions=asked.metadata == "batch",
    )
    with table.executor.fit(asked.source, how, lambda: table.log.head().spec) as source:
        column = asked.business_snapshot_column
        if column is None:
            return ingest(table, source.rows, asked, source.new_columns)
        return _ingest_by_column(table, source, asked, column)


def _ingest_by_column(table: OpenTable, source: Source, asked: "Ingest", column: str) -> JobResult:
    """Ingest each business snapshot in a commit; return the result of the last commit.

    The last commit carries the token. After a failure, a repeated call makes only the missing
    commits. Rows of a business snapshot that is finished are bad rows. After an inline ingest, only
    rows that are held back stay pending.
    """
    check_names(asked)
    if asked.positions:
        raise InvalidInputError(
            "positions are recorded in one commit, but business_snapshot_column makes several; "
            "give business_snapshot instead of the column, or leave out positions"
        )
    base = table.log.head()
    check_column(base.spec, column)
    earlier = table.log.earlier_result(base, "ingest", asked.token, asked.application)
    if earlier is not None:
        _take_up(table, asked)
        return earlier
    base = with_new_columns(table.log, base, asked.on_new_columns, source.new_columns)
    rows = source.split(base.spec, base.root.greatest_number + 1, column)
    values = rows.values(MAX_VALUES)
    applied = _applied(table, base, asked, values)
    remaining = {value: count for value, count in values.items() if value not in applied}
    parts = plan_parts(remaining, base.root.business, column)
    if applied:
        newest_applied = max(applied)
        parts = tuple(replace(part, bad=_bad_since(part, newest_applied)) for part in parts)
        # The remaining rows may all be bad: earlier attempts may have ingested all good rows
        asked = replace(asked, on_empty="accept")
    for part in parts:
        if part.name is not None:
            base.root.business.check_ingest(part.name, base.root.savepoints)
    notes: list[str] = []
    for name in sorted(applied):
        notes += applied[name].notes
    for part in parts[:-1]:
        result = ingest(
            table,
            partial(_rows_of, rows, part),
            part.ingest(_named_part(asked, str(part.name))),
            expected_rows=part.rows(values),
        )
        added = count_text(result.counts.get("rows", 0), "row")
        notes.append(f"version {result.version} has {added} of business snapshot {part.name}")
        notes += result.notes
    last = parts[-1]
    result = ingest(
        table,
        partial(_rows_of, rows, last),
        last.ingest(asked),
        expected_rows=last.rows(values),
        notes=tuple(notes),
    )
    _take_up(table, asked)
    return result


def _take_up(table: OpenTable, asked: "Ingest") -> None:
    """Make the pending rows of an inline ingest visible, unless they are held back.

    This includes all rows that are no longer held back, under any partition key: no MetaGen follows
    inline ingests, so that such rows would stay pending forever.
    """
    if asked.metadata != "inline":
        return
    head = table.log.head()
    if segments_due(head) or is_over(table.log, head):
        selection = Selection(partition_key=asked.partition_key, of_business_snapshots=True)
        metagen(table, selection=selection)


def plan_parts(
    values: Mapping[str | None, int], business: BusinessSnapshots, column: str
) -> tuple[Part, ...]:
    """Return the parts in the order of their business snapshots; there is always one.

    `values` has the number of rows by value of the column. All bad rows are in the first part: a
    threshold compares their number with the number of good rows of that part.
    """
    if len(values) > MAX_VALUES:
        raise InvalidInputError(
            f"column {column!r} has more than {MAX_VALUES:,} values in these rows; give a column "
            "with few values, for example the day"
        )
    known = business
    if business.newest is None:
        known = BusinessSnapshots(open=first_of(values))
    bad: dict[str | None, str] = {}
    names: list[str] = []
    for value in values:
        if value is None:
            bad[value] = f"business snapshot column {column!r} is null"
            continue
        problem = known.problem_of(value)
        if problem is None:
            names.append(value)
        else:
            bad[value] = problem
    if not names:
        return (Part(name=None, bad=bad),)
    names.sort()
    return (Part(name=names[0], bad=bad), *(Part(name=name) for name in names[1:]))


def _bad_since(part: Part, applied: str) -> dict[str | None, str]:
    """Return the bad values of a part that no earlier attempt has put aside.

    `applied` is the newest business snapshot that was ingested. An earlier attempt put aside nulls,
    and values that were bad already when it was open.
    """
    at_earlier_attempt = BusinessSnapshots(open=applied)

    def is_new(value: str | None) -> bool:
        return value is not None and at_earlier_attempt.problem_of(value) is None

    return {value: problem for value, problem in part.bad.items() if is_new(value)}


def _named_part(asked: "Ingest", name: str) -> "Ingest":
    """Return an ingest with the token and the application of its part.

    By these, a repeated call finds the commit of the part.
    """
    if asked.token is not None:
        asked = replace(asked, token=f"{asked.token}/{name}")
    if asked.application is not None:
        application, batch = asked.application
        asked = replace(asked, application=(f"{application}/{name}", batch))
    return asked


def _applied(
    table: OpenTable, base: Snapshot, asked: "Ingest", values: Iterable[str | None]
) -> dict[str, JobResult]:
    """Return the results of commits that earlier attempts made, by business snapshot."""
    applied = dict[str, JobResult]()
    for value in values:
        if value is None:
            continue
        part = _named_part(asked, value)
        result = table.log.earlier_result(base, "ingest", part.token, part.application)
        if result is not None:
            applied[value] = result
    return applied


def _rows_of(rows: SplitRows, part: Part, spec: TableSpec, _: int) -> Rows:
    """Return the rows of a part, for `ingest`."""
    return rows.part(part.values, part.bad, spec)


def check_column(spec: TableSpec, column: str) -> None:
    """Raise InvalidInputError unless the column can hold a business snapshot's name."""
    member = spec.schema.field(column)
    if member.name != column:
        raise InvalidInputError(
            f"the table's column is {member.name!r}, not {column!r}; "
            f"give business_snapshot_column={member.name!r}"
        )
    kind = member.type
    if not isinstance(kind, Atomic) or kind.name not in _COLUMN_TYPES:
        raise InvalidInputError(
            f"column {column!r} is {type_name(kind)}, but a business snapshot is a date or a text; "
            "name a column that holds one"
        )
