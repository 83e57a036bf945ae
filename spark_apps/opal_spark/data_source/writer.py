"""`df.write.format("opal").mode("append").save(path)`: an inline ingest by Spark's names.

Tasks write their rows as segments of the table, as they come. The rule is applied where Spark lets a data source commit, which is one
process: `OpalTable.ingest(metadata="inline")`, whose tasks apply it, is the way for large batches.
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
from opal_spark.engine.columns import spark_schema, spark_type_name
from opal_spark.engine.tasks import forget_archives, this_attempt
from opal_spark.sources.assign import fields_given
from opal_spark.sources.columnar_files import refuse_reserved


@dataclass(frozen=True)
class WrittenSegments(WriterCommitMessage):
    """What a task wrote."""

    output: IngestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedWrite:
    """What tasks and the commit need to know of the ingest: less than its base, which grows with the table."""

    number: int
    version: int
    started_us: int
    spec: TableSpec


class OpalWriter(DataSourceArrowWriter):
    """It claims its number while Spark plans the query; a number that nobody uses does no harm. None if the token was applied before."""

    def __init__(
        self, path: str, storage: Mapping[str, str], schema: StructType, token: str | None
    ) -> None:
        self.table = Table.open(path, storage)
        self.asked = Ingest(path, metadata="inline", token=token)
        spec = self.table.snapshot_at().spec
        self.positions, self.deletes = _positions(schema, spec), delete_condition(spec)
        run = start_ingest(self.table, self.asked)
        if isinstance(run, JobResult):
            check_visible(run)
        self.claimed = None if isinstance(run, JobResult) else _claimed(run)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenSegments:
        """In a task."""
        if self.claimed is None:
            return WrittenSegments(IngestOutput())
        attempt, spec = this_attempt(), self.claimed.spec
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
        """The table's columns, and which rows delete their key."""
        expected = arrow_schema(spec.schema)
        given = zip(self.positions, expected, strict=True)
        columns = [
            pa.nulls(batch.num_rows, field.type) if at is None else batch.column(at)
            for at, field in given
        ]
        rows = pa.RecordBatch.from_arrays(columns, names=expected.names).cast(expected)
        return (
            rows if self.deletes is None else rows.append_column(DELETED, self.deletes.holds(rows))
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In a process of the driver's, once all tasks are done."""
        if self.claimed is None:
            return
        run = IngestRun(
            asked=self.asked,
            number=self.claimed.number,
            base=self.table.log.at(self.claimed.version),
            started_us=self.claimed.started_us,
            can_quarantine=False,
        )
        commit_inline(
            self.table,
            run,
            [message.output for message in messages if isinstance(message, WrittenSegments)],
        )


def _claimed(run: IngestRun) -> ClaimedWrite:
    return ClaimedWrite(
        number=run.number, version=run.base.version, started_us=run.started_us, spec=run.base.spec
    )


def _positions(schema: StructType, spec: TableSpec) -> list[int | None]:
    """Where the table's columns stand in the rows; None for one that was added to the table and is not there."""
    refuse_reserved(schema.names)
    given = fields_given(schema, spec)
    for field, known in zip(given, spark_schema(spec, physical=False), strict=True):
        if (
            field is not None
            and not isinstance(known.dataType, AtomicType)
            and field.dataType.simpleString() != known.dataType.simpleString()
        ):
            raise InvalidInputError(
                f"column {field.name!r} is {spark_type_name(field.dataType)}, the table has {spark_type_name(known.dataType)}; cast it"
            )
    positions = {name: position for position, name in enumerate(schema.names)}
    return [None if field is None else positions[field.name] for field in given]
