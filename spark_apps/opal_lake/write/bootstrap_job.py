"""A bootstrap from its plan to its result.

Each batch of the source's files is an ingest, and one MetaGen makes all rows visible. An attempt
skips the batches that earlier attempts have ingested.
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
        """List the source's files as they are now. Only the first attempt calls this."""
        ...

    def columns(self, plan: BootstrapPlan) -> pa.Schema:
        """Return the columns of the source's rows."""
        ...

    def rows(self, plan: BootstrapPlan, batch: int, spec: TableSpec) -> Rows:
        """Return the rows of a batch with the table's columns, for the executor.

        `plan.new_names` has the columns that were renamed or dropped since the bootstrap began.

        Raises InvalidInputError if its files have changed since they were listed.
        """
        ...


def bootstrap(
    table: OpenTable,
    reader: SourceReader,
    asked: "Ingest",
    listed: BootstrapPlan | None = None,
) -> JobResult:
    """Ingest the remaining batches of a bootstrap; return its result.

    A finished bootstrap returns its earlier result. `asked` says how a batch is ingested. `listed`
    is the plan of a source if its files were listed already.
    """
    storage, name = table.storage, reader.source.name
    earlier = read_result(storage, name)
    if earlier is not None:
        return earlier
    # A source that changes meanwhile must not mix old and new rows: the first plan is final
    plan = read_plan(storage, name)
    if plan is None:
        own_plan = reader.plan() if listed is None else listed
        schema = table.snapshot_at().spec.schema
        plan = fix_plan(storage, name, replace(own_plan, table_schema=schema))
    _check_source(table, plan, reader.source)
    results = done_batches(storage, name)
    counts: Counter[str] = Counter(batches_done=0, batches_skipped=0)
    notes: list[str] = []
    for batch in range(len(plan.batches)):
        if batch in results:
            result = results[batch]
        else:
            result = ingest_batch(table, reader, plan, batch, asked)
        # Without a record, the token shows whether an earlier attempt committed the batch
        if batch in results or result.repeated:
            counts["batches_skipped"] += 1
        else:
            counts["batches_done"] += 1
        for name_of_count in ("rows", "files", "bytes", "rejected"):
            counts[name_of_count] += result.counts.get(name_of_count, 0)
        notes += result.notes
    version = table.log.head().version
    if plan.batches:
        processed = metagen(table, plan.metagen_token)
        if processed.version is not None:
            version = processed.version
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
        return  # the reader looks for planned files among those of the source
    for batch in plan.batches:
        for file in batch:
            if not is_below(file.path, source.location):
                raise FormatError(
                    f"{table.uri}: the plan of this bootstrap names {file.path!r}, which is not "
                    f"below {source.location}; delete the table's folder and begin again"
                )
