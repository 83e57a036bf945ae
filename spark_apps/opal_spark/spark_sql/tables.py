"""CREATE, ALTER, DROP and RESTORE of Opal tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from opal_lake.definition.changes.apply import changed
from opal_lake.definition.changes.defaults import SetDefault
from opal_lake.definition.changes.paths import path_text, target_of
from opal_lake.definition.changes.replaced import AnotherDefinitionError
from opal_lake.definition.properties import PROPERTIES, given_properties
from opal_lake.definition.schema import COMMIT, Schema, type_name
from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.engine.results import keep_result
from opal_lake.errors import InvalidInputError, NotFoundError, TableExistsError
from opal_lake.log.commit import CREATE
from opal_lake.log.snapshot import Snapshot
from opal_lake.operations.statements import TRIES
from opal_lake.result import JobResult
from opal_lake.retention.drop import drop_table as drop_files
from opal_lake.sql.cursor import Cursor
from opal_lake.sql.lexer import END, STRING, tokens
from opal_lake.sql.statements import (
    AddColumns,
    AddConstraint,
    AlterColumns,
    AlterTable,
    Call,
    Check,
    ColumnChange,
    ColumnDefinition,
    CreateTable,
    DescribeHistory,
    DescribeTable,
    DropColumns,
    DropConstraint,
    DropTable,
    Names,
    Position,
    PrimaryKey,
    RenameColumn,
    RenameTable,
    Restore,
    SetProperties,
    ShowCreateTable,
    ShowNamespaces,
    ShowProperties,
    ShowTables,
    Slice,
    Statement,
    UnsetProperties,
    VersionAsOf,
)
from opal_lake.storage import Storage, open_storage
from opal_lake.table import create_on, creation_with_rows, finish_without_rows, table_on
from opal_lake.write.replace_table import NewContent, replace_table
from opal_spark.engine.columns import columns_of_schema, parsed_columns
from opal_spark.engine.failures import spark_errors
from opal_spark.engine.session import cache_settings, storage_options
from opal_spark.spark_sql.arguments import Arguments
from opal_spark.spark_sql.catalog import open_table
from opal_spark.spark_sql.definition_text import ROLES, name_text, names_of, split_roles
from opal_spark.spark_sql.literals import default_literal, stored_condition
from opal_spark.spark_sql.procedures import call
from opal_spark.spark_sql.reads import Reads
from opal_spark.spark_sql.results import job_frame
from opal_spark.spark_sql.shown import (
    describe_history,
    describe_table,
    opened,
    show_create_table,
    show_namespaces,
    show_properties,
    show_tables,
    uri_of,
)
from opal_spark.table import OpalTable

Changes = list[dict[str, Any]]


# CREATE TABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewTable:
    """A table that a statement creates: its name, its path, and the store there."""

    spark: SparkSession
    statement: CreateTable
    args: Arguments
    uri: str
    storage: Storage
    token: str | None

    def rows(self, replaced: Snapshot | None = None) -> DataFrame | None:
        """Return the rows of AS SELECT, or None.

        The query may read the table that it replaces.
        """
        query = self.statement.query
        if query is None:
            return None
        pinned = {} if replaced is None else {replaced.storage.uri: replaced}
        reads = Reads(self.spark, self.statement, self.args, pinned=pinned)
        return reads.piece(query).rows(self.spark)


def create_table(
    spark: SparkSession, statement: CreateTable, args: Arguments, token: str | None
) -> DataFrame:
    """Create a table, with the rows of a query if there is one."""
    uri = uri_of(spark, statement.table, args)
    _refuse_what_is_not_stored(statement, uri)
    storage = open_storage(uri, storage_options(spark, uri))
    new = _NewTable(
        spark=spark, statement=statement, args=args, uri=uri, storage=storage, token=token
    )
    existing = _on_existing(new)
    if existing is None:
        try:
            existing = _create(new)
        except TableExistsError:
            # Another job created it meanwhile
            existing = _on_existing(new)
            if existing is None:
                raise
    return job_frame(spark, existing)


def _defined(new: _NewTable, rows: DataFrame | None) -> TableSpec:
    """Return the definition of a new table; rows bring their own columns."""
    columns = _columns(new) if rows is None else columns_of_schema(rows.schema)
    return _with_defaults(new, plan_spec(columns, _layout(new)))


def _with_defaults(new: _NewTable, spec: TableSpec) -> TableSpec:
    """Return the definition of a new table with the defaults of its columns."""
    changes: list[SetDefault] = []
    for column in new.statement.columns:
        if column.default is not None:
            value = default_literal(new.spark, column.default, new.args)
            if value is not None:
                changes.append(SetDefault(path_text(column.name), value))
    return changed(spec, changes)[0]


def _create(new: _NewTable) -> JobResult:
    rows = new.rows()
    spec = _defined(new, rows)
    cache = cache_settings(new.spark)
    if rows is None:
        table = create_on(new.storage, spec, cache=cache, token=new.token)
        return JobResult(operation=CREATE, table=table.uri, version=0, token=new.token)
    with creation_with_rows(new.storage, spec, cache=cache) as begun:
        table = OpalTable.on(new.spark, begun)
        result = table.insert(rows, token=new.token)
        if result.counts.get("inserted"):
            return result
        return finish_without_rows(table, new.token)


def _replace(new: _NewTable) -> JobResult:
    """Replace a table that exists, in one commit."""
    table = open_table(new.spark, new.statement.table, new.uri)

    def content_on(base: Snapshot) -> NewContent:
        rows = new.rows(base)
        return NewContent(spec=_defined(new, rows), rows=rows)

    try:
        with spark_errors():
            return replace_table(table, content_on, token=new.token, tries=TRIES)
    except AnotherDefinitionError as error:
        name = new.statement.table
        raise InvalidInputError(
            f"{name} exists, and is replaced with its history, in which these parts never change: "
            f"{error}. Write the same, or DROP TABLE {name} and then CREATE TABLE, which loses the "
            "history"
        ) from error


def _on_existing(new: _NewTable) -> JobResult | None:
    """Return the result for a table that exists; None if it is to be created.

    A statement replaces or accepts the table, or has created it. Otherwise this raises
    TableExistsError.
    """
    statement = new.statement
    try:
        log = table_on(new.storage).log
        head = log.head()
    except NotFoundError as error:
        if statement.mode == "replace":
            raise NotFoundError(
                f"{statement.table} does not exist, and REPLACE TABLE needs a table: {error}. "
                "Write CREATE OR REPLACE TABLE"
            ) from error
        return None
    if new.token is not None:
        for operation in (CREATE, "insert"):
            applied = head.version_of_token(new.token)
            if applied is not None and log.read_commit(applied).operation == operation:
                earlier = log.earlier_result(head, operation, new.token)
                assert earlier is not None
                return earlier
    if statement.if_not_exists:
        note = f"{statement.table} exists already, and stays as it is"
        existing = JobResult(
            operation=CREATE, table=new.storage.uri, token=new.token, notes=(note,)
        )
        # A repeat of a script knows by this result that the statement ran
        return keep_result(new.storage, existing)
    if statement.mode != "create":
        return _replace(new)
    raise TableExistsError(
        f"{statement.table} is an Opal table already, at {new.storage.uri}; write CREATE TABLE IF "
        "NOT EXISTS to accept it, or choose another name"
    )


def _refuse_what_is_not_stored(statement: CreateTable, uri: str) -> None:
    """Raise InvalidInputError for clauses that a table cannot hold."""
    if statement.comment is not None or any(column.comment for column in statement.columns):
        raise InvalidInputError("a table keeps no COMMENT; leave it out")
    for column in statement.columns:
        _refuse_in_type(column.name, column.type)
    key = statement.primary_key
    if key is not None and key.name is not None:
        raise InvalidInputError(
            f"a table keeps no name of its primary key; write PRIMARY KEY without CONSTRAINT "
            f"{key.name}"
        )
    location = statement.location
    if location is not None and _comparable(location) != _comparable(uri):
        raise InvalidInputError(
            f"LOCATION {location!r} is not the path of {statement.table}, which is {uri!r}: the "
            "name of a table is its folder. Leave LOCATION out, or name the table by its path: "
            f"opal.`{location}`"
        )


def _comparable(uri: str) -> str:
    scheme, separator, rest = uri.rstrip("/").partition("://")
    if not separator:
        return scheme
    if scheme == "file":
        return rest
    return f"s3://{rest}" if scheme == "s3a" else f"{scheme}://{rest}"


def _refuse_in_type(name: Names, data_type: Slice) -> None:
    """Raise InvalidInputError for parts of a type that a table would lose."""
    words = tokens(data_type.text)
    for word, following in pairwise(words):
        is_not_null = (word.value, following.value) == ("NOT", "NULL")
        is_comment = word.value == "COMMENT" and following.kind == STRING
        if is_not_null or is_comment or (word.value == "COLLATE" and following.kind != END):
            lost = "NOT NULL" if is_not_null else word.value
            raise InvalidInputError(
                f"column {path_text(name)!r}: a table does not keep {lost} within the type "
                f"{data_type}; leave it out"
            )


def _columns(new: _NewTable) -> pa.Schema:
    """Return the columns between the parentheses, with the types that Spark parses."""
    columns = new.statement.columns
    if not columns:
        raise InvalidInputError(
            f"{new.statement.table} has no columns; write them in parentheses, or AS SELECT"
        )
    texts = [f"{name_text(column.name[0])} {column.type}" for column in columns]
    return parsed_columns(new.spark, ",\n".join(texts))


def _layout(new: _NewTable) -> TableLayout:
    spark, statement = new.spark, new.statement
    roles, properties = split_roles(statement.properties)
    keys = statement.primary_key.columns if statement.primary_key is not None else ()
    if keys and "keys" in roles:
        raise InvalidInputError(
            f"{statement.table} has a PRIMARY KEY and the property 'keys'; leave out one of them"
        )
    if "keys" in roles:
        keys = tuple(names_of("keys", roles["keys"]))
    if not keys:
        raise InvalidInputError(
            f"{statement.table} has no key; add PRIMARY KEY (id) to its columns, or "
            "TBLPROPERTIES ('keys' = 'id')"
        )
    tie_break = roles.get("tie_break")
    return TableLayout(
        keys=keys,
        delta=roles.get("delta", COMMIT),
        tie_break=names_of("tie_break", tie_break) if tie_break is not None else (),
        deletes=roles.get("deletes"),
        partition_by=[_partition_column(piece) for piece in statement.partitioned_by],
        file_format=roles.get("file_format", "parquet"),
        properties=given_properties(properties),
        not_null=[column.name[0] for column in statement.columns if column.not_null],
        constraints=_constraints(spark, statement.checks),
        generated=_generated(spark, statement.columns),
    )


def _generated(spark: SparkSession, columns: Sequence[ColumnDefinition]) -> dict[str, str]:
    """Return the expressions of generated columns by their names."""
    expressions: dict[str, str] = {}
    for column in columns:
        if column.generated_as is not None:
            expressions[column.name[0]] = stored_condition(spark, column.generated_as)
    return expressions


def _constraints(spark: SparkSession, checks: Sequence[Check]) -> dict[str, str]:
    """Return CHECK conditions by their names; those without one are numbered."""
    constraints: dict[str, str] = {}
    for check in checks:
        if check.name is not None and check.name in constraints:
            raise InvalidInputError(f"two constraints are called {check.name!r}; rename one")
        if check.name is not None:
            constraints[check.name] = stored_condition(spark, check.condition)
    for check in checks:
        if check.name is None:
            constraints[_free_name(constraints)] = stored_condition(spark, check.condition)
    return constraints


def _free_name(constraints: Mapping[str, str]) -> str:
    """Return the first of check_1, check_2 and so on that no constraint has."""
    used = {name.casefold() for name in constraints}
    return next(name for number in count(1) if (name := f"check_{number}") not in used)


def _partition_column(piece: Slice) -> str:
    """Return the column that a part of PARTITIONED BY names."""
    cursor = Cursor(piece.text, tokens(piece.text))
    names = cursor.names("a column") if cursor.is_name() else ()
    if cursor.token.kind == END and len(names) == 1:
        return names[0]
    raise InvalidInputError(
        f"PARTITIONED BY {piece}: a table is partitioned by columns of its own; name a column of "
        "the list, and compute its value in the rows"
    )


# ALTER TABLE


def alter_table(
    spark: SparkSession, statement: AlterTable, args: Arguments, token: str | None
) -> DataFrame:
    """Change the definition of a table, in one commit."""
    table = opened(spark, statement.table, args)
    match statement:
        case SetProperties(properties=properties):
            _refuse_roles(properties)
            result = table.set_properties(given_properties(properties), token=token)
        case UnsetProperties(keys=keys, if_exists=if_exists):
            result = table.set_properties(_unset(keys, if_exists=if_exists), token=token)
        case _:
            asked = _Asked(spark=spark, args=args, spec=table.snapshot_at().spec)
            changes = _changes_of(statement, asked)
            if not changes:
                note = "nothing to change"
                unchanged = JobResult(
                    operation="alter", table=table.uri, token=token, notes=(note,)
                )
                result = keep_result(table.storage, unchanged)
            else:
                result = table.alter(changes, token=token)
    return job_frame(spark, result)


def _refuse_roles(keys: Mapping[str, str] | Names) -> None:
    fixed = [key for key in keys if key in ROLES]
    if fixed:
        raise InvalidInputError(
            f"property {fixed[0]!r} never changes after the creation of a table; create another "
            "table with CREATE TABLE ... AS SELECT"
        )


def _unset(keys: Names, *, if_exists: bool) -> dict[str, None]:
    _refuse_roles(keys)
    return {key: None for key in keys if not if_exists or key in PROPERTIES}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """An ALTER TABLE in its session, with its parameters and the table's definition."""

    spark: SparkSession
    args: Arguments
    spec: TableSpec

    def default(self, value: Slice) -> str | None:
        return default_literal(self.spark, value, self.args)

    def type_of(self, name: Names, data_type: Slice) -> str:
        """Return a type for a change of columns; Spark parses it, as in CREATE TABLE."""
        _refuse_in_type(name, data_type)
        # A nested column stands in errors with its whole path
        column = f"{name_text(path_text(name))} {data_type}"
        return type_name(parsed_columns(self.spark, column).field(0).type)


