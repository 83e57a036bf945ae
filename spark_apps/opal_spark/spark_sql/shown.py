"""SHOW and DESCRIBE: what a table and a catalog are."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from opal_lake.definition.changes.paths import path_text, target_of
from opal_lake.definition.schema import type_name
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.inspect.tables import folders_of, is_table
from opal_lake.sql.names import is_hidden
from opal_lake.sql.statements import (
    DescribeHistory,
    DescribeTable,
    ShowCreateTable,
    ShowNamespaces,
    ShowProperties,
    ShowTables,
    TableName,
)
from opal_lake.storage import open_storage
from opal_spark.engine.session import storage_options
from opal_spark.spark_sql.arguments import Arguments
from opal_spark.spark_sql.catalog import catalog_of, open_table, table_uri
from opal_spark.spark_sql.definition_text import (
    create_text,
    name_text,
    shown_default,
    shown_properties,
    shown_property,
)
from opal_spark.spark_sql.literals import is_in_utc
from opal_spark.spark_sql.results import text_frame
from opal_spark.table import OpalTable

_HISTORY = (
    "version BIGINT, timestamp TIMESTAMP, operation STRING, changes_view BOOLEAN, job BIGINT, "
    "token STRING, business_snapshot STRING, counts MAP<STRING, BIGINT>, write_id STRING"
)


def opened(spark: SparkSession, name: TableName, args: Arguments) -> OpalTable:
    """Open the table of a name; raise an error for a name that is not an Opal table's."""
    return open_table(spark, name, uri_of(spark, name, args))


def uri_of(spark: SparkSession, name: TableName, args: Arguments) -> str:
    """Return the path of a table; raise InvalidInputError for a name that is Spark's."""
    uri = table_uri(spark, name, args)
    if uri is None:
        raise InvalidInputError(
            f"{name} is not in a catalog of Opal tables; write a name such as lake.shop.orders "
            "after opal_spark.catalog(spark, 'lake', root=...), or opal.`path`"
        )
    return uri


def show_tables(
    spark: SparkSession, statement: ShowTables, _: Arguments, token: str | None
) -> DataFrame:
    """List the tables of a namespace."""
    refuse_token(token)
    namespace, folders = _folders(spark, statement)
    rows = [(namespace, name, False) for name, has_table in folders if has_table]
    return spark.createDataFrame(rows, "namespace STRING, tableName STRING, isTemporary BOOLEAN")


def show_namespaces(
    spark: SparkSession, statement: ShowNamespaces, _: Arguments, token: str | None
) -> DataFrame:
    """List the namespaces within another: the folders that are not tables."""
    refuse_token(token)
    within, folders = _folders(spark, statement)
    names = [name for name, has_table in folders if not has_table]
    rows = [(f"{within}.{name_text(name)}",) for name in names if not is_hidden(name)]
    return spark.createDataFrame(rows, "namespace STRING")


def _folders(
    spark: SparkSession, statement: ShowTables | ShowNamespaces
) -> tuple[str, Iterator[tuple[str, bool]]]:
    """Return the name of a namespace, and its folders with whether they are tables."""
    assert statement.namespace is not None
    parts = statement.namespace.parts
    catalog = catalog_of(spark, parts)
    assert catalog is not None
    uri = catalog.uri(parts[1:])
    storage = open_storage(uri, storage_options(spark, uri))
    if next(iter(storage.list("")), None) is None:
        raise NotFoundError(
            f"{statement.namespace}: {uri} does not exist, or is empty; correct the name or the "
            "root of the catalog. A namespace exists as soon as it has a table"
        )
    names = filter(_matcher(statement.like), folders_of(storage))
    shown = ".".join(name_text(part) for part in parts)
    return shown, ((name, is_table(storage, f"{name}/")) for name in names)


def _matcher(pattern: str | None) -> Any:
    """Return whether a name fits a pattern of Spark: `*` is any text, `|` means or."""
    if pattern is None:
        return lambda _: True
    alternatives = [re.escape(part.strip()).replace(r"\*", ".*") for part in pattern.split("|")]
    compiled = re.compile("|".join(alternatives), re.IGNORECASE | re.DOTALL)
    return compiled.fullmatch


def show_create_table(
    spark: SparkSession, statement: ShowCreateTable, args: Arguments, token: str | None
) -> DataFrame:
    """Return the statement that makes an equal table."""
    refuse_token(token)
    table = opened(spark, statement.table, args)
    spec = table.snapshot_at().spec
    text = create_text(spec, str(statement.table), in_utc=is_in_utc(spark))
    return text_frame(spark, ["createtab_stmt"], [(text,)])


