"""A bootstrap from its plan to its result.

Each batch of the source's files is an ingest, and one MetaGen makes all rows visible.

An attempt skips what earlier attempts have done.
"""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import Rows
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import FormatError
from opal_lake.result import JobResult
from opal_lake.source import PACKAGES
from opal_lake.write.bootstrap import (
    OPERATION,
    BootstrapPlan,
    SourceTable,
    done_batches,
    fix_plan,
    is_below,
    keep_batch,
    keep_result,
    read_plan,
    read_result,
    real_location,
)
from opal_lake.write.ingest_job import ingest
from opal_lake.write.metagen_job import metagen

if TYPE_CHECKING:
    from opal_lake.operations.ingest import Ingest


class SourceReader(Protocol):
    """Reads a source of another format."""

    @property
    def source(self) -> SourceTable: ...

    def plan(self) -> BootstrapPlan:
        """List the source's files now. Only the first attempt calls it."""
        ...

    def columns(self, plan: BootstrapPlan) -> pa.Schema:
        """Return the columns of the source's rows."""
        ...

    def rows(self, plan: BootstrapPlan, batch: int, spec: TableSpec) -> Rows:
        """Return the rows of a batch with the table's columns, for the executor.

        InvalidInputError if its files have changed since they were listed.
        """
        ...


def bootstrap(
    table: OpenTable,
    reader: SourceReader,
    asked: "Ingest",
    listed: BootstrapPlan | None = None,
) -> JobResult:
    """Do what is left of a bootstrap; return the earlier result if nothing is.

    `asked` says how a batch is ingested. `listed` is the plan of a source that was listed already.
    """
    storage, name = table.storage, reader.source.name
    earlier = read_result(storage, name)
    if earlier is not None:
        return earlier
    # A source that changes meanwhile must not mix old and new rows: the first plan is final
    plan = read_plan(storage, name) or fix_plan(storage, name, listed or reader.plan())
    _check_source(table, plan, reader.source)
    results = done_batches(storage, name)
    counts: Counter[str] = Counter(batches_done=0, batches_skipped=0)
    notes: list[str] = []
    for batch in range(len(plan.batches)):
        result = results.get(batch) or ingest_batch(table, reader, plan, batch, asked)
        # Without a record the token shows whether an earlier attempt committed the batch
        is_skipped = batch in results or result.repeated
        counts["batches_skipped" if is_skipped else "batches_done"] += 1
        for part in ("rows", "files", "bytes", "rejected"):
            counts[part] += result.counts.get(part, 0)
        notes += result.notes
    version = table.log.head().version
    if plan.batches:
        processed = metagen(table, plan.metagen_token)
        version = processed.version or version
        notes += processed.notes
    done = JobResult(
        operation=OPERATION,
        table=table.uri,
        version=version,
        counts=dict(counts),
        notes=tuple(dict.fromkeys(notes)),
    )
    keep_result(storage, name, done)
    return done


def ingest_batch(
    table: OpenTable, reader: SourceReader, plan: BootstrapPlan, batch: int, asked: "Ingest"
) -> JobResult:
    """Ingest a batch, and record that it is done."""
    result = ingest(
        table,
        lambda spec, _: reader.rows(plan, batch, spec),
        replace(asked, token=plan.token(batch)),
        expected_rows=plan.rows(batch),
    )
    keep_batch(table.storage, reader.source.name, batch, replace(result, repeated=False))
    return result


def _check_source(table: OpenTable, plan: BootstrapPlan, source: SourceTable) -> None:
    """Raise FormatError unless the plan names files of this source only.

    The plan lies in the table's folder, where others may write.
    """
    planned = plan.source
    is_same = (
        planned.format == source.format
        and real_location(planned.location) == real_location(source.location)
        and source.version in (None, planned.version)
    )
    if not is_same:
        raise FormatError(
            f"{table.uri}: the plan of this bootstrap is for {planned.location}, not for "
            f"{source.location}; delete the table's folder and begin again"
        )
    if source.format in PACKAGES:
        return  # its files are looked for among those of the source
    for batch in plan.batches:
        for file in batch:
            if not is_below(file.path, source.location):
                raise FormatError(
                    f"{table.uri}: the plan of this bootstrap names {file.path!r}, which is not "
                    f"below {source.location}; delete the table's folder and begin again"
                )
