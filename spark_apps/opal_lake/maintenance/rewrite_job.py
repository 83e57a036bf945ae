"""A rewrite from its tasks' outputs to the commit, on any executor.

An output is left out if another rewrite has meanwhile removed a file that it replaces.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from pyroaring import BitMap

from opal_lake.data.reported import check_files
from opal_lake.data.segment import DataFile, Segment, SideFile
from opal_lake.events.bitmap import Bitmaps, add_bitmaps
from opal_lake.ids import segment_part
from opal_lake.log.commit import Actions, Commit, Rewrite, file_to_json
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.lists import rewritten_files
from opal_lake.log.sections import write_side
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance.rewrite_task import Rewritten
from opal_lake.result import JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRun:
    """A started rewrite: one commit, with a number of its own."""

    operation: str
    number: int
    base: Snapshot
    started_us: int
    floor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteDone:
    """A committed rewrite.

    `made` has the paths of the new files, `forgotten` the rows that no longer are in a file. `lost`
    counts the bins of which another rewrite replaced a file: their outputs were left out.
    """

    result: JobResult
    made: tuple[str, ...]
    forgotten: Bitmaps
    lost: int


def commit_rewrite(log: CommitLog, run: RewriteRun, outputs: Sequence[Rewritten]) -> RewriteDone:
    """Commit the new files instead of the old ones."""
    # Set by the latest try to commit
    winning: list[Rewritten] = []
    gone: list[Segment] = []
    tries = count()

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        removed = _removed_since(run.base, head)
        winning[:] = [output for output in outputs if removed.isdisjoint(output.replaced)]
        gone.clear()
        floor = _raised(run.floor, head.root.floor)
        if not winning and floor is None:
            return None
        rewrite = plan_rewrite_action(head, winning)
        gone[:] = rewrite.gone
        rewrite = with_side_file(log, run.number, next(tries), rewrite)
        actions = Actions(rewrite=rewrite if winning else None, floor=floor)
        result = JobResult(operation=run.operation, table=log.storage.uri, counts=_counts(winning))
        return Draft(actions=actions, result=result)

    proposal = Proposal(
        operation=run.operation, number=run.number, build=build, started_us=run.started_us
    )
    result = log.commit(run.base, proposal)
    forgotten: Bitmaps = {}
    for output in winning:
        add_bitmaps(forgotten, output.dropped)
    add_bitmaps(forgotten, {segment.id: BitMap(range(segment.rows)) for segment in gone})
    made = tuple(file.path for file in _new_files(winning))
    lost = len(outputs) - len(winning)
    return RewriteDone(result=result, made=made, forgotten=forgotten, lost=lost)


def _new_files(outputs: Sequence[Rewritten]) -> list[DataFile]:
    files: list[DataFile] = []
    for output in outputs:
        files += output.files
    return files


def plan_rewrite_action(head: Snapshot, outputs: Sequence[Rewritten]) -> Rewrite:
    """Return the action of a commit that replaces files by the outputs of tasks."""
    added = tuple(_new_files(outputs))
    removed: set[str] = set()
    losing: set[int] = set()  # segments of which rows were dropped
    for output in outputs:
        removed.update(output.replaced)
        losing.update(output.dropped)
    # A segment is gone when no file of the new version has a row of it
    gone = losing - _segments(added)
    if gone:
        # The list of all files is opened only if segments may be gone
        remaining = [file for path, file in head.files.items() if path not in removed]
        gone -= _segments(remaining)
    return Rewrite(
        add=added,
        remove=tuple(sorted(removed)),
        dropped_rows=sum(output.dropped_rows for output in outputs),
        gone=tuple(head.segments[segment] for segment in sorted(gone)),
        incomplete_ingests=_incomplete_ingests(head, losing),
    )


def _incomplete_ingests(head: Snapshot, losing: Iterable[int]) -> tuple[int, ...]:
    """Return the ingests with a partition key that lose their first rows."""
    ingests = {segment_part(segment) for segment in losing}
    if not ingests:
        return ()
    with_key = frozenset().union(*head.partitions.values())
    return tuple(sorted((ingests & with_key) - head.root.incomplete_ingests))


def _segments(files: Iterable[DataFile]) -> set[int]:
    segments: set[int] = set()
    for file in files:
        segments.update(file.segments)
    return segments


def _raised(new_floor: int | None, standing: int | None) -> int | None:
    """Return the new floor if it is above the standing one: a floor is never lowered."""
    if new_floor is None:
        return None
    is_raised = standing is None or new_floor > standing
    return new_floor if is_raised else None


def _removed_since(base: Snapshot, head: Snapshot) -> set[str]:
    """Return the files that rewrites since `base` removed.

    The paths come from the commits of these rewrites: to open the list of all files would take
    longer.
    """
    removed: set[str] = set()
    for commit in head.commits:
        if commit.version > base.version:
            removed.update(rewritten_files(head.storage, commit).remove)
    return removed


def _counts(outputs: Sequence[Rewritten]) -> dict[str, int]:
    written = _new_files(outputs)
    return {
        "files_read": sum(len(output.replaced) for output in outputs),
        "files_written": len(written),
        "bytes_read": sum(output.bytes_read for output in outputs),
        "bytes_written": sum(file.size for file in written),
        "rows": sum(file.rows for file in written),
        "rows_dropped": sum(output.dropped_rows for output in outputs),
    }


def with_side_file(log: CommitLog, number: int, attempt: int, rewrite: Rewrite) -> Rewrite:
    """Return a rewrite that fits into a commit: many files are listed in a side file."""
    if len(rewrite.add) + len(rewrite.remove) <= log.tuning.rewrite_max_files:
        return rewrite
    side = _write_side(log, number, attempt, rewrite)
    return replace(rewrite, add=(), remove=(), side=side, side_rows=rewrite.added_rows)


def _write_side(log: CommitLog, number: int, attempt: int, rewrite: Rewrite) -> SideFile:
    """Write the added and removed files of a rewrite to a side file."""
    check_files(rewrite.add)
    items: list[DataFile | str] = [*rewrite.add, *rewrite.remove]
    return write_side(log.storage, number, attempt, items, _item_to_json)


def _item_to_json(item: DataFile | str) -> Any:
    """Return an added file as an object, a removed one as its path."""
    if isinstance(item, str):
        return item
    return file_to_json(item)
