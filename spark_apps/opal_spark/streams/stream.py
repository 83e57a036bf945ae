"""A stream on Spark: micro-batches of Structured Streaming.

Each micro-batch is a commit of rows and positions, as in a stream without Spark. A query begins at
the positions in the table, not at a checkpoint: Spark's checkpoint is a temporary folder that is
deleted with the query. So streams with and without Spark may take turns, and a query that fails
begins again at the table's positions.
"""

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from opal_lake.definition.schema import Schema
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError, OpalError, StorageError
from opal_lake.result import JobResult
from opal_spark.engine.failures import as_opal_error
from opal_spark.streams.decode import Met, decoded_rows, met_in
from opal_spark.streams.executor import MicroBatchExecutor
from opal_spark.streams.source import read_ends, source_options
from opal_stream.errors import KafkaError
from opal_stream.flush.intake import Intake, new_columns_error
from opal_stream.flush.options import Setup, Totals
from opal_stream.flush.positions import StreamPositions
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition, Reach, reach_of
from opal_stream.tracking.events import FlushEvents

_POLL_S = 0.1  # between two checks of `stop`
_LOOK_S = 5.0  # between two requests for the ends of partitions
_PAUSE_S = 1.0  # before a query that failed begins again
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The messages of a micro-batch; Spark reads them when their rows are used."""

    messages: DataFrame
    consumed: Mapping[Partition, Consumed]
    intake: Intake
    bad: int = 0
    schemas_of_bad: tuple[Schema, ...] = ()  # a commit decodes its messages with its own columns

    def rows_for(self, spec: TableSpec) -> DataFrame:
        """Return the rows with the table's columns."""
        self.intake.follow(spec)
        return decoded_rows(self.messages, self.intake.decoder)


