"""The check that no other job touched the keys of a job's rows before it commits."""

from collections.abc import Sequence

import numpy as np

from opal_lake.data.column_read import read_places
from opal_lake.data.columns import to_fields
from opal_lake.data.rejects import EXAMPLES, json_texts
from opal_lake.data.segment import DataFile
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import ConflictError, count_text
from opal_lake.key_store.entries import Entries
from opal_lake.log.commit import Commit
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.region import RegionTest, region_rows_of_segments
from opal_lake.rule.outputs import JobOutputs, rows_touched


class KeysTouchedError(ConflictError):
    """Another job changed rows of the job's keys; the job can run again."""


def check_untouched(
    winner: Commit,
    base: Snapshot,
    spec: TableSpec,
    files: Sequence[DataFile],
    rule_outputs: JobOutputs,
) -> None:
    """Raise KeysTouchedError if a winner's rows have keys of the job's rows.

    `spec` is the one with which the job wrote its files.
    """
    runs = [file for output in rule_outputs.outputs for file in output.runs]
    touched = rows_touched(runs, winner, rule_outputs.writer)
    if not len(touched):
        return
    keys = ", ".join(_keys_of(touched, base, spec, files))
    raise KeysTouchedError(
        f"version {winner.version} changed {count_text(len(touched), 'row')} of the same keys, "
        f"for example {keys}"
    )


def _keys_of(
    entries: Entries, base: Snapshot, spec: TableSpec, files: Sequence[DataFile]
) -> list[str]:
    """Return the keys of some rows that the job wrote, as JSON."""
    file_of = {file.segments[0]: file for file in files}
    first = int(entries.segment[0])
    offsets = np.sort(entries.offset[entries.segment == first])[:EXAMPLES].astype(np.int64)
    names = [key.physical for key in spec.keys]
    rows = read_places(base.storage, file_of[first], spec, names, offsets)
    return json_texts(to_fields(rows, spec, spec.keys))


def check_region_untouched(
    winners: Sequence[Commit], head: Snapshot, region: RegionTest | None, operation: str
) -> None:
    """Raise ConflictError if the winners brought rows into the region of a statement.

    Without a test, each visible row of a winner may be in the region. Rows of keys that the
    statement has written are another check's.
    """
    segments: set[int] = set()
    for winner in winners:
        segments |= winner.actions.processed_ids
    if not segments:
        return
    test = region or RegionTest(side="t", spec=head.spec)
    rows = region_rows_of_segments(test, head, frozenset(segments), EXAMPLES)
    if rows.num_rows:
        keys = ", ".join(json_texts(rows))
        raise ConflictError(
            f"versions up to {head.version} added rows among those that the {operation} replaces, "
            f"for example {keys}"
        )
