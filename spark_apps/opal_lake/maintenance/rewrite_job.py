"""A rewrite from its tasks' outputs to the commit, on any executor. Files that another rewrite removed in the meantime are left out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from pyroaring import BitMap

from opal_lake.data.reported import check_files
from opal_lake.data.segment import DataFile, Segment, SideFile
from opal_lake.events.bitmap import Bitmaps, add_bitmaps
from opal_lake.ids import segment_part
from opal_lake.log.commit import MAX_FILES_IN_COMMIT, Actions, Commit, Rewrite, file_to_json
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.lists import rewritten_files
from opal_lake.log.sections import write_side
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance.rewrite_task import Rewritten
from opal_lake.result import JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRun:
    """A rewrite on its way: one commit, with a number of its own."""

    operation: str
    number: int
    base: Snapshot
    started_us: int
    floor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteDone:
    """What was committed: the `made` files, and which rows no file holds any more; `lost` bins are another rewrite's."""

    result: JobResult
    made: tuple[str, ...]
    forgotten: Bitmaps
    lost: int


def commit_rewrite(log: CommitLog, run: RewriteRun, outputs: Sequence[Rewritten]) -> RewriteDone:
    """Put the new files in the place of the old ones."""
    kept: list[Rewritten] = []
    gone: list[Segment] = []
    tries = count()

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        removed = _removed_since(run.base, head)
        kept[:] = [output for output in outputs if removed.isdisjoint(output.replaced)]
        gone.clear()  # an earlier try may have lost its race
        floor = _raised(run.floor, head.root.floor)
        if not kept and floor is None:
            return None
        rewrite = plan_rewrite_action(head, kept)
        gone[:] = rewrite.gone
        if len(rewrite.add) + len(rewrite.remove) > MAX_FILES_IN_COMMIT:
            side = _write_side(log, run.number, next(tries), rewrite)
            rewrite = replace(rewrite, add=(), remove=(), side=side, side_rows=rewrite.added_rows)
        result = JobResult(operation=run.operation, table=log.storage.uri, counts=_counts(kept))
        return Draft(actions=Actions(rewrite=rewrite if kept else None, floor=floor), result=result)

    proposal = Proposal(
        operation=run.operation, number=run.number, build=build, started_us=run.started_us
    )
    result = log.commit(run.base, proposal)
    forgotten: Bitmaps = {}
    for output in kept:
        add_bitmaps(forgotten, output.dropped)
    add_bitmaps(forgotten, {segment.id: BitMap(range(segment.rows)) for segment in gone})
    made = tuple(file.path for output in kept for file in output.files)
    return RewriteDone(result=result, made=made, forgotten=forgotten, lost=len(outputs) - len(kept))


def plan_rewrite_action(head: Snapshot, kept: Sequence[Rewritten]) -> Rewrite:
    """A segment is gone when no file of the new version has a row of it."""
    removed = {path for output in kept for path in output.replaced}
    added = tuple(file for output in kept for file in output.files)
    doubtful = {segment for output in kept for segment in output.dropped} - _segments(added)
    if doubtful:
        doubtful -= _segments(file for path, file in head.files.items() if path not in removed)
    return Rewrite(
        add=added,
        remove=tuple(sorted(removed)),
        dropped_rows=sum(output.dropped_rows for output in kept),
        gone=tuple(head.segments[segment] for segment in sorted(doubtful)),
        incomplete_ingests=_incomplete_ingests(head, kept),
    )


def _incomplete_ingests(head: Snapshot, kept: Sequence[Rewritten]) -> tuple[int, ...]:
    """Of the ingests that gave a partition key those that lose their first rows."""
    losing = {segment_part(segment) for output in kept for segment in output.dropped}
    return (
        tuple(
            sorted(
                losing & frozenset().union(*head.partitions.values()) - head.root.incomplete_ingests
            )
        )
        if losing
        else ()
    )


def _segments(files: Iterable[DataFile]) -> set[int]:
    return {segment for file in files for segment in file.segments}


def _raised(new_floor: int | None, standing: int | None) -> int | None:
    """A floor is never lowered."""
    return (
        new_floor if new_floor is not None and (standing is None or new_floor > standing) else None
    )


def _removed_since(base: Snapshot, head: Snapshot) -> set[str]:
    """Files of the base that are not there any more. The list of all files need not be opened for that."""
    since = (commit for commit in head.commits if commit.version > base.version)
    return {path for commit in since for path in rewritten_files(head.storage, commit).remove}


def _counts(kept: Sequence[Rewritten]) -> dict[str, int]:
    written = [file for output in kept for file in output.files]
    return {
        "files_read": sum(len(output.replaced) for output in kept),
        "files_written": len(written),
        "bytes_read": sum(output.bytes_read for output in kept),
        "bytes_written": sum(file.size for file in written),
        "rows": sum(file.rows for file in written),
        "rows_dropped": sum(output.dropped_rows for output in kept),
    }


def _write_side(log: CommitLog, number: int, attempt: int, rewrite: Rewrite) -> SideFile:
    check_files(rewrite.add)
    items: list[DataFile | str] = [*rewrite.add, *rewrite.remove]
    return write_side(
        log.storage,
        number,
        attempt,
        items,
        lambda item: item if isinstance(item, str) else file_to_json(item),
    )
