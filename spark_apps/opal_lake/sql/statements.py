"""The statements that `parse` returns: a closed list.

Every expression, condition and query is a `Slice`, a verbatim piece of the user's text.
"""

from dataclasses import dataclass, field
from typing import Literal

Names = tuple[str, ...]  # the parts of a column's name: ("address", "city")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A piece of the text as the user wrote it, and where it begins in the whole text."""

    text: str
    offset: int

    @property
    def end(self) -> int:
        """Return where the piece ends in the whole text."""
        return self.offset + len(self.text)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class TableName:
    """The name of a table: its parts without backticks.

    `parts` is empty if the name is IDENTIFIER(...): Spark computes it from `computed`.
    """

    parts: Names
    slice: Slice
    computed: Slice | None = None

    @property
    def path(self) -> str | None:
        """Return the path of a table that is named by it: opal.`s3a://lake/orders`."""
        if len(self.parts) == 2 and self.parts[0].lower() == "opal":
            return self.parts[1]
        return None

    def __str__(self) -> str:
        return self.slice.text


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAsOf:
    """A table as of a version: a number, a string or a parameter."""

    version: Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampAsOf:
    """A table as of a time: an expression."""

    timestamp: Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes of a table between two versions or times, spelt as in Spark 4.2.

    Both bounds are inclusive unless the text says EXCLUSIVE; without an end it is the newest one.
    """

    by: Literal["version", "timestamp"]
    start: Slice
    end: Slice | None = None
    start_inclusive: bool = True
    end_inclusive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A place in a query that names a table.

    `slice` spans the name and its time travel: a placeholder replaces it. Without an alias, one
    may be inserted at `alias_at`; it is None where the grammar allows none.
    """

    table: TableName
    slice: Slice
    travel: VersionAsOf | TimestampAsOf | Changes | None = None
    alias: str | None = None
    alias_at: int | None = None
    options: Slice | None = None
    streaming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The table that a statement changes, and its alias."""

    table: TableName
    alias: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """`column = value` of an UPDATE."""

    column: Names
    value: Slice
    slice: Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement: its text, and every table that its queries and expressions read."""

    text: Slice
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query(Statement):
    """A query: `text` is the whole of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionValue:
    """A value of PARTITION (...): `day = '2026-11-29'`; without one it is dynamic."""

    column: str
    value: Slice | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertInto(Statement):
    """`INSERT INTO t [PARTITION (..)] [(columns) | BY NAME] query`."""

    table: TableName
    query: Slice
    partition: tuple[PartitionValue, ...] = ()
    if_not_exists: bool = False
    columns: Names | None = None
    by_name: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertOverwrite(InsertInto):
    """`INSERT OVERWRITE t [PARTITION (..)] [(columns) | BY NAME] query`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertReplaceWhere(Statement):
    """`INSERT INTO t REPLACE WHERE condition query`."""

    table: TableName
    where: Slice
    query: Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(Statement):
    """`UPDATE t SET a = .., .. [WHERE ..]`."""

    target: Target
    assignments: tuple[Assignment, ...]
    where: Slice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(Statement):
    """`DELETE FROM t [WHERE ..]`."""

    target: Target
    where: Slice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeClause:
    """A WHEN clause of a MERGE.

    `assignments` belong to an update; `columns` and `values` to an insert.
    """

    kind: Literal["matched", "not_matched", "not_matched_by_source"]
    action: Literal["update", "update_all", "delete", "insert", "insert_all"]
    slice: Slice
    condition: Slice | None = None
    assignments: tuple[Assignment, ...] = ()
    columns: tuple[Names, ...] = ()
    values: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Statement):
    """`MERGE INTO t USING s ON .. WHEN ..`.

    The source is a table (`source_table`) or the query between parentheses (`source_query`).
    """

    target: Target
    on: Slice
    clauses: tuple[MergeClause, ...]
    source_table: Reference | None = None
    source_query: Slice | None = None
    source_alias: str | None = None
    with_schema_evolution: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A CHECK constraint."""

    condition: Slice
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimaryKey:
    """A PRIMARY KEY constraint."""

    columns: Names
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place among the columns: FIRST, if `after` is None, or AFTER another."""

    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDefinition:
    """A column of CREATE TABLE or ADD COLUMN."""

    name: Names
    type: Slice
    slice: Slice
    not_null: bool = False
    default: Slice | None = None
    generated_as: Slice | None = None
    comment: str | None = None
    position: Position | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable(Statement):
    """`CREATE [OR REPLACE] TABLE [IF NOT EXISTS] t (..) [USING opal] .. [AS query]`.

    `mode` is "replace" for REPLACE TABLE, which needs an existing table.
    """

    table: TableName
    mode: Literal["create", "create_or_replace", "replace"] = "create"
    if_not_exists: bool = False
    columns: tuple[ColumnDefinition, ...] = ()
    primary_key: PrimaryKey | None = None
    checks: tuple[Check, ...] = ()
    provider: str | None = None
    partitioned_by: tuple[Slice, ...] = ()
    location: str | None = None
    comment: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    query: Slice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTable(Statement):
    """An ALTER TABLE; each action is a class of its own."""

    table: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumns(AlterTable):
    """`ALTER TABLE t ADD COLUMN[S] ..`."""

    columns: tuple[ColumnDefinition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumns(AlterTable):
    """`ALTER TABLE t DROP COLUMN[S] [IF EXISTS] ..`."""

    columns: tuple[Names, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumn(AlterTable):
    """`ALTER TABLE t RENAME COLUMN a.b TO c`."""

    column: Names
    new_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """A change of a column by ALTER COLUMN; None means that it stays.

    `drop_default` and `default` are never both given.
    """

    column: Names
    slice: Slice
    type: Slice | None = None
    not_null: bool | None = None
    default: Slice | None = None
    drop_default: bool = False
    comment: str | None = None
    position: Position | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterColumns(AlterTable):
    """`ALTER TABLE t {ALTER | CHANGE} [COLUMN] ..`."""

    changes: tuple[ColumnChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddConstraint(AlterTable):
    """`ALTER TABLE t ADD [CONSTRAINT n] {CHECK (..) | PRIMARY KEY (..)}`."""

    constraint: Check | PrimaryKey


@dataclass(frozen=True, slots=True, kw_only=True)
class DropConstraint(AlterTable):
    """`ALTER TABLE t DROP CONSTRAINT [IF EXISTS] n`."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetProperties(AlterTable):
    """`ALTER TABLE t SET TBLPROPERTIES (..)`."""

    properties: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsetProperties(AlterTable):
    """`ALTER TABLE t UNSET TBLPROPERTIES [IF EXISTS] (..)`."""

    keys: Names
    if_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameTable(AlterTable):
    """`ALTER TABLE t RENAME TO u`."""

    new_name: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable(Statement):
    """`DROP TABLE [IF EXISTS] t [PURGE]`."""

    table: TableName
    if_exists: bool = False
    purge: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowTables(Statement):
    """`SHOW TABLES [IN ns] [LIKE pattern]`."""

    namespace: TableName | None = None
    like: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowNamespaces(Statement):
    """`SHOW {NAMESPACES | SCHEMAS | DATABASES} [IN ns] [LIKE pattern]`."""

    namespace: TableName | None = None
    like: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowCreateTable(Statement):
    """`SHOW CREATE TABLE t`."""

    table: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowProperties(Statement):
    """`SHOW TBLPROPERTIES t [(key)]`."""

    table: TableName
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTable(Statement):
    """`DESCRIBE [TABLE] [EXTENDED | FORMATTED] t [column]`."""

    table: TableName
    extended: bool = False
    column: Names | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeHistory(Statement):
    """`DESCRIBE HISTORY t [LIMIT n]`."""

    table: TableName
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Statement):
    """`RESTORE [TABLE] t [TO] {VERSION | TIMESTAMP} AS OF ..`."""

    table: TableName
    travel: VersionAsOf | TimestampAsOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of CALL, by position if it has no name."""

    value: Slice
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Statement):
    """`CALL catalog.system.procedure(value, name => value)`."""

    procedure: TableName
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Other(Statement):
    """A statement outside this list: only Spark can run it.

    `names` are the names of several parts in the text, and those that follow TABLE: if one of them
    is an Opal table, the statement is not supported. `namespace` is the one of USE and SHOW. `hint`
    says what to write instead, if known.
    """

    names: tuple[TableName, ...] = ()
    namespace: TableName | None = None
    hint: str | None = None