def _changes_of(statement: AlterTable, asked: _Asked) -> Changes:
    """Return the changes of columns and constraints that a statement asks for."""
    spec = asked.spec
    match statement:
        case AddColumns(columns=added):
            return list(chain.from_iterable(_added(column, asked) for column in added))
        case AlterColumns(changes=changes):
            return list(chain.from_iterable(_steps_of(change, asked) for change in changes))
        case DropColumns(columns=columns, if_exists=if_exists):
            dropped = [column for column in columns if not if_exists or _has(spec.schema, column)]
            return [{"drop": path_text(column)} for column in dropped]
        case RenameColumn(column=column, new_name=name):
            return [{"rename": path_text(column), "to": path_text([name])}]
        case AddConstraint(constraint=constraint):
            return [_added_constraint(constraint, asked)]
        case DropConstraint(name=name, if_exists=if_exists):
            known = {constraint.casefold() for constraint in spec.constraints}
            is_left_out = if_exists and name.casefold() not in known
            return [] if is_left_out else [{"drop_constraint": name}]
        case RenameTable(new_name=new_table):
            raise InvalidInputError(
                f"the name of a table is its folder, which is not moved; write CREATE TABLE "
                f"{new_table} ... AS SELECT * FROM {statement.table}, then DROP TABLE "
                f"{statement.table}"
            )
    raise InvalidInputError(f"{statement.text} is not supported")


