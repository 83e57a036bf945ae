"""An ingest of rows of several business snapshots, which a column of theirs tells: a commit for each, in their order."""

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

MOST_VALUES = 1_000
_COLUMN_TYPES = ("string", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one commit takes: the rows of a business snapshot, if any, and bad rows, with what is wrong by the text in the column."""

    name: str | None
    bad: Mapping[str | None, str] = field(default_factory=dict)

    @property
    def values(self) -> set[str | None]:
        return {*self.bad, *([] if self.name is None else [self.name])}

    def ingest(self, asked: "Ingest") -> "Ingest":
        """Return the ingest of this part alone."""
        return replace(asked, business_snapshot=self.name, business_snapshot_column=None)

    def rows(self, counts: Mapping[str | None, int]) -> int:
        """Return how many rows it has: a source that gives others when it is read again is found out."""
        return sum(counts[value] for value in self.values)


def ingest_rows(table: OpenTable, asked: "Ingest") -> JobResult:
    """Let the engine read what is to be ingested; with a column, each business snapshot is a commit."""
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
    """The result of the last commit, which carries the token. After a failure the same call does what is left.

    Rows of a business snapshot that is finished are bad rows. An inline ingest leaves only rows pending that are held back still.
    """
    check_names(asked)
    if asked.positions:
        raise InvalidInputError(
            "positions go with one commit, and business_snapshot_column makes several; give business_snapshot instead"
        )
    base = table.log.head()
    check_column(base.spec, column)
    earlier = table.log.earlier_result(base, "ingest", asked.token, asked.application)
    if earlier is not None:
        _take_up(table, asked)
        return earlier
    base = with_new_columns(table.log, base, asked.on_new_columns, source.new_columns)
    rows = source.split(base.spec, base.root.greatest_number + 1, column)
    values = rows.values(MOST_VALUES)
    applied = _applied(table, base, asked, values)
    parts = plan_parts(
        {value: rows for value, rows in values.items() if value not in applied},
        base.root.business,
        column,
    )
    if applied:
        parts = tuple(replace(part, bad=_bad_since(part, max(applied))) for part in parts)
        asked = replace(asked, on_empty="accept")
    for part in parts:
        if part.name is not None:
            base.root.business.check_ingest(part.name, base.root.savepoints)
    notes = [note for name in sorted(applied) for note in applied[name].notes]
    for part in parts[:-1]:
        result = ingest(
            table,
            partial(_rows_of, rows, part),
            part.ingest(_own(asked, str(part.name))),
            expected_rows=part.rows(values),
        )
        brought = count_text(result.counts.get("rows", 0), "row")
        notes += [
            f"version {result.version} has {brought} of business snapshot {part.name}",
            *result.notes,
        ]
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
    """After an inline ingest, publish what waits under its key, and what is held back no more.

    No MetaGen comes after inline ingests: rows that were held back under another key would wait
    for ever.
    """
    if asked.metadata == "inline":
        head = table.log.head()
        if segments_due(head) or is_over(table.log, head):
            own = Selection(partition_key=asked.partition_key, of_business_snapshots=True)
            metagen(table, selection=own)


def plan_parts(
    values: Mapping[str | None, int], business: BusinessSnapshots, column: str
) -> tuple[Part, ...]:
    """In the order of the business snapshots, at least one. Bad rows go with the first: beside its good rows they count for a threshold."""
    if len(values) > MOST_VALUES:
        raise InvalidInputError(
            f"column {column!r} has more than {MOST_VALUES:,} values in these rows; name the column with the business snapshot, as a day"
        )
    known = business if business.newest is not None else BusinessSnapshots(open=first_of(values))
    problems = {value: _problem(value, known, column) for value in values}
    bad = {value: problem for value, problem in problems.items() if problem is not None}
    names = sorted(value for value in values if value is not None and value not in bad)
    if not names:
        return (Part(name=None, bad=bad),)
    return (Part(name=names[0], bad=bad), *(Part(name=name) for name in names[1:]))


def _bad_since(part: Part, applied: str) -> dict[str | None, str]:
    """Without what earlier tries have put aside: what belongs before the last that they applied, and is not applied, was bad then."""
    then = BusinessSnapshots(open=applied)
    return {
        value: problem
        for value, problem in part.bad.items()
        if value is not None and then.problem_of(value) is None
    }


def _problem(value: str | None, business: BusinessSnapshots, column: str) -> str | None:
    return (
        f"business snapshot column {column!r} is null"
        if value is None
        else business.problem_of(value)
    )


def _own(asked: "Ingest", name: str) -> "Ingest":
    """With what makes a repeat of one part harmless."""
    token, application = asked.token, asked.application
    return replace(
        asked,
        token=None if token is None else f"{token}/{name}",
        application=None if application is None else (f"{application[0]}/{name}", application[1]),
    )


def _applied(
    table: OpenTable, base: Snapshot, asked: "Ingest", values: Iterable[str | None]
) -> dict[str, JobResult]:
    """Return the results of the parts that an earlier try ingested, by business snapshot."""
    applied = dict[str, JobResult]()
    for value in values:
        if value is None:
            continue
        own = _own(asked, value)
        result = table.log.earlier_result(base, "ingest", own.token, own.application)
        if result is not None:
            applied[value] = result
    return applied


def _rows_of(rows: SplitRows, part: Part, spec: TableSpec, _: int) -> Rows:
    return rows.part(part.values, part.bad, spec)


def check_column(spec: TableSpec, column: str) -> None:
    """Raise InvalidInputError unless a column of the table can say the business snapshot."""
    member = spec.schema.field(column)
    if member.name != column:
        raise InvalidInputError(
            f"business_snapshot_column={column!r} is {member.name!r} in this table; write it so"
        )
    kind = member.type
    if not isinstance(kind, Atomic) or kind.name not in _COLUMN_TYPES:
        raise InvalidInputError(
            f"column {column!r} is {type_name(kind)}, but a business snapshot is a date or a text; "
            "name a column that holds one"
        )
