"""The net rows of a partition key: its rows that no later row of the same partition key replaced.

Of the rows of a primary key under the partition key, ordered by (delta, tie-break, row id), the
last one counts, unless it is a delete. Rows under other partition keys do not count, and events are
not read: so the answer is the same at every version between two ingests under the partition key.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from opal_lake.arrays import IndexArray
from opal_lake.data.columns import physical_schema, to_logical
from opal_lake.data.data_file import decode_file
from opal_lake.data.segment import DataFile
from opal_lake.definition.schema import SEGMENT
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.key_store.entries import Entries, same_as_next, sort_order
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.read import delta_bounds, segments_of_partition
from opal_lake.rule.metagen import entries_of_rows, rule_columns
from opal_lake.storage.verified import read_verified


@dataclass(frozen=True, slots=True, kw_only=True)
class NetPlan:
    """The files with rows of a partition key's visible segments.

    Rows of other segments may be among them.
    """

    snapshot: Snapshot
    as_of: int | None
    segments: frozenset[int]
    files: tuple[DataFile, ...]


def key_of_net(partition_key: str | None, after: int | None) -> str:
    """Return the partition key that a net read needs.

    Raises InvalidInputError if it is missing, or if `after` is given too.
    """
    if partition_key is None or after is not None:
        raise InvalidInputError(
            "net=True reads what came under a partition key: give partition_key=, without after="
        )
    return partition_key


def plan_net(snapshot: Snapshot, partition_key: str, as_of: int | None = None) -> NetPlan:
    """Plan a net read of a version; with `as_of`, only of rows up to that event time.

    Raises NotFoundError if a compaction dropped some rows of the key: the net rows are unknown
    then.
    """
    snapshot.spec.require_keys("a net read")
    segments = segments_of_partition(snapshot, partition_key) - snapshot.pending
    if not snapshot.root.incomplete_ingests.isdisjoint(snapshot.partitions[partition_key]):
        raise NotFoundError(
            f"{snapshot.storage.uri}: by version {snapshot.version} a major compaction has dropped "
            f"rows of partition key {partition_key!r}, so that its net rows are no longer known. "
            "Read it as of an older version, or its valid rows (net=False, change.valid_rows); a "
            "longer look_back of the compaction keeps more"
        )
    files: list[DataFile] = []
    for file in snapshot.files.values():
        is_concerned = not segments.isdisjoint(file.segments)
        if is_concerned and (as_of is None or _begins_by(file, snapshot.spec, as_of)):
            files.append(file)
    return NetPlan(snapshot=snapshot, as_of=as_of, segments=segments, files=tuple(files))


def _begins_by(file: DataFile, spec: TableSpec, as_of: int) -> bool:
    low, _ = delta_bounds(file, spec)
    # Without a bound the file may hold such rows
    return low is None or low <= as_of


def read_net(plan: NetPlan, columns: Sequence[str] | None) -> pa.Table:
    """Read the net rows in this process."""
    spec = plan.snapshot.spec
    if columns is None:
        fields = spec.schema.fields
    else:
        fields = tuple(spec.schema.field(name) for name in columns)
    physical = list(dict.fromkeys([*(field.physical for field in fields), *rule_columns(spec)]))
    parts = [_own_rows(plan, file, physical) for file in plan.files]
    empty = physical_schema(spec).empty_table().select(physical)
    rows = pa.concat_tables([empty, *parts], promote_options="default")
    entries = entries_of_rows(rows, spec)
    if plan.as_of is not None:
        # Later rows replace nothing at that event time
        up_to = np.flatnonzero(entries.delta <= plan.as_of)
        rows, entries = rows.take(pa.array(up_to)), entries.take(up_to)
    return to_logical(rows.take(pa.array(_last_of_keys(entries))), spec, columns)


def _own_rows(plan: NetPlan, file: DataFile, columns: list[str]) -> pa.Table:
    data = read_verified(plan.snapshot.storage, file)
    rows = decode_file(data, plan.snapshot.spec, columns, file.path, rows=file.rows)
    if plan.segments.issuperset(file.segments):
        return rows
    return rows.filter(pa.array(np.isin(rows[SEGMENT].to_numpy(), [*plan.segments])))


def _last_of_keys(entries: Entries) -> IndexArray:
    """Return the positions of each key's last row, unless that is a delete."""
    order = sort_order(entries)
    ordered = entries.take(order)
    is_net = ~same_as_next(ordered, 2) & ~ordered.deleted
    return np.sort(order[is_net])
