"""Replay: ingest the rejected rows that can be read now, each once; others stay rejected.

The rejected rows of one ingest are replayed in one commit. It adds the rows that can be read, and
puts the others aside again, with a new reason and their old text. So a row is always either in the
table or put aside, whenever a process is killed. By the commit's token, a second replay finds that
the rows are replayed, even if both run at the same time.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from opal_lake.data.json_rows import JsonForm, row_of_json
from opal_lake.data.rejects import (
    BAD,
    LACKING,
    ROW,
    SOURCE,
    Rejects,
    fewer_reasons,
    split_bad_rows,
)
from opal_lake.definition.schema import DELETED, arrow_schema
from opal_lake.definition.table_spec import TableSpec, delete_condition
from opal_lake.engine.in_process import InProcess
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.log.commit import Commit
from opal_lake.result import JobResult
from opal_lake.write.ingest_job import ingest
from opal_lake.write.rejected import WAITING, RejectedRows, find_rejected, replay_token, rows_of

if TYPE_CHECKING:
    from opal_lake.operations.ingest import Ingest

OPERATION = "replay"
_AGAIN = (
    "correct the rows and ingest them again: read the files again, or read the topic with another "
    "--name. The table shows equal rows once"
)


@dataclass(slots=True, kw_only=True)
class _Totals:
    """The counts and notes of a replay.

    `still_rejected` is the number of rows that stay rejected, by reason.
    """

    ingests: int = 0
    rows: int = 0
    version: int | None = None
    still_rejected: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def replay(table: OpenTable, asked: "Ingest", metadata: str | None = None) -> JobResult:
    """Ingest all rejected rows that can be read now.

    `asked` says how rows are ingested. Its names are replaced by those of the ingests that rejected
    the rows, and so is the metadata unless `metadata` is given.
    """
    totals = _Totals()
    head = table.log.head()
    for rejected in find_rejected(table.log, head):
        commit = rejected.commit
        if rejected.state != WAITING or commit is None:
            continue
        own_ingest = replace(
            asked,
            metadata=_metadata_of(commit) if metadata is None else metadata,
            token=replay_token(rejected.number, head.root.epoch),
            partition_key=commit.partition_key,
            business_snapshot=commit.business_snapshot,
        )
        _replay_ingest(table, rejected, commit, own_ingest, totals)
    notes = [
        f"{count_text(number, 'row')} still rejected: {reason}"
        for reason, number in fewer_reasons(totals.still_rejected).most_common()
    ]
    return JobResult(
        operation=OPERATION,
        table=table.uri,
        version=totals.version,
        counts={
            "ingests": totals.ingests,
            "rows": totals.rows,
            "rejected": totals.still_rejected.total(),
        },
        notes=(*notes, *dict.fromkeys(totals.notes)),
    )


def _replay_ingest(
    table: OpenTable,
    rejected: RejectedRows,
    commit: Commit,
    asked: "Ingest",
    totals: _Totals,
) -> None:
    """Ingest the readable rows that one ingest rejected, and add to the totals."""
    given, form = rows_of(table.log, rejected)
    if form is None:
        totals.still_rejected.update(given["reason"].to_pylist())
        totals.notes.append(
            f"the rows of version {commit.version} cannot be replayed, because their text lacks "
            f"some of the source's data: {_AGAIN}"
        )
        return
    spec = table.snapshot_at().spec
    still_rejected = _reasons_still(given, spec, form)
    if still_rejected.total() == given.num_rows:
        totals.still_rejected.update(still_rejected)
        return
    # The rows are few and in this process, whatever the table's engine is
    local = OpenTable(log=table.log, cache=table.cache, executor=InProcess())
    try:
        result = ingest(
            local,
            lambda spec, _: _rows(given, spec, form),
            asked,
            row_form=form,
            notes=(f"a replay of rows that version {commit.version} rejected",),
        )
    except InvalidInputError as error:
        totals.still_rejected.update(given["reason"].to_pylist())
        totals.notes.append(f"the rows of version {commit.version} were not replayed: {error}")
        return
    if result.repeated:
        # The token was used: the rows are in the table already
        totals.notes.append(f"another replay has ingested the rows of version {commit.version}")
        return
    totals.ingests += 1
    totals.rows += result.counts["rows"]
    totals.version = result.version
    if result.counts["rejected"] != still_rejected.total():
        # Another writer added columns after this process had looked at the rows
        still_rejected = _reasons_still(given, table.snapshot_at().spec, form)
    totals.still_rejected.update(still_rejected)
    if asked.metadata == "batch":
        totals.notes.append(_pending_note(commit.partition_key))


def _pending_note(partition_key: str | None) -> str:
    note = "the replayed rows are pending until a metagen"
    if partition_key is None:
        return note
    return f"{note} of partition key {partition_key!r}"


def _metadata_of(commit: Commit) -> str:
    """Return the metadata of the ingest that made a commit: "inline" or "batch"."""
    is_inline = bool(commit.actions.processed or commit.positions)
    return "inline" if is_inline else "batch"


def _reasons_still(given: pa.Table, spec: TableSpec, form: JsonForm) -> Counter[str]:
    """Return the number of rows that still cannot be read, by reason."""
    rejects = Rejects(keep=False)
    split_bad_rows(_rows(given, spec, form), spec, rejects)
    return rejects.counts


def _rows(given: pa.Table, spec: TableSpec, form: JsonForm) -> pa.Table:
    """Return rejected rows with the table's columns; mark unreadable ones as bad."""
    rows: list[dict[str, Any]] = []
    bad: list[str | None] = []
    for rejected in given.to_pylist():
        row, reason = _read(rejected["row"], rejected["reason"], spec, form)
        rows.append(row)
        bad.append(reason)
    schema = arrow_schema(spec.schema)
    table = pa.Table.from_pylist(rows, schema=schema)
    condition = delete_condition(spec)
    if condition is not None:
        answers = condition.answers(table)
        if answers.failed is not None:
            for number, has_failed in enumerate(answers.failed.to_pylist()):
                if has_failed and bad[number] is None:
                    bad[number] = condition.failure
        table = table.append_column(DELETED, answers.values.fill_null(False))
    table = table.append_column(BAD, pa.array(bad, pa.string()))
    table = table.append_column(SOURCE, given["source"])
    return table.append_column(ROW, given["row"])


def _read(
    text: str | None, reason: str, spec: TableSpec, form: JsonForm
) -> tuple[dict[str, Any], str | None]:
    """Return the values of a rejected row, and the reason if it is still bad.

    `reason` is the one that it was rejected for. A bad row has no values.
    """
    # The text of a row that lacks values does not show which values it lacks
    if text is None or reason == LACKING:
        return {}, reason
    try:
        return row_of_json(text, spec.schema, form), None
    except ValueError as error:
        return {}, str(error)
