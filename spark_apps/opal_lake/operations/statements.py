"""Statements: update, delete, insert and merge rows of a table.

A statement reads the newest version and commits only if no other job changed rows of the same keys
meanwhile. Otherwise it runs again, `tries` times in all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Count, Help, one_of
from opal_lake.errors import InvalidInputError
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable
    from opal_lake.log.snapshot import Snapshot
    from opal_lake.read.statement import StatementPlan

TRIES = 3
# A text, or a Column if the engine is Spark
RowsWhere = Annotated[Any, Help("only rows that meet this condition", "CONDITION")]
DeletedAt = Annotated[Any, Help("the delta of the deletes, such as a time", "VALUE")]
Partitions = Annotated[
    str, one_of("dynamic"), Help("replace the rows of the partitions that the new rows touch")
]
Duplicates = Annotated[str, one_of("fail", "latest")]
Tries = Annotated[Count, Help("how often to run if other jobs change the rows meanwhile")]


@declaration
class _Statement(Job):
    """The arguments of every statement."""

    tries: Tries = TRIES

    def _run(self, table: "OpenTable", plan: Any, *, has_latest: bool = False) -> JobResult:
        from opal_lake.write.statement_job import StatementRun, run_statement

        statement = StatementRun(
            operation=self.title,
            plan=plan,
            token=self.token,
            tries=self.tries,
            has_latest=has_latest,
        )
        return run_statement(table, statement)


@declaration
class Update(_Statement):
    """Change columns of the rows that meet a condition.

    For example, `set={"paid": "true"}` sets one column. The values of `set` are expressions over
    the columns of the row; a Python value that is not a text stands for itself. Without `where` all
    rows change. A row keeps its delta unless `set` changes it: the new values then count from the
    same event time on, and reads of that time show them as well. A delta that is lower than the
    row's is an error.
    """

    name: ClassVar[str] = "update"

    set: Mapping[str, Any] = field(kw_only=False)
    where: RowsWhere = None

    def run(self, table: "OpenTable") -> JobResult:
        """Read the rows, and commit their new values."""
        from opal_lake.read.statement import Clause, StatementPlan

        def plan(base: "Snapshot") -> "StatementPlan":
            clause = Clause(when="matched", action="update", where=self.where, values=self.set)
            return StatementPlan(snapshot=base, cache=table.cache, clauses=[clause])

        return self._run(table, plan)


@declaration
class Delete(_Statement):
    """Delete the rows that meet a condition; without `where` all rows.

    A row ends at `at`, a value of the delta column: earlier event times still show the row. Without
    `at` it ends at its own delta, and no event time shows it any more.
    """

    name: ClassVar[str] = "delete"

    where: RowsWhere = field(default=None, kw_only=False)
    at: DeletedAt = None

    def run(self, table: "OpenTable") -> JobResult:
        """Read the rows, and commit their deletes."""
        from opal_lake.read.statement import Clause, StatementPlan

        def plan(base: "Snapshot") -> "StatementPlan":
            clause = Clause(when="matched", action="delete", where=self.where)
            return StatementPlan(snapshot=base, cache=table.cache, clauses=[clause], at=self.at)

        return self._run(table, plan)


@declaration
class Insert(_Statement):
    """Add rows whose keys the table does not have.

    A key that the table has is an error. To replace existing rows, use `upsert`.
    """

    name: ClassVar[str] = "insert"

    rows: Any = field(kw_only=False)

    def run(self, table: "OpenTable") -> JobResult:
        """Look the keys up, and commit the rows."""
        from opal_lake.read.statement import Clause, StatementPlan

        def plan(base: "Snapshot") -> "StatementPlan":
            clause = Clause(when="not matched", action="insert")
            return StatementPlan(
                snapshot=base, cache=table.cache, clauses=[clause], source=self.rows
            )

        return self._run(table, plan)


@declaration
class Overwrite(_Statement):
    """Replace rows of the table by new ones, in one commit.

    Without further arguments the new rows replace all rows. With `partitions="dynamic"` they
    replace the rows of the partitions that they touch, and with `where` the rows that meet this
    condition, which each new row has to meet as well. A new row replaces the row of its key
    wherever that is. Rows that are not replaced end, as with `delete`: at `at`, or at their own
    delta. A key that comes twice is an error, and so is a new row with a lower delta than the row
    of its key, as it would stay invisible.
    """

    name: ClassVar[str] = "overwrite"

    rows: Any = field(kw_only=False)
    partitions: Partitions | None = None
    where: RowsWhere = None
    at: DeletedAt = None

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for two regions."""
        if given["partitions"] is not None and given["where"] is not None:
            raise InvalidInputError(
                "partitions and where exclude each other: give one of them, or none to replace "
                "all rows"
            )

    def run(self, table: "OpenTable") -> JobResult:
        """Look the keys up, read the rows to end, and commit."""
        from opal_lake.read.region import Region, require_partitions
        from opal_lake.read.statement import StatementPlan, overwrite_clauses

        def plan(base: "Snapshot") -> "StatementPlan":
            if self.partitions is not None:
                require_partitions(base.spec)
            return StatementPlan(
                snapshot=base,
                cache=table.cache,
                clauses=overwrite_clauses(),
                source=self.rows,
                at=self.at,
                region=Region(where=self.where, is_of_source=self.partitions is not None),
            )

        return self._run(table, plan)


