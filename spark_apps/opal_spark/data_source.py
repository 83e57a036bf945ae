"""`spark.read.format("opal")`: for SQL and convenience. Rows pass through Python workers, so `OpalTable.read` is the fast way.

It takes no filters from Spark (`pushFilters`): 4.1.3 keeps what the last query of a DataFrame or view has pushed for the next one, and
for other uses in the same query, which then lack rows: `v.where("id = 3").union(v.where("id = 4"))` has one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from opal_lake.errors import InvalidInputError
from opal_lake.read import FileRead, event_time_of, file_reads, plan_read, read_file
from opal_lake.snapshot import Snapshot
from opal_lake.table import Table
from opal_spark.columns import spark_schema
from opal_spark.outputs import forget_archives
from opal_spark.predicate import check_columns, parse_predicate

_OPTIONS = {"path", "version", "timestamp", "event_time", "files_where"}
_NO_ZONE = "none"  # the session's is not known here: times without a zone prune nothing


def register(spark: SparkSession) -> None:
    """Make `format("opal")` known to a session."""
    spark.dataSource.register(OpalDataSource)


class OpalDataSource(DataSource):
    """Options: `path`, and `version` or `timestamp` and `event_time` as for OpalTable.read, as text.

    `files_where` is a condition: files that cannot hold a row that fulfils it are left out. Rows of the others are for the query to filter.
    It runs in a process of its own, which sees no session: settings of a store are given as `storage.*`, or stand in the environment.
    """

    @classmethod
    def name(cls) -> str:
        return "opal"

    def _snapshot(self) -> Snapshot:
        path = self.options.get("path")
        if path is None:
            raise InvalidInputError("format('opal') needs the table's path: .load(path)")
        if unknown := sorted(name for name in self.options if name.casefold() not in _OPTIONS and not name.startswith("storage.")):
            raise InvalidInputError(
                f"format('opal') has no option {', '.join(unknown)}; known are {', '.join(sorted(_OPTIONS))}, storage.*"
            )
        version = self.options.get("version")
        if version is not None and not version.isdecimal():
            raise InvalidInputError(f"option version={version!r} is no version; give a whole number, as `opal history` lists them")
        storage = {name.removeprefix("storage."): value for name, value in self.options.items() if name.startswith("storage.")}
        return Table.open(path, storage).snapshot_at(int(version) if version is not None else None, self.options.get("timestamp"))

    def schema(self) -> StructType:
        return spark_schema(self._snapshot().spec, physical=False)

    def reader(self, schema: StructType) -> "OpalReader":
        snapshot, where = self._snapshot(), self.options.get("files_where")
        predicate = None
        if where is not None:
            check_columns(where, snapshot.spec)
            predicate = parse_predicate(where, snapshot.spec, session_zone=_NO_ZONE)
        return OpalReader(file_reads(plan_read(snapshot, event_time_of(snapshot, self.options.get("event_time")), predicate)))


@dataclass(frozen=True)
class FilePartition(InputPartition):
    """One file."""

    part: FileRead


class OpalReader(DataSourceReader):
    """A partition a file, with the bits that its rows need."""

    def __init__(self, parts: list[FileRead]) -> None:
        self.parts = parts

    def partitions(self) -> list[InputPartition]:
        return [FilePartition(part) for part in self.parts]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Where there is no partition Spark makes a task nevertheless, for None."""
        if isinstance(partition, FilePartition):
            yield from read_file(partition.part, None).to_batches()
        forget_archives()