class SparkStream:
    """A stream into a table by queries of Spark. A signal handler may call `stop`."""

    def __init__(self, spark: SparkSession, setup: Setup) -> None:
        self.table = table = setup.table
        self.options = options = setup.options
        self._spark = spark
        self._connection = connection = setup.connection
        self._tracker = tracker = setup.tracker
        self._positions = StreamPositions(table, connection, options, tracker)
        self._writer, self.totals = self._positions.writer, self._positions.totals
        self._writer.is_ending = lambda: self._stopping
        self._intake = Intake(table, options.formats, options.on_bad_message, _nothing, _nothing)
        self._consumer = connection.consumer()  # only for the ends of partitions
        self._next: dict[Partition, int] = {}
        self._checkpoint = Path()
        self._busy = threading.Lock()
        self._failure: Exception | None = None
        self._stopping = False
        self._away_s: float | None = None  # the time since which Kafka does not answer
        self._moved_s = self._looked_s = time.monotonic()

    def stop(self) -> None:
        """End after the commit that is in progress."""
        self._stopping = True

    def run(self) -> Totals:
        """Run until stopped, or with `until_empty` until all present messages are read.

        After a transient error a new query begins at the table's positions.
        """
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
        partitions = self._positions.describe(self._reach_of)
        self._next = self._positions.begin(partitions, self._reach_of(partitions))
        self._away_s = None

    def _reach_of(self, partitions: list[Partition]) -> dict[Partition, Reach]:
        return reach_of(self._consumer, self._connection, partitions)

    def _wait_after(self, error: StorageError) -> None:
        """Pause after a transient error; raise the error if it has lasted too long.

        Errors of Kafka may last longer than other errors, once Kafka has answered.
        """
        now_s = time.monotonic()
        if not isinstance(error, KafkaError) and now_s - self._moved_s > self.options.give_up_s:
            try:
                # If a gap in the messages is the cause, this raises an error that says so
                self._begin()
            except KafkaError as kafka_error:
                error = kafka_error
            else:
                raise error
        if isinstance(error, KafkaError):
            if self._away_s is None:
                self._away_s = now_s
            has_begun = bool(self._next)
            limit_s = self.options.broker_timeout_s if has_begun else self.options.give_up_s
            if now_s - self._away_s > limit_s:
                raise error
        logger.warning("the query failed and begins again: %s", error)
        time.sleep(_PAUSE_S)

    def _read(self) -> None:
        """Run a query, with a checkpoint that is deleted with the query."""
        self._checkpoint = Path(tempfile.mkdtemp(prefix="opal-stream-"))
        try:
            query = self._start()
            try:
                self._watch(query)
            finally:
                # `_busy` waits for the commit that is in progress
                with self._busy:
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
        if self._intake.decoder.needs_headers:
            options["includeHeaders"] = "true"
        messages = self._spark.readStream.format("kafka").options(**options).load()
        writer = messages.writeStream.foreachBatch(self._apply)
        writer = writer.option("checkpointLocation", self._checkpoint.as_uri())
        if self.options.until_empty:
            return writer.trigger(availableNow=True).start()
        interval_ms = round(self.options.limits.interval_s * 1000)
        return writer.trigger(processingTime=f"{interval_ms} milliseconds").start()

    def _watch(self, query: StreamingQuery) -> None:
        # `awaitTermination` accepts a fraction of a second, but its type is int
        poll_s: Any = _POLL_S
        while not self._stopping and not query.awaitTermination(poll_s):
            if time.monotonic() - self._looked_s > _LOOK_S:
                self._show_ends()

    def _apply(self, messages: DataFrame, number: int) -> None:
        """Commit a micro-batch, unless the stream is stopping or has failed.

        The next query reads the messages again.
        """
        with self._busy:
            if self._stopping or self._failure is not None:
                return
            try:
                self._commit(messages, number)
            except Exception as error:
                self._failure = as_opal_error(error)
                raise

    def _commit(self, messages: DataFrame, number: int) -> None:
        ends = read_ends(self._checkpoint, number, self.options.topics)
        began_s = time.monotonic()
        consumed: dict[Partition, Consumed] = {}
        for partition, end in ends.items():
            low = self._low(partition)
            if end > low:
                consumed[partition] = Consumed(low=low, high=end, records=end - low)
        records = sum(range_.records for range_ in consumed.values())
        executor = MicroBatchExecutor(spark=messages.sparkSession, messages=records)
        self._writer.table = replace(self.table, executor=executor)
        result = self._write(MicroBatch(messages=messages, consumed=consumed, intake=self._intake))
        if result is None:
            return
        for partition, range_ in consumed.items():
            self._next[partition] = range_.high
        self._moved_s = time.monotonic()
        bad = result.counts.get("rejected", 0)
        self.totals.flushes += 1
        self.totals.records += records
        self.totals.bad += bad
        if result.version is not None:
            self.totals.version = result.version
        events = FlushEvents(
            consumed=consumed,
            version=result.version,
            took_s=time.monotonic() - began_s,
            bad=bad,
            topic_ids=self._positions.ids,
        )
        self._tracker.flushed(events)

    def _low(self, partition: Partition) -> int:
        """Return the offset at which a micro-batch begins in a partition.

        A partition that Spark has added to the query is read from its start.
        """
        if partition not in self._next:
            self._next |= self._positions.begin([partition], self._reach_of([partition]))
        return self._next[partition]

    def _write(self, batch: MicroBatch) -> JobResult | None:
        """Commit a micro-batch, again after each decision on what a task met."""
        while True:
            try:
                return self._writer.flush(batch, self._check_topics, _nothing)
            except OpalError as error:
                met = met_in(str(error))
                if met is None:
                    raise
                self._decide(met)

    def _decide(self, met: Met) -> None:
        """Learn a schema or add columns for all tasks, or raise the error for new columns."""
        if met.columns is None:
            self._intake.learn(met.value_head, met.key_head)
        elif self.options.formats.on_new_columns == "add":
            self._intake.add_or_refuse(met.source, met.columns)
        else:
            schema = self._intake.decoder.spec.schema
            raise new_columns_error(met.source, met.names, met.paths, schema)

    def _check_topics(self) -> None:
        self._positions.check_topics()

    def _show_ends(self) -> None:
        """Report the ends of partitions, for lag and stalls."""
        self._looked_s = time.monotonic()
        try:
            reach = self._reach_of(list(self._next))
        except StorageError as error:
            logger.warning("%s", error)
            return
        ends = self._positions.ends(self._next)
        waiting: set[Partition] = set()
        seen: dict[Partition, tuple[int, int]] = {}
        for partition, end in ends.items():
            position = self._next[partition]
            seen[partition] = (position, end)
            # All readable messages are read; an open transaction hides the messages after them
            if reach[partition].high <= position < end:
                waiting.add(partition)
        self._tracker.seen(seen, waiting)


def _understood(error: PySparkException) -> Exception:
    """Return the error that stopped a query, as an OpalError.

    An error that nothing explains is Kafka's: it does not answer, or lacks messages. It is returned
    as a transient one, because the begin of the next query finds out which.
    """
    understood = as_opal_error(error)
    if isinstance(understood, InvalidInputError) or not isinstance(understood, OpalError):
        text = " ".join(str(error).split())
        return StorageError(f"Spark's Kafka source failed: {text[:500]}; try again")
    return understood


def _nothing(*_: object) -> None:
    """Do nothing, as a callback of which a micro-batch has no use."""