@declaration
class DropPartition(_Statement):
    """Delete the rows of a partition, or of several ones.

    `partition` has values of partition columns, such as `{"day": "2026-01-01"}`; None stands for
    null. Rows of all partitions with these values end, at `at` or at their own delta. Only files of
    these partitions are read, and of them only keys, delta and tie-breaks.
    """

    name: ClassVar[str] = "drop_partition"

    partition: Annotated[
        Mapping[str, Any], Help("a partition column and its value; repeat for more", "NAME=VALUE")
    ] = field(kw_only=False)
    at: DeletedAt = None

    def run(self, table: "OpenTable") -> JobResult:
        """Read the keys of the partition, and commit their deletes."""
        from opal_lake.read.region import Region, partitions_of_values
        from opal_lake.read.statement import Clause, StatementPlan

        def plan(base: "Snapshot") -> "StatementPlan":
            return StatementPlan(
                snapshot=base,
                cache=table.cache,
                clauses=[Clause(when="matched", action="delete")],
                at=self.at,
                region=Region(partitions=partitions_of_values(self.partition, base.spec)),
            )

        return self._run(table, plan)


@declaration
class Merge(_Statement):
    """Merge a source into the table, by clauses for matching and for other rows.

    `on` is the condition under which a row of the table and a row of the source match. Expressions
    call the table `target` and the source `source_alias`. The clauses are added by the methods of
    `table.merge(...)`, in order; the first that fits a row applies. Several rows of the source for
    one row of the table are an error, or with `duplicates="latest"` the latest of each key counts.
    """

    name: ClassVar[str] = "merge"

    source: Any = field(kw_only=False)
    on: Any = None
    target: str = "t"
    source_alias: str = "s"
    duplicates: Duplicates = "fail"
    clauses: Sequence[Any] = ()
    evolves_schema: bool = False

    def run(self, table: "OpenTable") -> JobResult:
        """Join the source with the table, and commit what the clauses make."""
        from opal_lake.read.statement import StatementPlan

        if not self.clauses:
            raise InvalidInputError(
                "the merge has no clause; add one such as when_matched_update_all()"
            )
        if self.on is None:
            raise InvalidInputError("the merge needs on=, for example on='t.id = s.id'")
        if self.target.casefold() == self.source_alias.casefold():
            raise InvalidInputError(
                f"table and source are both called {self.target!r}; give another source_alias"
            )

        def plan(base: "Snapshot") -> "StatementPlan":
            if self.evolves_schema:
                base = with_columns_of(table, base, self.source)
            return StatementPlan(
                snapshot=base,
                cache=table.cache,
                clauses=self.clauses,
                source=self.source,
                on=self.on,
                target=self.target,
                other=self.source_alias,
                latest=self.duplicates == "latest",
                evolves=self.evolves_schema,
            )

        return self._run(table, plan, has_latest=True)


def with_columns_of(table: "OpenTable", base: "Snapshot", source: Any) -> "Snapshot":
    """Return a state that also has the new columns of a source.

    The statement that is planned on it adds them in its own commit.
    """
    from opal_lake.definition.added_columns import plan_added, refuse_former
    from opal_lake.engine.executor import ReadAs

    spec = base.spec
    with table.executor.fit(source, ReadAs(), lambda: spec) as fitted:
        new = fitted.new_columns(spec)
    if not new:
        return base
    # The source does not know that a column has another name now, or was given up
    refuse_former(spec.schema, new.names)
    return base.read_as(replace(spec, schema=plan_added(spec.schema, new)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBuilder:
    """A merge to which clauses are added; `execute` runs it.

    Each method returns a new builder. Of the clauses for a row, the first one whose `where` is true
    applies. `set` gives new values by column, as expressions.
    """

    table: "OpenTable"
    merge: Merge

    def when_matched_update(
        self,
        set: Mapping[str, Any],  # noqa: A002  # as in `update`
        where: Any = None,
    ) -> "MergeBuilder":
        """Update rows of the table that match a row of the source."""
        return self._with("matched", "update", where, set)

    def when_matched_update_all(self, where: Any = None) -> "MergeBuilder":
        """Update all columns of matching rows by those of the source."""
        return self._with("matched", "update", where)

    def when_matched_delete(self, where: Any = None) -> "MergeBuilder":
        """Delete rows of the table that match a row of the source."""
        return self._with("matched", "delete", where)

    def when_not_matched_insert(
        self, values: Mapping[str, Any], where: Any = None
    ) -> "MergeBuilder":
        """Insert rows of the source that match no row of the table."""
        return self._with("not matched", "insert", where, values)

    def when_not_matched_insert_all(self, where: Any = None) -> "MergeBuilder":
        """Insert all columns of rows of the source that match no row of the table."""
        return self._with("not matched", "insert", where)

    def when_not_matched_by_source_update(
        self,
        set: Mapping[str, Any],  # noqa: A002  # as in `update`
        where: Any = None,
    ) -> "MergeBuilder":
        """Update rows of the table that match no row of the source."""
        return self._with("not matched by source", "update", where, set)

    def when_not_matched_by_source_delete(self, where: Any = None) -> "MergeBuilder":
        """Delete rows of the table that match no row of the source."""
        return self._with("not matched by source", "delete", where)

    def with_schema_evolution(self) -> "MergeBuilder":
        """Add columns of the source that the table lacks, in the commit of the merge."""
        return replace(self, merge=replace(self.merge, evolves_schema=True))

    def execute(self, token: str | None = None, tries: int = TRIES) -> JobResult:
        """Run the merge."""
        merge = replace(self.merge, token=token, tries=tries)
        return merge.run(self.table)

    def _with(
        self, when: Any, action: Any, where: Any, values: Mapping[str, Any] | None = None
    ) -> "MergeBuilder":
        from opal_lake.read.statement import Clause

        clause: Clause = Clause(when=when, action=action, where=where, values=values)
        return replace(self, merge=replace(self.merge, clauses=[*self.merge.clauses, clause]))
