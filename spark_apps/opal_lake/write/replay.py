"""Replay: ingest rejected rows again that can be read now, each once, and keep the others rejected.

Each ingest's rejected rows are one commit: it adds the rows that can be read, and puts the others
aside again, with a new reason and their old text. So a row is always at one of the two places,
whatever is killed midway. The commit's token lets a second replay, also one at the same time, find
that it is done.
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
    "give the rows to an ingest again, corrected: read the files again, or the topic with another "
    "--name; of equal rows the table shows one"
)


@dataclass(slots=True, kw_only=True)
class _Totals:
    """The counts of a replay; `left` counts the rows that stay rejected, by reason."""

    ingests: int = 0
    rows: int = 0
    version: int | None = None
    left: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def replay(table: OpenTable, asked: "Ingest", metadata: str | None = None) -> JobResult:
    """Ingest again those of all rejected rows that can be read now.

    `asked` says how, without source and names: these are those of the ingests that rejected rows.
    """
    totals = _Totals()
    head = table.log.head()
    for rejected in find_rejected(table.log, head):
        commit = rejected.commit
        if rejected.state != WAITING or commit is None:
            continue
        own_ingest = replace(
            asked,
            metadata=metadata or _metadata_of(commit),
            token=replay_token(rejected.number, head.root.epoch),
            partition_key=commit.partition_key,
            business_snapshot=commit.business_snapshot,
        )
        _replay_ingest(table, rejected, commit, own_ingest, totals)
    notes = [
        f"{count_text(number, 'row')} still rejected: {reason}"
        for reason, number in fewer_reasons(totals.left).most_common()
    ]
    return JobResult(
        operation=OPERATION,
        table=table.uri,
        version=totals.version,
        counts={
            "ingests": totals.ingests,
            "rows": totals.rows,
            "rejected": totals.left.total(),
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
    given, form = rows_of(table.log, rejected)
    if form is None:
        totals.left.update(given["reason"].to_pylist())
        totals.notes.append(
            f"the rows of version {commit.version} cannot be replayed, because their text alone "
            f"does not say all that their source said; {_AGAIN}"
        )
        return
    spec = table.snapshot_at().spec
    still_rejected = _reasons_left(given, spec, form)
    if still_rejected.total() == given.num_rows:
        totals.left.update(still_rejected)
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
        totals.left.update(given["reason"].to_pylist())
        totals.notes.append(f"the rows of version {commit.version} were not replayed: {error}")
        return
    if result.repeated:
        # The token of this ingest's rows was used: they are in the table already
        totals.notes.append(f"another replay has taken the rows of version {commit.version}")
        return
    totals.ingests += 1
    totals.rows += result.counts["rows"]
    totals.version = result.version
    if result.counts["rejected"] != still_rejected.total():
        # Another writer added columns after this process had looked at the rows
        still_rejected = _reasons_left(given, table.snapshot_at().spec, form)
    totals.left.update(still_rejected)
    if asked.metadata == "batch":
        totals.notes.append(_pending_note(commit.partition_key))


def _pending_note(partition_key: str | None) -> str:
    note = "the replayed rows are pending until a metagen"
    if partition_key is None:
        return note
    return f"{note} of partition key {partition_key!r}"


def _metadata_of(commit: Commit) -> str:
    """Return how the ingest made its rows visible: a stream, for one, at once."""
    is_inline = bool(commit.actions.processed or commit.positions)
    return "inline" if is_inline else "batch"


def _reasons_left(given: pa.Table, spec: TableSpec, form: JsonForm) -> Counter[str]:
    """Return why rows cannot be read now either."""
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
                if has_failed:
                    bad[number] = bad[number] or condition.failure
        table = table.append_column(DELETED, answers.values.fill_null(False))
    table = table.append_column(BAD, pa.array(bad, pa.string()))
    table = table.append_column(SOURCE, given["source"])
    return table.append_column(ROW, given["row"])


def _read(
    text: str | None, reason: str, spec: TableSpec, form: JsonForm
) -> tuple[dict[str, Any], str | None]:
    if text is None:
        return {}, reason
    if reason == LACKING:
        # The text does not say which values are missing
        return {}, reason
    try:
        return row_of_json(text, spec.schema.fields, form), None
    except ValueError as error:
        return {}, str(error)
