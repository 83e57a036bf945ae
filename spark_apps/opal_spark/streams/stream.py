"""A stream on Spark: micro-batches of Structured Streaming, each a commit of rows and positions, as a stream without Spark makes them.

Spark begins where the table stands, whatever it did before: its checkpoint lives as long as one query, in a temporary folder. So both ways
may take turns, and a query that fails begins anew from the table.
"""

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError, OpalError, StorageError
from opal_lake.result import JobResult
from opal_spark.engine.failures import as_opal_error
from opal_spark.streams.decode import Met, decoded_rows, met_in
from opal_spark.streams.executor import MicroBatchExecutor
from opal_spark.streams.source import read_ends, source_options
from opal_stream.errors import KafkaError
from opal_stream.flush.intake import Intake, refused_columns
from opal_stream.flush.options import Setup, Totals
from opal_stream.flush.places import Places
from opal_stream.kafka.taken import Taken
from opal_stream.kafka.topics import Partition, Reach, reach_of
from opal_stream.tracking.events import FlushEvents

_POLL_S, _LOOK_S, _PAUSE_S = 0.1, 5.0, 1.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Messages as Spark has them: read when their rows are."""

    messages: DataFrame
    taken: Mapping[Partition, Taken]
    intake: Intake
    bad: int = 0

    def rows_for(self, spec: TableSpec) -> DataFrame:
        self.intake.follow(spec)
        return decoded_rows(self.messages, self.intake.decoder)


class SparkStream:
    """One query, one table. `stop` may be called from a signal handler."""

    def __init__(self, spark: SparkSession, setup: Setup) -> None:
        self.table = table = setup.table
        self.options = options = setup.options
        self._spark = spark
        self._connection = connection = setup.connection
        self._tracker = tracker = setup.tracker
        self._places = Places(table, connection, options, tracker)
        self._writer, self.totals = self._places.writer, self._places.totals
        self._writer.is_ending = lambda: self._stopping
        self._intake = Intake(table, options.formats, options.on_bad_message, _nothing, _nothing)
        self._consumer = connection.consumer()  # asks for the ends of partitions alone
        self._next: dict[Partition, int] = {}
        self._checkpoint = Path()
        self._busy = threading.Lock()
        self._failure: Exception | None = None
        self._stopping = False
        self._away_s: float | None = None  # since when Kafka does not answer
        self._moved_s = self._looked_s = time.monotonic()

    def stop(self) -> None:
        """Let the commit on its way be made, and end."""
        self._stopping = True

    def run(self) -> Totals:
        """Until it is stopped, or has read what was there when it began. What passes by itself is tried again from the table."""
        self._moved_s = time.monotonic()
        try:
            while not self._stopping:
                try:
                    self._begin()
                    self._read()
                    break
                except StorageError as error:
                    self._wait_after(error)
        finally:
            self._consumer.close()
            self._tracker.close()
        return self.totals

    def _begin(self) -> None:
        self._failure = None
        partitions = self._places.describe(self._reach_of)
        self._next = self._places.begin(partitions, self._reach_of(partitions))
        self._away_s = None

    def _reach_of(self, partitions: list[Partition]) -> dict[Partition, Reach]:
        return reach_of(self._consumer, self._connection, partitions)

    def _wait_after(self, error: StorageError) -> None:
        """Wait for Kafka for longer than for anything else, once it has answered."""
        now_s = time.monotonic()
        if not isinstance(error, KafkaError) and now_s - self._moved_s > self.options.give_up_s:
            try:
                self._begin()  # where a gap is the cause, this says so
            except KafkaError as away:
                error = away
            else:
                raise error
        if isinstance(error, KafkaError):
            self._away_s = now_s if self._away_s is None else self._away_s
            has_begun = bool(self._next)
            limit_s = self.options.broker_timeout_s if has_begun else self.options.give_up_s
            if now_s - self._away_s > limit_s:
                raise error
        logger.warning("the query failed and begins anew: %s", error)
        time.sleep(_PAUSE_S)

    def _read(self) -> None:
        """One query, with a checkpoint that begins and ends with it."""
        self._checkpoint = Path(tempfile.mkdtemp(prefix="opal-stream-"))
        try:
            query = self._start()
            try:
                self._watch(query)
            finally:
                with self._busy:  # the commit on its way
                    query.stop()
        except PySparkException as error:
            raise self._failure or _understood(error) from error
        finally:
            shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _start(self) -> StreamingQuery:
        options = source_options(
            self._connection,
            self._next,
            every=not self.options.partitions,
            most=self.options.limits.rows,
        )
        options |= {"includeHeaders": "true"} if self._intake.decoder.needs_headers else {}
        messages = self._spark.readStream.format("kafka").options(**options).load()
        writer = messages.writeStream.foreachBatch(self._apply).option(
            "checkpointLocation", self._checkpoint.as_uri()
        )
        if self.options.until_empty:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(
            processingTime=f"{round(self.options.limits.interval_s * 1000)} milliseconds"
        ).start()

    def _watch(self, query: StreamingQuery) -> None:
        while not self._stopping and not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]  # it takes parts of a second
            if time.monotonic() - self._looked_s > _LOOK_S:
                self._show_ends()

    def _apply(self, messages: DataFrame, number: int) -> None:
        """A micro-batch. One that comes while the stream ends is left to the next one."""
        with self._busy:
            if self._stopping or self._failure is not None:
                return
            try:
                self._commit(messages, number)
            except Exception as error:
                self._failure = as_opal_error(error)
                raise

    def _commit(self, messages: DataFrame, number: int) -> None:
        ends, began_s = read_ends(self._checkpoint, number, self.options.topics), time.monotonic()
        taken = {
            part: Taken(low=low, high=end, records=end - low)
            for part, end in ends.items()
            if end > (low := self._low(part))
        }
        executor = MicroBatchExecutor(
            spark=messages.sparkSession, messages=sum(one.records for one in taken.values())
        )
        self._writer.table = replace(self.table, executor=executor)
        result = self._write(MicroBatch(messages=messages, taken=taken, intake=self._intake))
        if result is None:
            return
        self._next |= {part: one.high for part, one in taken.items()}
        self._moved_s = time.monotonic()
        self.totals.flushes += 1
        self.totals.records += sum(one.records for one in taken.values())
        self.totals.bad += result.counts.get("rejected", 0)
        self.totals.version = result.version if result.version is not None else self.totals.version
        events = FlushEvents(
            taken=taken,
            version=result.version,
            took_s=time.monotonic() - began_s,
            bad=result.counts.get("rejected", 0),
            topic_ids=self._places.ids,
        )
        self._tracker.flushed(events)

    def _low(self, partition: Partition) -> int:
        """Spark itself takes up new partitions, at their start."""
        if partition not in self._next:
            self._next |= self._places.begin([partition], self._reach_of([partition]))
        return self._next[partition]

    def _write(self, batch: MicroBatch) -> JobResult | None:
        while True:
            try:
                return self._writer.flush(batch, self._check_topics, _nothing)
            except OpalError as error:
                if (met := met_in(str(error))) is None:
                    raise
                self._decide(met)

    def _decide(self, met: Met) -> None:
        """For all tasks: a schema is learned, columns are added, or the stream stops."""
        if met.columns is None:
            self._intake.learn(met.value_head, met.key_head)
        elif self.options.formats.on_new_columns == "add":
            self._intake.add_or_refuse(met.source, met.columns)
        else:
            raise refused_columns(met.source, met.names, met.paths)

    def _check_topics(self) -> None:
        self._places.check_topics()

    def _show_ends(self) -> None:
        """Lag and stalls, for those who watch."""
        self._looked_s = time.monotonic()
        try:
            reach = self._reach_of(list(self._next))
        except StorageError as error:
            logger.warning("%s", error)
            return
        ends = self._places.ends(self._next)
        waits = {
            partition
            for partition, end in ends.items()
            if reach[partition].high <= self._next[partition] < end
        }
        self._tracker.seen(
            {partition: (self._next[partition], end) for partition, end in ends.items()}, waits
        )


def _understood(error: PySparkException) -> Exception:
    """What stops a query beside our own errors is Kafka's: away, or without what was asked for. The next begin tells."""
    understood = as_opal_error(error)
    if isinstance(understood, InvalidInputError) or not isinstance(understood, OpalError):
        return StorageError(f"Spark's source of Kafka failed: {' '.join(str(error).split())[:500]}")
    return understood


def _nothing(*_: object) -> None:
    """A micro-batch is settled by itself."""
