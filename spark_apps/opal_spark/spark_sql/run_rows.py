"""Statements that read or change rows of Opal tables.

A statement that changes rows reads every table as it was when it began; if it runs again because
other jobs changed its rows, it reads the newest versions again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from opal_lake.definition.schema import Field, type_name
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.log.snapshot import Snapshot
from opal_lake.operations.statements import TRIES, with_columns_of
from opal_lake.read.region import Region, partitions_of_values
from opal_lake.read.statement import Action, Clause, StatementPlan, When, overwrite_clauses
from opal_lake.result import JobResult
from opal_lake.sql.statements import (
    Assignment,
    Delete,
    InsertInto,
    InsertOverwrite,
    InsertReplaceWhere,
    Merge,
    MergeClause,
    Names,
    Query,
    Slice,
    Target,
    Update,
)
from opal_lake.write.statement_job import StatementRun, run_statement
from opal_spark.engine.columns import quoted, spark_field_type, write_default
from opal_spark.engine.failures import spark_errors
from opal_spark.engine.stored_values import stored_value
from opal_spark.read.statement_text import SqlText
from opal_spark.spark_sql.arguments import Arguments
from opal_spark.spark_sql.catalog import open_table, table_uri
from opal_spark.spark_sql.reads import Reads
from opal_spark.table import OpalTable

_SOURCE = "_opal_source"  # the name of a merge's query that has none
_DYNAMIC = "spark.sql.sources.partitionOverwriteMode"
_WHEN: Mapping[str, When] = {
    "matched": "matched",
    "not_matched": "not matched",
    "not_matched_by_source": "not matched by source",
}
_ACTIONS: Mapping[str, Action] = {
    "update": "update",
    "update_all": "update",
    "delete": "delete",
    "insert": "insert",
    "insert_all": "insert",
}


def run_query(
    spark: SparkSession, statement: Query, args: Arguments, token: str | None
) -> DataFrame:
    """Return the result of a query."""
    if token is not None:
        raise InvalidInputError(
            f"token={token!r}: a query changes nothing, so that it needs no token; leave it out"
        )
    return Reads(spark, statement, args).piece(statement.text).rows(spark)


def run_update(
    spark: SparkSession, statement: Update, args: Arguments, token: str | None
) -> DataFrame:
    """Run an UPDATE, and return its counts."""
    table, alias, reads = _target(spark, statement, statement.target, args)
    values = _assignments(statement.assignments, statement.target, alias)

    def plan(base: Snapshot) -> StatementPlan:
        now = reads.at({table.uri: base})
        clause = Clause(
            when="matched",
            action="update",
            where=_text(now, statement.where),
            values={name: _text(now, value) for name, value in values.items()},
        )
        return StatementPlan(snapshot=base, cache=table.cache, clauses=[clause], target=alias)

    result = _run(table, "update", plan, token)
    return _counts(spark, result, num_affected_rows=result.counts["updated"])


def run_delete(
    spark: SparkSession, statement: Delete, args: Arguments, token: str | None
) -> DataFrame:
    """Run a DELETE, and return its counts."""
    table, alias, reads = _target(spark, statement, statement.target, args)

    def plan(base: Snapshot) -> StatementPlan:
        where = _text(reads.at({table.uri: base}), statement.where)
        clause = Clause(when="matched", action="delete", where=where)
        return StatementPlan(snapshot=base, cache=table.cache, clauses=[clause], target=alias)

    result = _run(table, "delete", plan, token)
    return _counts(spark, result, num_affected_rows=result.counts["deleted"])


def run_merge(
    spark: SparkSession, statement: Merge, args: Arguments, token: str | None
) -> DataFrame:
    """Run a MERGE, and return its counts."""
    table, alias, reads = _target(spark, statement, statement.target, args)
    other = _source_alias(statement)
    if other.casefold() == alias.casefold():
        raise InvalidInputError(
            f"table and source are both called {alias!r}; give one of them an alias"
        )

    def plan(base: Snapshot) -> StatementPlan:
        now = reads.at({table.uri: base})
        source = _source(spark, statement, now)
        if statement.with_schema_evolution:
            base = with_columns_of(table, base, source)
        return StatementPlan(
            snapshot=base,
            cache=table.cache,
            clauses=[_clause(clause, now, statement.target, alias) for clause in statement.clauses],
            source=source,
            on=_text(now, statement.on),
            target=alias,
            other=other,
            evolves=statement.with_schema_evolution,
        )

    return _changed_rows(spark, _run(table, "merge", plan, token))


def run_insert(
    spark: SparkSession, statement: InsertInto, args: Arguments, token: str | None
) -> DataFrame:
    """Insert or replace rows by key, and return the counts."""
    _refuse_if_not_exists(statement)
    table, _, reads = _target(spark, statement, Target(table=statement.table), args)
    with spark_errors():
        rows = _inserted(spark, statement, reads, table.snapshot_at().spec)
    result = table.upsert(rows, token=token)
    written = result.counts.get("rows", 0)
    late = result.counts.get("late", 0)
    if late:
        result = replace(result, notes=(*result.notes, _late_note(late)))
    return _counts(
        spark,
        result,
        num_affected_rows=written,
        num_updated_rows=result.counts.get("updates", 0),
        num_inserted_rows=written,
    )


def _late_note(late: int) -> str:
    rows = "row has" if late == 1 else "rows have"
    return (
        f"{late:,} {rows} a lower delta or tie-break than another row of the key, so that the "
        "newest version shows the other row"
    )


def _refuse_if_not_exists(statement: InsertInto) -> None:
    if statement.if_not_exists:
        raise InvalidInputError(
            "IF NOT EXISTS is not supported: an INSERT inserts or replaces rows by key; leave it "
            "out, or write MERGE INTO ... WHEN NOT MATCHED THEN INSERT *"
        )


def run_overwrite(
    spark: SparkSession, statement: InsertOverwrite, args: Arguments, token: str | None
) -> DataFrame:
    """Run an INSERT OVERWRITE, and return its counts.

    It replaces all rows, or with PARTITION the rows of one partition. If the setting
    `spark.sql.sources.partitionOverwriteMode` is dynamic, it replaces the partitions of its rows.
    """
    _refuse_if_not_exists(statement)
    table, alias, reads = _target(spark, statement, Target(table=statement.table), args)
    mode = str(spark.conf.get(_DYNAMIC, "static"))

    def plan(base: Snapshot) -> StatementPlan:
        now = reads.at({table.uri: base})
        region = _region(statement, now, base.spec, is_dynamic=mode.lower() == "dynamic")
        rows = _inserted(spark, statement, now, base.spec)
        return _overwrite_plan(table, base, alias, rows, region)

    return _changed_rows(spark, _run(table, "overwrite", plan, token))


def run_replace_where(
    spark: SparkSession, statement: InsertReplaceWhere, args: Arguments, token: str | None
) -> DataFrame:
    """Run an INSERT INTO ... REPLACE WHERE, and return its counts."""
    table, alias, reads = _target(spark, statement, Target(table=statement.table), args)

    def plan(base: Snapshot) -> StatementPlan:
        now = reads.at({table.uri: base})
        where = _plain(now, statement.where)
        insert = InsertInto(
            text=statement.text,
            references=statement.references,
            table=statement.table,
            query=statement.query,
        )
        rows = _inserted(spark, insert, now, base.spec)
        return _overwrite_plan(table, base, alias, rows, Region(where=where))

    return _changed_rows(spark, _run(table, "overwrite", plan, token))


def _overwrite_plan(
    table: OpalTable, base: Snapshot, alias: str, rows: DataFrame, region: Region
) -> StatementPlan:
    return StatementPlan(
        snapshot=base,
        cache=table.cache,
        clauses=overwrite_clauses(),
        source=rows,
        target=alias,
        other=_SOURCE,
        region=region,
    )


def _changed_rows(spark: SparkSession, result: JobResult) -> DataFrame:
    """Return the counts of a statement that updates, deletes and inserts."""
    counts = result.counts
    return _counts(
        spark,
        result,
        num_affected_rows=counts["updated"] + counts["deleted"] + counts["inserted"],
        num_updated_rows=counts["updated"],
        num_deleted_rows=counts["deleted"],
        num_inserted_rows=counts["inserted"],
    )


def _region(
    statement: InsertOverwrite, reads: Reads, spec: TableSpec, *, is_dynamic: bool
) -> Region:
    """Return the rows that an INSERT OVERWRITE replaces."""
    fixed = _partition_values(statement, spec)
    if is_dynamic and len(fixed) < len(spec.partition_by):
        return Region(is_of_source=True)
    if len(fixed) < len(statement.partition):
        raise InvalidInputError(
            f"{_DYNAMIC} is static, so that a PARTITION without a value would replace every "
            f"partition; run spark.conf.set({_DYNAMIC!r}, 'dynamic') to replace the partitions of "
            "the new rows, or give each column a value"
        )
    if not fixed:
        return Region()
    values: dict[str, Any] = {}
    for name, piece in fixed.items():
        field = _field({f.name.casefold(): f for f in spec.partition_by}, name)
        values[field.name] = _partition_value(reads, piece, field).toArrow()[0][0].as_py()
    return Region(partitions=partitions_of_values(values, spec))


def _partition_value(reads: Reads, piece: Slice, field: Field) -> DataFrame:
    """Return the value of PARTITION (column = value), in the type of the column."""
    made = reads.piece(piece)
    given = replace(made, text=f"SELECT ({made.text}\n) AS value").rows(reads.spark)
    kind = given.schema["value"].dataType
    value = F.col("value")
    where = f"PARTITION ({field.name} = {piece.text})"
    if not isinstance(kind, T.StringType) or spark_field_type(field) == kind:
        return given.select(
            stored_value(value, kind, field, f"the value of {where}").alias("value")
        )
    converted = given.select(_of_text(value, field).alias("value"), value.isNull())
    row = converted.head()
    assert row is not None
    if row[0] is None and not row[1]:
        raise InvalidInputError(
            f"{where}: the text is not {type_name(field.type)}; write a value of the column"
        )
    return converted.select("value")


def _of_text(text: Column, field: Field) -> Column:
    """Return the value that a text stands for, such as a day; null if it loses a part."""
    kind = spark_field_type(field)
    exact_kind: T.DataType = kind
    if isinstance(kind, T.DateType):
        exact_kind = T.TimestampNTZType()
    elif isinstance(kind, T.DecimalType):
        exact_kind = T.DecimalType(38, 38 - (kind.precision - kind.scale))
    value = text.try_cast(kind)
    return F.when(value.try_cast(exact_kind) == text.try_cast(exact_kind), value)


def _plain(reads: Reads, piece: Slice) -> str:
    """Return a condition as a text without parameters and subqueries on Opal tables."""
    made = _text(reads, piece)
    if isinstance(made, str):
        return made
    if made.frames or made.plain is None:
        raise InvalidInputError(
            f"REPLACE WHERE {piece.text}: the condition takes numbers, dates and plain texts as "
            "parameters, and no other Opal table; write the values into the condition"
        )
    return str(made.plain)


# Tables and texts


def _target(
    spark: SparkSession, statement: Any, target: Target, args: Arguments
) -> tuple[OpalTable, str, Reads]:
    """Return the table to change, its name in expressions, and what is read."""
    uri = table_uri(spark, target.table, args)
    assert uri is not None
    table = open_table(spark, target.table, uri)
    alias = target.alias or (target.table.parts[-1] if target.table.parts else uri.split("/")[-1])
    named = None if target.alias else target.table
    return table, alias, Reads(spark, statement, args, named)


def _run(table: OpalTable, operation: str, plan: Any, token: str | None) -> JobResult:
    with spark_errors():
        return run_statement(
            table, StatementRun(operation=operation, plan=plan, token=token, tries=TRIES)
        )


def _text(reads: Reads, piece: Slice | None) -> Any:
    """Return an expression for a clause, with values and tables if it needs them."""
    if piece is None:
        return None
    made = reads.piece(piece)
    if not made.frames and not reads.args.has_parameter(piece):
        return made.text
    text = made.text
    if not made.frames:
        text = text.replace("{", "{{").replace("}", "}}")
    return SqlText(
        text=text, args=made.args, frames=made.frames, plain=reads.args.with_literals(piece)
    )


def _assignments(assignments: Sequence[Assignment], target: Target, alias: str) -> dict[str, Slice]:
    """Return the new values by column."""
    values: dict[str, Slice] = {}
    known: set[str] = set()
    for assignment in assignments:
        column = _column(assignment.column, target, alias, assignment.slice)
        if column.casefold() in known:
            raise InvalidInputError(f"{column!r} is set twice; set each column once")
        known.add(column.casefold())
        values[column] = assignment.value
    return values


def _column(names: Names, target: Target, alias: str, where: Slice) -> str:
    """Return a column of the table without the names before it."""
    folded = [name.casefold() for name in names]
    prefixes = [[alias.casefold()]]
    if target.alias is None:
        parts = [part.casefold() for part in target.table.parts]
        prefixes += [parts[index:] for index in range(len(parts) - 1)]
    for prefix in prefixes:
        if folded[: len(prefix)] == prefix and len(names) == len(prefix) + 1:
            return names[-1]
    if len(names) > 1:
        raise InvalidInputError(
            f"{where.text}: a statement sets whole columns; write the whole value of "
            f"{names[0]!r}, for example with named_struct"
        )
    return names[0]


# MERGE


def _source_alias(statement: Merge) -> str:
    if statement.source_alias is not None:
        return statement.source_alias
    if statement.source_table is not None and statement.source_table.table.parts:
        return statement.source_table.table.parts[-1]
    return _SOURCE


def _source(spark: SparkSession, statement: Merge, reads: Reads) -> DataFrame:
    if statement.source_query is not None:
        return reads.piece(statement.source_query).rows(spark)
    reference = statement.source_table
    assert reference is not None
    start, end = reference.slice.offset, reference.alias_at or reference.slice.end
    text, before = statement.text.text, statement.text.offset
    piece = reads.piece(Slice(text=text[start - before : end - before], offset=start))
    return replace(piece, text=f"SELECT * FROM {piece.text}").rows(spark)


def _clause(clause: MergeClause, reads: Reads, target: Target, alias: str) -> Clause:
    values: dict[str, Any] | None = None
    if clause.action == "update":
        values = {}
        for name, value in _assignments(clause.assignments, target, alias).items():
            values[name] = _text(reads, value)
    elif clause.action == "insert":
        values = {}
        for names, value in zip(clause.columns, clause.values, strict=True):
            column = _column(names, target, alias, clause.slice)
            if column.casefold() in {name.casefold() for name in values}:
                raise InvalidInputError(f"{column!r} is inserted twice; name each column once")
            values[column] = _text(reads, value)
    return Clause(
        when=_WHEN[clause.kind],
        action=_ACTIONS[clause.action],
        where=_text(reads, clause.condition),
        values=values,
    )


# INSERT


def _inserted(
    spark: SparkSession, statement: InsertInto, reads: Reads, spec: TableSpec
) -> DataFrame:
    """Return the rows of an INSERT with the names and types of the table's columns."""
    rows = reads.piece(statement.query).rows(spark)
    fields = {field.name.casefold(): field for field in spec.schema.own_fields}
    fixed = _partition_values(statement, spec)
    if statement.by_name:
        names = rows.columns
    else:
        given = {name.casefold() for name in fixed}
        others = [field.name for folded, field in fields.items() if folded not in given]
        names = list(statement.columns or others)
        if len(names) != len(rows.columns):
            raise InvalidInputError(
                f"the query has {count_text(len(rows.columns), 'column')}, and the INSERT needs "
                f"{len(names)}: {', '.join(names)}; name the columns after the table, or write "
                "BY NAME"
            )
    # Renamed by position: a query may have two columns of one name
    placed = rows.toDF(*[f"_{index}" for index in range(len(rows.columns))])
    for name, piece in fixed.items():
        fixed_value = _partition_value(reads, piece, _field(fields, name))
        placed = placed.crossJoin(fixed_value.toDF(f"_{len(placed.columns)}"))
    all_names = [*names, *fixed]
    _check_once(all_names)
    columns = []
    for index, name in enumerate(all_names):
        field = _field(fields, name)
        kind = placed.schema[index].dataType
        value = stored_value(F.col(f"_{index}"), kind, field, f"the value of {name!r}")
        columns.append(value.alias(field.name))
    return placed.select(*columns, *_defaults(spec, all_names))


