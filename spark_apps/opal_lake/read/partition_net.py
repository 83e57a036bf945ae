"""The net rows of a partition key: those that came under it and that no later row of the key replaced, whatever other keys brought.

Order the rows of a primary key that came under the partition key by (delta, tie-break, row id): the last one counts, unless it is a delete.
No event is looked at, so that the answer is the same at every version between two ingests of the key.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
    """The files that hold rows of the partition key's visible segments; other segments may lie in them too."""

    snapshot: Snapshot
    as_of: int | None
    segments: frozenset[int]
    files: tuple[DataFile, ...]


def key_of_net(partition_key: str | None, after: int | None) -> str:
    """The partition key of a read with `net`, which is about one key and nothing else."""
    if partition_key is None or after is not None:
        raise InvalidInputError(
            "net=True reads what came under a partition key: give partition_key=, without after="
        )
    return partition_key


def plan_net(snapshot: Snapshot, partition_key: str, as_of: int | None = None) -> NetPlan:
    """As of a version; with `as_of` only rows up to that event time. Without all rows of the key there is no answer."""
    snapshot.spec.require_keys("a net read")
    segments = segments_of_partition(snapshot, partition_key) - snapshot.pending
    if not snapshot.root.incomplete_ingests.isdisjoint(snapshot.partitions[partition_key]):
        raise NotFoundError(
            f"{snapshot.storage.uri}: by version {snapshot.version} a major compaction has dropped rows of partition key "
            f"{partition_key!r}, so that what came under the key is not known any more. Read it as of an older version, or its valid rows "
            "(net=False, change.valid_rows); a longer look_back of the compaction keeps more"
        )
    held = [file for file in snapshot.files.values() if not segments.isdisjoint(file.segments)]
    files = tuple(file for file in held if as_of is None or _begins_by(file, snapshot.spec, as_of))
    return NetPlan(snapshot=snapshot, as_of=as_of, segments=segments, files=files)


def _begins_by(file: DataFile, spec: TableSpec, as_of: int) -> bool:
    low = delta_bounds(file, spec)[0]
    return low is None or low <= as_of


def read_net(plan: NetPlan, columns: Sequence[str] | None) -> pa.Table:
    """The rows, read in this process."""
    spec = plan.snapshot.spec
    fields = (
        spec.schema.fields if columns is None else [spec.schema.field(name) for name in columns]
    )
    physical = list(dict.fromkeys([*(field.physical for field in fields), *rule_columns(spec)]))
    parts = [_own_rows(plan, file, physical) for file in plan.files]
    rows = pa.concat_tables(
        [physical_schema(spec).empty_table().select(physical), *parts], promote_options="default"
    )
    entries = entries_of_rows(rows, spec)
    if plan.as_of is not None:
        up_to = np.flatnonzero(entries.delta <= plan.as_of)
        rows, entries = rows.take(pa.array(up_to)), entries.take(up_to)
    return to_logical(rows.take(pa.array(_last_of_keys(entries))), spec, columns)


def _own_rows(plan: NetPlan, file: DataFile, columns: list[str]) -> pa.Table:
    rows = decode_file(
        read_verified(plan.snapshot.storage, file),
        plan.snapshot.spec,
        columns,
        file.path,
        rows=file.rows,
    )
    if plan.segments.issuperset(file.segments):
        return rows
    return rows.filter(pa.array(np.isin(rows[SEGMENT].to_numpy(), [*plan.segments])))


def _last_of_keys(entries: Entries) -> npt.NDArray[np.intp]:
    """The positions of each key's last row, unless that is a delete."""
    order = sort_order(entries)
    row = entries.take(order)
    return np.sort(order[~same_as_next(row, 2) & ~row.deleted])