def _added_constraint(constraint: Check | PrimaryKey, asked: _Asked) -> dict[str, Any]:
    if isinstance(constraint, PrimaryKey):
        raise InvalidInputError(
            "the keys of a table never change; create another table with CREATE TABLE ... AS SELECT"
        )
    name = constraint.name
    if name is None:
        name = _free_name(asked.spec.constraints)
    return {"add_constraint": name, "check": stored_condition(asked.spark, constraint.condition)}


def _added(column: ColumnDefinition, asked: _Asked) -> Changes:
    if column.comment is not None:
        raise InvalidInputError("a table keeps no COMMENT; leave it out")
    name = path_text(column.name)
    kind = asked.type_of(column.name, column.type)
    add = {"add": name, "type": kind, **_position_of(column.position)}
    if column.default is not None:
        add["default"] = asked.default(column.default)
    steps: Changes = [add]
    if column.not_null:
        steps.append({"set_not_null": name})
    return steps


def _position_of(position: Position | None) -> dict[str, Any]:
    if position is None:
        return {}
    if position.after is None:
        return {"first": True}
    return {"after": path_text([position.after])}


def _steps_of(change: ColumnChange, asked: _Asked) -> Changes:
    """Return the changes of a column by ALTER COLUMN."""
    name = path_text(change.column)
    if change.comment is not None:
        raise InvalidInputError("a table keeps no COMMENT; leave it out")
    steps: Changes = []
    if change.not_null is not None:
        steps.append({"set_not_null" if change.not_null else "drop_not_null": name})
    if change.type is not None:
        steps.append({"widen": name, "type": asked.type_of(change.column, change.type)})
    if change.position is not None:
        steps.append({"move": name, **_position_of(change.position)})
    value = None if change.default is None else asked.default(change.default)
    if value is not None:
        steps.append({"set_default": name, "value": value})
    elif change.drop_default or change.default is not None:
        steps.append({"drop_default": name})
    return steps


