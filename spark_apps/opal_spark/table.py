"""The API of a table on Spark: OpalTable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from opal_lake.arguments.declared import given_fields
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_lake.operations import consume
from opal_lake.operations.bootstrap import Bootstrap
from opal_lake.operations.ingest import Ingest
from opal_lake.operations.mutate import Mutate
from opal_lake.result import JobResult
from opal_lake.source import BATCH_MB, Files, Jdbc
from opal_lake.storage import open_storage
from opal_lake.table import Table, create_on
from opal_lake.write.bootstrap import SourceTable
from opal_spark.engine.columns import (
    arrow_of_spark,
    columns_of_schema,
    parsed_columns,
    spark_of_arrow,
)
from opal_spark.engine.session import cache_settings, storage_options, use_this_python
from opal_spark.engine.versions import check_session
from opal_spark.mutate import mutate
from opal_spark.sources import source_schema
from opal_spark.spark_engine import SparkEngine
from opal_spark.write.bootstrap import SparkSource
from opal_spark.write.sink import Sink


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OpalTable(Table[DataFrame]):
    """A mutable table on files, with Spark as its engine: rows come as DataFrames.

    `create` creates a table, `for_path` opens an existing one.
    """

    executor: SparkEngine

    @classmethod
    def on(cls, spark: SparkSession, table: Table[Any]) -> Self:
        """Return a table with a session as its engine."""
        use_this_python(spark)
        return cls(log=table.log, cache=table.cache, executor=SparkEngine(spark=spark))

    @classmethod
    def create(  # type: ignore[override]  # a session comes first, and the columns are Spark's
        cls,
        spark: SparkSession,
        uri: str,
        schema: StructType,
        *,
        keys: Sequence[str],
        delta: str,
        tie_break: Sequence[str] = (),
        deletes: str | None = None,
        partition_by: Sequence[str] = (),
        file_format: str = "parquet",
        properties: Mapping[str, int | str] | None = None,
        options: Mapping[str, str] | None = None,
        not_null: Sequence[str] = (),
        constraints: Mapping[str, str] | None = None,
        generated: Mapping[str, str] | None = None,
    ) -> Self:
        """Create a table with these columns.

        A row that meets the condition `deletes` deletes its key, from the row's delta on. No other
        row may have nulls in the columns `not_null`, or make one of the `constraints` false. These
        are conditions by their names, such as `{"positive": "amount > 0"}`. `generated` are
        expressions by the names of their columns, such as `{"day": "date(at)"}`.
        """
        layout = TableLayout(**given_fields(TableLayout, locals()))
        location = SparkPlace(spark=spark, uri=uri, options=options)
        return cls.on(spark, location.create(columns_of_schema(schema), layout))

    @classmethod
    def for_path(
        cls, spark: SparkSession, uri: str, *, options: Mapping[str, str] | None = None
    ) -> Self:
        """Open the table at a path; raise NotFoundError if it does not exist.

        S3 settings are Spark's own (`spark.hadoop.fs.s3a.*`), unless `options` are given.
        """
        check_session(spark)
        opened = Table.open(uri, _options(spark, uri, options), cache_settings(spark))
        return cls.on(spark, opened)

    @classmethod
    def open(cls, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a table on Spark is opened with a session."""
        raise InvalidInputError(
            "OpalTable needs a SparkSession; open the table with OpalTable.for_path(spark, uri)"
        )

    @property
    def spark(self) -> SparkSession:
        """The session that works on the table."""
        return self.executor.spark

    def __repr__(self) -> str:
        return f"OpalTable({self.uri!r})"

    def sink(
        self,
        *,
        application: str,
        metadata: str = "inline",
        on_bad_rows: str = "fail",
        reject_threshold: int | str | None = None,
        on_new_columns: str = "fail",
    ) -> Sink:
        """Return the function for `writeStream.foreachBatch`: it ingests a micro-batch.

        A repeated micro-batch is applied once. `application` names this query, and no other one. A
        query with a new checkpoint counts its micro-batches from 0: give it another name.
        """
        arguments = Ingest.checked({**Ingest.among(locals()), "application": None})
        # The sink may be pickled, and a session cannot be: the sink uses the session of its rows
        table: Table = Table(log=self.log, cache=self.cache)
        return Sink(table=table, application=application, arguments=arguments)

    @classmethod
    def bootstrap(
        cls,
        spark: SparkSession,
        uri: str,
        source: str,
        *,
        format: str,
        keys: Sequence[str],
        delta: str,
        schema: StructType | None = None,
        tie_break: Sequence[str] = (),
        deletes: str | None = None,
        partition_by: Sequence[str] = (),
        file_format: str = "parquet",
        properties: Mapping[str, int | str] | None = None,
        options: Mapping[str, str] | None = None,
        source_version: int | None = None,
        batch_mb: int = BATCH_MB,
        on_bad_rows: str = "fail",
        not_null: Sequence[str] = (),
        constraints: Mapping[str, str] | None = None,
        generated: Mapping[str, str] | None = None,
    ) -> JobResult:
        """Import a folder of Parquet or ORC files, a Delta or an Iceberg table.

        The table is created if it does not exist. The first call fixes the list of files. After a
        failure the same call imports the remaining files; after a complete import it changes
        nothing. `source_version` is a version of Delta or the id of an Iceberg snapshot; without
        it the newest version is imported.
        """
        columns = None if schema is None else columns_of_schema(schema)
        # The field `schema` of Bootstrap is SQL text; `columns` carry the schema instead
        arguments = Bootstrap.among({**locals(), "schema": None})
        target = SparkPlace(spark=spark, uri=uri, options=options)
        return Bootstrap(**arguments).with_columns(columns, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPlace:
    """The path of a table, which may not exist yet, and the session to work on it.

    `options` are the store's options; None means those of the session.
    """

    spark: SparkSession
    uri: str
    options: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        check_session(self.spark)

    def open(self) -> OpalTable:
        """Open the table; raise NotFoundError if it does not exist."""
        return OpalTable.for_path(self.spark, self.uri, options=self.options)

    def create(self, columns: pa.Schema, layout: TableLayout) -> OpalTable:
        """Create a table; raise TableExistsError if one exists."""
        storage = open_storage(self.uri, _options(self.spark, self.uri, self.options))
        spec = plan_spec(columns, layout)
        table = create_on(storage, spec, cache=cache_settings(self.spark))
        return OpalTable.on(self.spark, table)

    def sql_columns(self, schema: str) -> pa.Schema:
        """Return the columns of a schema that is written as in CREATE TABLE."""
        return parsed_columns(self.spark, schema)

    def source_columns(self, source: Files | Jdbc, delta: str) -> pa.Schema:
        """Return the columns of a source.

        They include `delta` if the names or the order of the source's files give its values.
        """
        return arrow_of_spark(source_schema(self.spark, source, delta))

    def source_reader(
        self, source: SourceTable, columns: pa.Schema | None, batch_bytes: int
    ) -> SparkSource:
        """Return the reader of a table of another format."""
        use_this_python(self.spark)
        schema = None if columns is None else spark_of_arrow(columns)
        return SparkSource(spark=self.spark, source=source, schema=schema, batch_bytes=batch_bytes)

    def merge(self, job: Mutate) -> JobResult:
        """Merge files into the folder of files at the path."""
        return mutate(self.spark, self.uri, job)


# The argument of a consumer's function: the new rows are DataFrames
Change: TypeAlias = consume.Change[OpalTable, DataFrame]


def _options(spark: SparkSession, uri: str, options: Mapping[str, str] | None) -> Mapping[str, str]:
    return storage_options(spark, uri) if options is None else options
