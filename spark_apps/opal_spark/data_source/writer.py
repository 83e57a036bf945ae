"""`df.write.format("opal").mode("append").save(path)`: an inline ingest by Spark's names.

Tasks write their rows as segments of the table, in the order in which Spark passes them. Spark lets
a data source commit in one process only, so that process decides which rows are visible. For large
batches use `OpalTable.ingest(metadata="inline")`, which decides in its tasks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import AtomicType, StructType

from opal_lake.definition.schema import DELETED, arrow_schema
from opal_lake.definition.table_spec import TableSpec, delete_condition
from opal_lake.errors import InvalidInputError
from opal_lake.operations.ingest import Ingest
from opal_lake.result import JobResult, check_visible
from opal_lake.table import Table
from opal_lake.write.ingest_job import IngestRun, start_ingest
from opal_lake.write.ingest_task import IngestOutput, IngestTask, ingest_rows
from opal_lake.write.written_segments import commit_inline
from opal_spark.engine.assign import fields_given
from opal_spark.engine.columns import spark_schema, spark_type_name
from opal_spark.engine.tasks import forget_archives, this_attempt
from opal_spark.sources.columnar_files import refuse_reserved


@dataclass(frozen=True)
class WrittenSegments(WriterCommitMessage):
    """The segments that a task wrote."""

    output: IngestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedWrite:
    """The part of an ingest that tasks and the commit need.

    It has the base snapshot's version instead of the snapshot, whose size grows with the table.
    """

    number: int
    version: int
    started_us: int
    spec: TableSpec


class OpalWriter(DataSourceArrowWriter):
    """The writer of an append.

    It claims an ingest number while Spark plans the query. An unused number does no harm.
    `claimed` is None if an ingest with the same token was committed before.
    """

    def __init__(
        self, path: str, storage: Mapping[str, str], schema: StructType, token: str | None
    ) -> None:
        self.table = Table.open(path, storage)
        self.asked = Ingest(path, metadata="inline", token=token)
        spec = self.table.snapshot_at().spec
        if spec.orders_by_commit:
            raise InvalidInputError(
                f"format('opal') cannot append to {path}, because it orders rows by the time of "
                "their jobs; use OpalTable.upsert(rows)"
            )
        self.positions = _positions(schema, spec)
        self.deletes = delete_condition(spec)
        self.claimed: ClaimedWrite | None = None
        run = start_ingest(self.table, self.asked)
        # A JobResult is that of an earlier ingest with this token
        if isinstance(run, JobResult):
            check_visible(run)
            return
        self.claimed = ClaimedWrite(
            number=run.number,
            version=run.base.version,
            started_us=run.started_us,
            spec=run.base.spec,
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenSegments:
        """Write the rows of a partition, in a task."""
        if self.claimed is None:
            return WrittenSegments(IngestOutput())
        # Two attempts of one task may run at the same time, so file names contain the attempt
        attempt = this_attempt()
        spec = self.claimed.spec
        batches = (self._fitted(batch, spec) for batch in iterator)
        with attempt.puts(self.table.storage) as storage:
            task = IngestTask(
                storage=storage,
                spec=spec,
                number=self.claimed.number,
                task=attempt.part,
                attempt=attempt.name,
            )
            output = ingest_rows(batches, task)
        forget_archives()
        return WrittenSegments(output)

    def _fitted(self, batch: pa.RecordBatch, spec: TableSpec) -> pa.RecordBatch:
        """Return a batch with the table's columns and a mark of rows that delete."""
        expected = arrow_schema(spec.schema)
        columns = []
        for position, field in zip(self.positions, expected, strict=True):
            if position is None:
                columns.append(pa.nulls(batch.num_rows, field.type))
            else:
                columns.append(batch.column(position))
        rows = pa.RecordBatch.from_arrays(columns, names=expected.names).cast(expected)
        if self.deletes is None:
            return rows
        return rows.append_column(DELETED, self.deletes.holds(rows))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the segments of all tasks, in a process of the driver."""
        if self.claimed is None:
            return
        run = IngestRun(
            asked=self.asked,
            number=self.claimed.number,
            base=self.table.log.at(self.claimed.version),
            started_us=self.claimed.started_us,
            can_quarantine=False,
        )
        outputs = [message.output for message in messages if isinstance(message, WrittenSegments)]
        commit_inline(self.table, run, outputs)


def _positions(schema: StructType, spec: TableSpec) -> list[int | None]:
    """Return the position of each column of the table in the rows.

    It is None for a column that the rows lack because it was added to the table later.
    """
    refuse_reserved(schema.names)
    position_of = {name: position for position, name in enumerate(schema.names)}
    positions: list[int | None] = []
    given = fields_given(schema, spec)
    for field, known in zip(given, spark_schema(spec, physical=False), strict=True):
        if field is None:
            positions.append(None)
            continue
        # Types with members are not cast: a cast goes by position, and could swap them
        is_cast = isinstance(known.dataType, AtomicType)
        if not is_cast and field.dataType.simpleString() != known.dataType.simpleString():
            raise InvalidInputError(
                f"column {field.name!r} is {spark_type_name(field.dataType)}, "
                f"the table has {spark_type_name(known.dataType)}; cast it"
            )
        positions.append(position_of[field.name])
    return positions
