"""Rows that wait for the next flush, and the offsets that they reach in each partition."""

from dataclasses import dataclass, field

import pyarrow as pa

from opal_lake.data.rejects import NOTES
from opal_lake.definition.schema import Schema
from opal_lake.definition.table_spec import TableSpec
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.decoder import Decoded
from opal_stream.formats.rows import DecodedRows, row_schema
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushLimits:
    """The limits that make a flush due: seconds after its first message, bytes, rows."""

    interval_s: float = 1.0
    bytes: int = 64 << 20
    rows: int = 1_000_000


@dataclass(slots=True, kw_only=True)
class Buffer:
    """The rows and counts of the next flush; the messages themselves are not kept.

    - `row_parts` are the rows of each added batch.
    - `schemas_of_bad` are those with which messages were found bad.
    - `bytes` are those of keys and values, `bad` the number of bad messages.
    - `first_at_s` is when the first message came; None for an empty buffer.
    - `waited_from_s` is when the last flush began, if the first messages came while it ran.
    """

    limits: FlushLimits
    row_parts: list[DecodedRows] = field(default_factory=list)
    schemas_of_bad: set[Schema] = field(default_factory=set)
    consumed: dict[Partition, Consumed] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    bad: int = 0
    first_at_s: float | None = None
    waited_from_s: float | None = None

    def add(self, batch: MessageBatch, decoded: Decoded, now_s: float) -> None:
        """Add a batch and its rows."""
        if not len(batch):
            return
        if self.first_at_s is None:
            self.first_at_s = now_s
        if decoded.rows.num_rows:
            self.row_parts.append(DecodedRows(rows=decoded.rows, schema=decoded.schema))
        if decoded.bad:
            self.schemas_of_bad.add(decoded.schema)
        self.rows += decoded.rows.num_rows
        self.bad += len(decoded.bad)
        for partition, positions in _by_partition(batch).items():
            self._count(partition, batch, positions)

    def reach(self, partition: Partition, offset: int, position: int, now_s: float) -> None:
        """Move a partition to the offset of its end, past marks of transactions.

        `position` is where the table stands; it counts where no message is buffered.
        """
        consumed = self.consumed.get(partition)
        reached = position if consumed is None else consumed.high
        if offset <= reached:
            return
        if self.first_at_s is None:
            self.first_at_s = now_s
        if consumed is None:
            self.consumed[partition] = Consumed(low=position, high=offset)
        else:
            consumed.high = offset

    def rows_for(self, spec: TableSpec) -> pa.Table:
        """Return the buffered rows with all columns of the table.

        Columns that were added to the table after the rows were decoded have their default.
        """
        if not self.row_parts:
            return row_schema(spec, ()).empty_table()
        # Only change events have the note of unchanged values
        known = frozenset(self.row_parts[0].rows.column_names)
        notes = [name for name in NOTES if name in known]
        return pa.concat_tables([part.fitted(spec, notes).rows for part in self.row_parts])

    def is_due(self, now_s: float, *, has_more: bool = False) -> bool:
        """Return whether to flush now: the buffer is full, or its time has come.

        With `has_more` Kafka has more messages, which came while the last flush ran. They are read
        first, for at most the interval.
        """
        if self.first_at_s is None:
            return False
        if self.is_full:
            return True
        is_still_reading = has_more and now_s - self.first_at_s < self.limits.interval_s
        return self.wait_s(now_s) <= 0 and not is_still_reading

    @property
    def is_full(self) -> bool:
        return self.bytes >= self.limits.bytes or self.rows >= self.limits.rows

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until a flush is due by time."""
        from_s = self.first_at_s if self.waited_from_s is None else self.waited_from_s
        if from_s is None:
            return self.limits.interval_s
        return self.limits.interval_s - (now_s - from_s)

    def clear(self) -> None:
        self.row_parts, self.schemas_of_bad, self.consumed = [], set(), {}
        self.rows = self.bytes = self.bad = 0
        self.first_at_s = self.waited_from_s = None

    def _count(
        self, partition: Partition, batch: MessageBatch, positions: "range | list[int]"
    ) -> None:
        """Count a partition's messages, given by their positions in the batch."""
        first, last = batch.offsets[positions[0]], batch.offsets[positions[-1]]
        consumed = self.consumed.setdefault(partition, Consumed(low=first, high=first))
        size = 0
        for position in positions:
            size += len(batch.values[position] or b"") + len(batch.keys[position] or b"")
        consumed.high = last + 1
        consumed.records += len(positions)
        consumed.bytes += size
        self.bytes += size
        timestamps = [batch.timestamps_ms[position] for position in positions]
        known_ms = [timestamp for timestamp in timestamps if timestamp >= 0]  # -1 means none
        if known_ms:
            oldest_ms = min(known_ms)
            if consumed.oldest_ms < 0 or oldest_ms < consumed.oldest_ms:
                consumed.oldest_ms = oldest_ms
            consumed.newest_ms = max(consumed.newest_ms, *known_ms)


def _by_partition(batch: MessageBatch) -> "dict[Partition, range | list[int]]":
    """Return the positions in the batch of each partition's messages, by offset."""
    is_of_one_partition = len(set(batch.partitions)) == 1 and len(set(batch.topics)) == 1
    if is_of_one_partition:
        only = Partition(topic=batch.topics[0], number=batch.partitions[0])
        return {only: range(len(batch))}
    # By topic and number: making a Partition for each message would cost more
    by_name: dict[tuple[str, int], list[int]] = {}
    for position, name in enumerate(zip(batch.topics, batch.partitions, strict=True)):
        by_name.setdefault(name, []).append(position)
    by_partition: dict[Partition, range | list[int]] = {}
    for (topic, number), positions in by_name.items():
        by_partition[Partition(topic=topic, number=number)] = positions
    return by_partition