def show_properties(
    spark: SparkSession, statement: ShowProperties, args: Arguments, token: str | None
) -> DataFrame:
    """Return the properties that are set, or one of them."""
    refuse_token(token)
    spec = opened(spark, statement.table, args).snapshot_at().spec
    if statement.key is None:
        rows = sorted(shown_properties(spec).items())
    else:
        rows = [(statement.key, shown_property(spec, statement.key))]
    return text_frame(spark, ["key", "value"], rows)


def describe_table(
    spark: SparkSession, statement: DescribeTable, args: Arguments, token: str | None
) -> DataFrame:
    """Return the columns of a table; with EXTENDED also its state."""
    refuse_token(token)
    table = opened(spark, statement.table, args)
    spec = table.snapshot_at().spec
    rows: list[tuple[str, str, str | None]] = []
    if statement.column is not None:
        target = target_of(spec.schema, path_text(statement.column))
        rows = [(target.text, type_name(target.field.type, str.lower), None)]
        return text_frame(spark, ["col_name", "data_type", "comment"], rows)
    for column in spec.schema.own_fields:
        rows.append((column.name, type_name(column.type, str.lower), None))
    if spec.partition_by:
        rows.append(("# Partition Information", "", ""))
        rows.append(("# col_name", "data_type", "comment"))
        for column in spec.partition_by:
            rows.append((column.name, type_name(column.type, str.lower), None))
    rows += _rules(spec)
    if statement.extended:
        rows += [("", "", ""), ("# Detailed Table Information", "", "")]
        rows += _details(table.describe(), shown_properties(spec))
    return text_frame(spark, ["col_name", "data_type", "comment"], rows)


def _rules(spec: TableSpec) -> list[tuple[str, str, str | None]]:
    """Return defaults, generated columns and constraints, each under a heading."""
    defaults: list[tuple[str, str, str | None]] = []
    generated: list[tuple[str, str, str | None]] = []
    for column in spec.schema.own_fields:
        kind = type_name(column.type, str.lower)
        default = shown_default(column)
        if default is not None:
            defaults.append((column.name, kind, default))
        if column.generated is not None:
            generated.append((column.name, kind, column.generated))
    constraints: list[tuple[str, str, str | None]] = [
        (column.name, "NOT NULL", "") for column in spec.not_null
    ]
    for name, condition in spec.constraints.items():
        constraints.append((name, f"CHECK ({condition})", ""))
    rows: list[tuple[str, str, str | None]] = []
    sections = {
        "# Column Default Values": defaults,
        "# Generated Columns": generated,
        "# Constraints": constraints,
    }
    for heading, section in sections.items():
        if section:
            rows += [(heading, "", ""), *section]
    return rows


def _details(
    description: Mapping[str, Any], properties: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    counts = description["counts"]
    shown = {
        "Location": description["uri"],
        "Provider": "opal",
        "Table Id": description["table_id"],
        "Version": description["version"],
        "Committed At": description["committed_at"],
        "Oldest Version": description["oldest_version"],
        "Savepoints": ", ".join(description["savepoints"]) or None,
        "Rows": counts["rows_visible"],
        "Rows Pending": counts["rows_pending"],
        "Files": counts["files"],
        "Bytes": counts["bytes"],
    }
    rows = [(name, str(value), "") for name, value in shown.items() if value is not None]
    listed = ", ".join(f"{key}={value}" for key, value in sorted(properties.items()))
    return [*rows, ("Table Properties", f"[{listed}]", "")]


def describe_history(
    spark: SparkSession, statement: DescribeHistory, args: Arguments, token: str | None
) -> DataFrame:
    """Return the commits of a table, newest first."""
    refuse_token(token)
    if statement.limit == 0:
        return spark.createDataFrame([], _HISTORY)
    table = opened(spark, statement.table, args)
    rows = [_history_row(commit) for commit in table.history(statement.limit)]
    return spark.createDataFrame(rows, _HISTORY)


def _history_row(commit: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        commit["version"],
        datetime.fromisoformat(commit["committed_at"]),
        commit["operation"],
        commit["changes_view"],
        commit["number"],
        commit["token"],
        commit["business_snapshot"],
        commit["counts"],
        commit["write_id"],
    )


def refuse_token(token: str | None) -> None:
    """Raise InvalidInputError for the token of a statement that changes nothing."""
    if token is not None:
        raise InvalidInputError(
            f"token={token!r}: the statement changes nothing, so that it cannot apply once; leave "
            "out the token"
        )
