"""The net rows of a partition key: its rows that no later row of the same partition key replaced.

The net row of a primary key is its last row under the partition key, in the order of (delta,
tie-break, row id). If the last row is a delete, the primary key has no net row. Rows under other
partition keys and events do not count. So net rows change only with an ingest under the partition
key.
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
    """The visible segments of a partition key, and the files that hold their rows.

    The files may also hold rows of other segments.
    """

    snapshot: Snapshot
    as_of: int | None
    segments: frozenset[int]
    files: tuple[DataFile, ...]


def key_of_net(partition_key: str | None, after: int | None) -> str:
    """Return the partition key of a net read.

    Raises InvalidInputError if it is missing, or if `after` is given too.
    """
    if partition_key is None or after is not None:
        raise InvalidInputError(
            "net=True reads the rows of a partition key: give partition_key, and leave out after"
        )
    return partition_key


def plan_net(snapshot: Snapshot, partition_key: str, as_of: int | None = None) -> NetPlan:
    """Plan a net read of a version; with `as_of`, only of rows up to that event time.

    Raises NotFoundError if a compaction dropped rows of the partition key, because its net rows are
    unknown then.
    """
    snapshot.spec.require_keys("a net read")
    segments = segments_of_partition(snapshot, partition_key) - snapshot.pending
    if not snapshot.root.incomplete_ingests.isdisjoint(snapshot.partitions[partition_key]):
        raise NotFoundError(
            f"{snapshot.storage.uri}: the net rows of partition key {partition_key!r} are unknown "
            f"at version {snapshot.version}, because a major compaction has dropped some of its "
            "rows. Read them at an older version, or read the valid rows (net=False, "
            "change.valid_rows). A compaction with a longer look_back drops fewer rows"
        )
    files: list[DataFile] = []
    for file in snapshot.files.values():
        is_concerned = not segments.isdisjoint(file.segments)
        if is_concerned and (as_of is None or _begins_by(file, snapshot.spec, as_of)):
            files.append(file)
    return NetPlan(snapshot=snapshot, as_of=as_of, segments=segments, files=tuple(files))


def _begins_by(file: DataFile, spec: TableSpec, as_of: int) -> bool:
    """Return whether a file may hold rows up to an event time."""
    low, _ = delta_bounds(file, spec)
    return low is None or low <= as_of


def read_net(plan: NetPlan, columns: Sequence[str] | None) -> pa.Table:
    """Read the net rows in this process."""
    spec = plan.snapshot.spec
    if columns is None:
        fields = spec.schema.fields
    else:
        fields = tuple(spec.schema.field(name) for name in columns)
    shown_columns = [field.physical for field in fields]
    physical = list(dict.fromkeys([*shown_columns, *rule_columns(spec)]))
    parts = [_own_rows(plan, file, physical) for file in plan.files]
    empty = physical_schema(spec).empty_table().select(physical)
    rows = pa.concat_tables([empty, *parts], promote_options="default")
    entries = entries_of_rows(rows, spec)
    if plan.as_of is not None:
        # Later rows replace nothing at that event time
        positions = np.flatnonzero(entries.delta <= plan.as_of)
        rows, entries = rows.take(pa.array(positions)), entries.take(positions)
    net_rows = rows.take(pa.array(_last_of_keys(entries)))
    return to_logical(net_rows, spec, columns)


def _own_rows(plan: NetPlan, file: DataFile, columns: list[str]) -> pa.Table:
    """Read the rows of a file that belong to the plan's segments."""
    data = read_verified(plan.snapshot.storage, file)
    rows = decode_file(data, plan.snapshot.spec, columns, file.path, rows=file.rows)
    if plan.segments.issuperset(file.segments):
        return rows
    is_own = np.isin(rows[SEGMENT].to_numpy(), [*plan.segments])
    return rows.filter(pa.array(is_own))


def _last_of_keys(entries: Entries) -> IndexArray:
    """Return the positions of each key's last row that is not a delete, ascending."""
    order = sort_order(entries)
    ordered = entries.take(order)
    is_net = ~same_as_next(ordered, 2) & ~ordered.deleted
    return np.sort(order[is_net])
