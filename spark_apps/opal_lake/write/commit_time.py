"""The built-in delta column: all rows of a job get one time, later than all rows that it read."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from opal_lake.definition.schema import arrow_type
from opal_lake.definition.table_spec import TableSpec, source_has_commit
from opal_lake.engine.executor import Batches
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.store_clock import writer_now_us

if TYPE_CHECKING:
    from opal_lake.log.commit_log import CommitLog


def commit_time(log: "CommitLog", base: Snapshot) -> int | None:
    """Return the value of the built-in column for a job; None for a table without it.

    `base` is the head that the job read. A job whose keys a later commit changes runs again.
    """
    if not base.spec.orders_by_commit:
        return None
    own_us = log.clock.now_us()
    now_us = writer_now_us(own_us, log.storage.now_us(), base.spec, log.storage.uri)
    # Stored rows may be later than the head: clocks differ, and may have been repaired
    deltas = [run.greatest_delta for run in base.runs.values()]
    return max(now_us, base.root.timestamp_us, *deltas) + 1


def with_commit_time(
    batches: Batches, spec: TableSpec, commit_us: int | None, *, replaces: bool = False
) -> Batches:
    """Return the rows of a task with the built-in column filled, if the table has it.

    Without `replaces`, rows that have a value in the column already are an error.
    """
    if commit_us is None:
        return batches
    filled = _filled(batches, spec, commit_us, replaces=replaces)
    # A list stays one: it says that all rows are in memory
    return list(filled) if isinstance(batches, list) else filled


def _filled(
    batches: Batches, spec: TableSpec, commit_us: int, *, replaces: bool
) -> Iterator[pa.RecordBatch]:
    kind = arrow_type(spec.delta.type)
    value = pa.scalar(commit_us, kind)
    for batch in batches:
        position = batch.schema.get_field_index(spec.delta.name)
        if not replaces and batch.column(position).null_count < batch.num_rows:
            raise source_has_commit()
        column = pa.repeat(value, batch.num_rows)
        yield batch.set_column(position, pa.field(spec.delta.name, kind), column)