def _has(schema: Schema, column: Names) -> bool:
    try:
        target_of(schema, path_text(column))
    except InvalidInputError:
        return False
    return True


# DROP and RESTORE


def drop_table(
    spark: SparkSession, statement: DropTable, args: Arguments, token: str | None
) -> DataFrame:
    """Delete the files of a table."""
    if token is not None:
        raise InvalidInputError(
            f"token={token!r}: a dropped table remembers no token; leave it out, and write DROP "
            "TABLE IF EXISTS"
        )
    uri = uri_of(spark, statement.table, args)
    log = table_on(open_storage(uri, storage_options(spark, uri))).log
    try:
        result = drop_files(log, purge=statement.purge)
    except NotFoundError as error:
        if not statement.if_exists:
            raise NotFoundError(
                f"{statement.table}: {error}. DROP TABLE IF EXISTS accepts that"
            ) from error
        note = f"{statement.table} does not exist"
        result = JobResult(operation="drop", table=log.storage.uri, notes=(note,))
    return job_frame(spark, result)


def restore_table(
    spark: SparkSession, statement: Restore, args: Arguments, token: str | None
) -> DataFrame:
    """Show an older version again."""
    table = opened(spark, statement.table, args)
    reads = Reads(spark, statement, args)
    travel = statement.travel
    if isinstance(travel, VersionAsOf):
        version = reads.version(table.snapshot_at(), travel.version)
        result = table.restore(version=version, token=token)
    else:
        result = table.restore(timestamp=reads.moment(travel.timestamp), token=token)
    return job_frame(spark, result)


_ALTERS = (
    AddColumns,
    AddConstraint,
    AlterColumns,
    DropColumns,
    DropConstraint,
    RenameColumn,
    RenameTable,
    SetProperties,
    UnsetProperties,
)
# What runs the statements about tables, rather than about rows
TABLE_RUNNERS: Mapping[type[Statement], Callable[..., DataFrame]] = {
    CreateTable: create_table,
    **dict.fromkeys(_ALTERS, alter_table),
    DropTable: drop_table,
    Restore: restore_table,
    ShowTables: show_tables,
    ShowCreateTable: show_create_table,
    ShowNamespaces: show_namespaces,
    ShowProperties: show_properties,
    DescribeTable: describe_table,
    DescribeHistory: describe_history,
    Call: call,
}