def _defaults(spec: TableSpec, given: Sequence[str]) -> list[Column]:
    """Return defaults, or nulls, for the columns that an INSERT does not name."""
    known = {name.casefold() for name in given}
    required = {field.name for field in (*spec.keys, spec.delta)}
    columns = []
    for field in spec.schema.own_fields:
        if field.name.casefold() in known:
            continue
        if field.name in required:
            raise InvalidInputError(
                f"the INSERT has no value for {field.name!r}, a key or delta column; name it, too"
            )
        columns.append(write_default(spec, field.name).alias(field.name))
    return columns


def _partition_values(statement: InsertInto, spec: TableSpec) -> dict[str, Slice]:
    """Return the values that PARTITION gives to all rows, by column."""
    partitions = {field.name.casefold() for field in spec.partition_by}
    values: dict[str, Slice] = {}
    for partition in statement.partition:
        if partition.column.casefold() not in partitions:
            names = ", ".join(field.name for field in spec.partition_by) or "none"
            raise InvalidInputError(
                f"PARTITION names {partition.column!r}, which is not a partition column; those of "
                f"the table: {names}. Name other columns in a list after the table"
            )
        if partition.value is not None:
            values[partition.column] = partition.value
    return values


def _field(fields: Mapping[str, Field], name: str) -> Field:
    field = fields.get(name.casefold())
    if field is None:
        raise InvalidInputError(
            f"the INSERT has a column {name!r}, and the table has no such column; its columns are "
            f"{', '.join(field.name for field in fields.values())}"
        )
    return field


def _check_once(names: Sequence[str]) -> None:
    known: set[str] = set()
    for name in names:
        if name.casefold() in known:
            raise InvalidInputError(f"the INSERT has the column {name!r} twice; name it once")
        known.add(name.casefold())


def _counts(spark: SparkSession, result: JobResult, **counts: int) -> DataFrame:
    """Return counts and the notes of the job as a DataFrame of one row."""
    columns = [f"{quoted(name)} BIGINT" for name in counts]
    row = (*counts.values(), list(result.notes))
    return spark.createDataFrame([row], ", ".join([*columns, "notes ARRAY<STRING>"]))
