"""A table without keys, written by the layers below the face, which cannot make one yet."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from opal_lake.definition.schema import schema_of_arrow
from opal_lake.definition.table_spec import TableSpec
from opal_lake.log.claim import claim_number
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.operations.ingest import Ingest
from opal_lake.result import JobResult
from opal_lake.storage import Storage
from opal_lake.table import Table, create_on
from opal_lake.write.ingest_job import IngestRun, commit_ingest
from opal_lake.write.ingest_task import IngestTask, ingest_rows

SCHEMA = pa.schema(
    [
        ("page", pa.string()),
        ("seen", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.field("element", pa.string()))),
    ]
)
View = tuple[str | None, int]


def spec(**changes: Any) -> TableSpec:
    return TableSpec(schema=schema_of_arrow(SCHEMA), key_ids=(), delta_id=None, **changes)


def create(storage: Storage, **changes: Any) -> Table:
    return create_on(storage, spec(**changes))


def rows(views: Sequence[View]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"page": page, "seen": seen, "tags": [page, None]} for page, seen in views], SCHEMA
    )


def append(table: Table, views: Sequence[View], **names: str) -> None:
    """Ingest rows, pending as yet."""
    base = table.snapshot_at()
    number = claim_number(table.storage, base.root, "ingest", table.log.clock)
    run = IngestRun(asked=Ingest(rows(views), **names), number=number, base=base, started_us=0)
    task = IngestTask(storage=table.storage, spec=base.spec, number=number, task=0, attempt="0")
    commit_ingest(table.log, run, [ingest_rows(rows(views).to_batches(), task)])


def process(table: Table) -> None:
    """Make the pending rows visible."""
    state = table.snapshot_at()
    processed = tuple(state.segments[number] for number in sorted(state.pending))
    _commit(table, Actions(processed=processed))


def raise_floor(table: Table) -> None:
    """Give the table what only tables with keys have."""
    _commit(table, Actions(floor=5))


def _commit(table: Table, actions: Actions) -> None:
    base = table.snapshot_at()
    number = claim_number(table.storage, base.root, "metagen", table.log.clock)

    def build(head: Snapshot, winners: Sequence[Commit]) -> Draft:
        result = JobResult(operation="metagen", table=table.uri)
        return Draft(actions=actions, result=result, changes_view=True)

    proposal = Proposal(operation="metagen", number=number, build=build, started_us=0)
    table.log.commit(base, proposal)


def content(table: Table, **view: Any) -> list[tuple[str | None, str]]:
    shown = table.read(**view).to_pylist()
    return sorted((row["page"], f"{row['seen']:%S}") for row in shown)
