"""`spark.read.format("opal")`: for SQL and convenience.

Rows pass through Python workers, so `OpalTable.read` is faster.

The source does not accept filters from Spark (`pushFilters`). Spark 4.1.3 would apply the filters
of a query on a DataFrame or view to other uses of the same DataFrame or view, in this query and in
the next one. Rows would be missing: `v.where("id = 3").union(v.where("id = 4"))` returns one row.
"""

import importlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from opal_lake.definition.conditions.faults import FILES_WHERE
from opal_lake.definition.schema import Field
from opal_lake.errors import InvalidInputError
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.read import FileRead, event_time_of, file_reads, plan_read, read_fields
from opal_lake.read.where import where_condition, where_predicate
from opal_lake.table import Table
from opal_spark.data_source.feed import FeedReader, feed_schema
from opal_spark.data_source.options import OPTIONS, TOKEN, feed_of, reads_changes, stream_of
from opal_spark.data_source.stream import OpalStreamReader
from opal_spark.data_source.writer import OpalWriter
from opal_spark.engine.columns import spark_schema
from opal_spark.engine.failures import worker_errors
from opal_spark.engine.session import is_connect, use_this_python
from opal_spark.engine.tasks import forget_archives
from opal_spark.engine.versions import check_installed_spark, check_session
from opal_spark.read.requested_schema import refuse_nulls, requested_fields

# Spark adds these to the options of a table that CREATE TABLE put into its catalog
_CATALOG_OPTIONS = {"owner", "provider"}
_NO_CATALOG = (
    "Spark does not pass its path to readers; "
    "write CREATE TEMPORARY VIEW name USING opal OPTIONS (path '{path}')"
)
_STORAGE = "storage."  # the prefix of a store's options


def register(spark: SparkSession) -> None:
    """Make `format("opal")` known to a session."""
    check_session(spark)
    use_this_python(spark)
    if is_connect(spark):
        # The server chooses the Python of its workers. If that Python lacks a package, this job
        # fails with an error that says so; a query would fail with a message that does not.
        with worker_errors():
            spark.range(1).mapInArrow(_import_in_worker, "id long").collect()
    spark.dataSource.register(OpalDataSource)


def _import_in_worker(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    importlib.import_module("opal_spark.data_source.source")
    yield from batches


class OpalDataSource(DataSource):
    """The data source `opal`.

    The option `path` is required. A read of rows takes `version`, `timestamp`, `business_snapshot`
    and `event_time`, which have the meaning of OpalTable.read's arguments. A change feed has
    options of its own.
    `files_where` is a condition: files without a row for which it is true are not read. The query
    itself must filter the rows of the other files.
    With a schema (`.schema(...)`, `CREATE TEMPORARY VIEW v (...) USING opal`) only the schema's
    columns are read.
    The data source runs in a process of its own, which sees no session. So settings of a store are
    options `storage.*`, or come from the environment.
    """

    def __init__(self, options: dict[str, str]) -> None:
        check_installed_spark()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "opal"

    def _table_path(self) -> tuple[str, dict[str, str]]:
        """Return the table's path, and the options of its store."""
        path = self.options.get("path")
        given_names = {name.casefold() for name in self.options}
        if given_names >= _CATALOG_OPTIONS:
            advice = _NO_CATALOG.format(path=self.options.get("location", path))
            raise InvalidInputError(f"CREATE TABLE ... USING opal is not supported: {advice}")
        if path is None:
            advice = _NO_CATALOG.format(path="...")
            raise InvalidInputError(
                "format('opal') needs the table's path: .load(path). "
                f"If this is a table of CREATE TABLE: {advice}"
            )
        known = {name.casefold() for name in OPTIONS}
        storage, unknown = {}, []
        for name, value in self.options.items():
            if name.startswith(_STORAGE):
                storage[name.removeprefix(_STORAGE)] = value
            elif name.casefold() not in known:
                unknown.append(name)
        if unknown:
            raise InvalidInputError(
                f"format('opal') has no option {', '.join(sorted(unknown))}; "
                f"known are {', '.join(sorted(OPTIONS))}, storage.*"
            )
        return path, storage

    def _snapshot(self) -> Snapshot:
        path, storage = self._table_path()
        version_text = self.options.get("version")
        if version_text is not None and not version_text.isdecimal():
            raise InvalidInputError(
                f"option version={version_text!r} is not a version; "
                "give a whole number that `opal history` lists"
            )
        version = None if version_text is None else int(version_text)
        timestamp = self.options.get("timestamp")
        business_snapshot = self.options.get("business_snapshot")
        return Table.open(path, storage).snapshot_at(version, timestamp, business_snapshot)

    def schema(self) -> StructType:
        spec = self._snapshot().spec
        if reads_changes(self.options):
            return feed_schema(spec)
        return spark_schema(spec, physical=False)

    def reader(self, schema: StructType) -> "OpalReader | FeedReader":
        """Return the reader of rows, or of a change feed.

        `schema` is the table's schema, or the one that the query gives, with columns in any order.
        """
        feed = feed_of(self.options)
        if feed is not None:
            return FeedReader(*self._table_path(), feed, schema)
        snapshot = self._snapshot()
        condition = where_condition(self.options.get("files_where"), snapshot.spec, use=FILES_WHERE)
        predicate = where_predicate(condition)
        event_time = event_time_of(snapshot, self.options.get("event_time"))
        plan = plan_read(snapshot, event_time, predicate)
        fields = requested_fields(schema, snapshot.spec)
        return OpalReader(file_reads(plan), fields, schema)

    def streamReader(self, schema: StructType) -> OpalStreamReader:  # noqa: N802  # Spark's name
        return OpalStreamReader(*self._table_path(), stream_of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> OpalWriter:
        """Return the writer of an append. INSERT INTO and saveAsTable call it, too."""
        if overwrite or self.options.get("path") is None:
            raise InvalidInputError(
                "format('opal') only writes with .mode('append').save(path), which upserts by the "
                "table's keys. To create a table, call OpalTable.create(spark, path, rows.schema, "
                "keys=[...], delta='...'); its argument deletes='...' lets rows delete their keys"
            )
        return OpalWriter(*self._table_path(), schema, self.options.get(TOKEN))

    def streamWriter(  # noqa: N802  # Spark's name
        self, schema: StructType, overwrite: bool
    ) -> NoReturn:
        path = self.options.get("path", "...")
        raise InvalidInputError(
            f"write a stream with writeStream.foreachBatch(OpalTable.for_path(spark, {path!r})"
            ".sink(application='a name of this query')), which writes each micro-batch once"
        )


@dataclass(frozen=True)
class FilePartition(InputPartition):
    """A partition of one file."""

    part: FileRead


class OpalReader(DataSourceReader):
    """The reader of the rows of a version, with one partition for each file."""

    def __init__(self, parts: list[FileRead], fields: Sequence[Field], schema: StructType) -> None:
        self.parts, self.fields, self.schema = parts, fields, schema

    def partitions(self) -> list[InputPartition]:
        return [FilePartition(part) for part in self.parts]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # Without partitions Spark still runs one task, with None as its partition
        if isinstance(partition, FilePartition):
            rows = read_fields(partition.part, self.fields)
            refuse_nulls(rows, self.schema)
            yield from rows.to_batches()
        forget_archives()
