"""Rows on their way into the next commit, and how far they take each partition."""

from dataclasses import dataclass, field

import pyarrow as pa

from opal_lake.data.columns import with_nulls
from opal_lake.definition.schema import arrow_schema
from opal_lake.definition.table_spec import TableSpec
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.decoder import Decoded
from opal_stream.kafka.taken import Taken
from opal_stream.kafka.topics import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushLimits:
    """What makes a flush due: so long after its first message, so many bytes of messages, so many rows."""

    interval_s: float = 1.0
    bytes: int = 64 << 20
    rows: int = 1_000_000


@dataclass(slots=True, kw_only=True)
class Buffer:
    """Nothing is held but rows and numbers."""

    limits: FlushLimits
    parts: list[pa.Table] = field(default_factory=list)
    taken: dict[Partition, Taken] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    bad: int = 0
    first_at_s: float | None = None
    waited_from_s: float | None = (
        None  # when the last flush began, if the first messages came while it ran
    )

    def add(self, batch: MessageBatch, decoded: Decoded, now_s: float) -> None:
        """A batch and its rows."""
        if not len(batch):
            return
        self.first_at_s = now_s if self.first_at_s is None else self.first_at_s
        if decoded.rows.num_rows:
            self.parts.append(decoded.rows)
        self.rows += decoded.rows.num_rows
        self.bad += len(decoded.bad)
        for partition, positions in _by_partition(batch).items():
            self._take(partition, batch, positions)

    def reach(self, partition: Partition, offset: int, position: int, now_s: float) -> None:
        """The end of a partition, behind marks of transactions, which are no messages."""
        taken = self.taken.get(partition)
        if offset > (taken.high if taken else position):
            self.first_at_s = now_s if self.first_at_s is None else self.first_at_s
            if taken is None:
                taken = self.taken[partition] = Taken(low=position, high=offset)
            taken.high = offset

    def rows_for(self, spec: TableSpec) -> pa.Table:
        """With the columns that the table has by now: somebody may have added some after the rows were read."""
        rows = (
            pa.concat_tables(self.parts, promote_options="default")
            if self.parts
            else arrow_schema(spec.schema).empty_table()
        )
        given = frozenset(rows.column_names)
        missing = [
            column
            for column in spec.schema.fields
            if spec.schema.is_added(column) and column.name not in given
        ]
        return with_nulls(rows, missing)

    def is_due(self, now_s: float, *, has_more: bool = False) -> bool:
        """By time, or because it is full. What came while the last flush ran is taken first, if that takes no longer than the interval."""
        if self.first_at_s is None:
            return False
        is_late = self.wait_s(now_s) <= 0 and not (
            has_more and now_s - self.first_at_s < self.limits.interval_s
        )
        return self.is_full or is_late

    @property
    def is_full(self) -> bool:
        return self.bytes >= self.limits.bytes or self.rows >= self.limits.rows

    def wait_s(self, now_s: float) -> float:
        """Until a flush is due by time."""
        from_s = self.first_at_s if self.waited_from_s is None else self.waited_from_s
        return (
            self.limits.interval_s if from_s is None else self.limits.interval_s - (now_s - from_s)
        )

    def clear(self) -> None:
        self.parts, self.taken = [], {}
        self.rows = self.bytes = self.bad = 0
        self.first_at_s = self.waited_from_s = None

    def _take(
        self, partition: Partition, batch: MessageBatch, positions: "range | list[int]"
    ) -> None:
        first, last = batch.offsets[positions[0]], batch.offsets[positions[-1]]
        taken = self.taken.setdefault(partition, Taken(low=first, high=first))
        size = sum(
            len(batch.values[position] or b"") + len(batch.keys[position] or b"")
            for position in positions
        )
        moments = [
            moment for position in positions if (moment := batch.timestamps_ms[position]) >= 0
        ]
        taken.high = last + 1
        taken.records += len(positions)
        taken.bytes += size
        self.bytes += size
        if moments:
            taken.oldest_ms = (
                min(moments) if taken.oldest_ms < 0 else min(taken.oldest_ms, *moments)
            )
            taken.newest_ms = max(taken.newest_ms, *moments)


def _by_partition(batch: MessageBatch) -> "dict[Partition, range | list[int]]":
    """Messages of a partition come in the order of their offsets."""
    if len(set(batch.partitions)) == 1 and len(set(batch.topics)) == 1:
        return {Partition(topic=batch.topics[0], number=batch.partitions[0]): range(len(batch))}
    by_name: dict[tuple[str, int], list[int]] = {}
    for position, key in enumerate(zip(batch.topics, batch.partitions, strict=True)):
        by_name.setdefault(key, []).append(position)
    return {
        Partition(topic=topic, number=number): positions
        for (topic, number), positions in by_name.items()
    }
