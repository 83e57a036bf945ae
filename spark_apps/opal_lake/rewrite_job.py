"""A rewrite from its tasks' outputs to the commit, whoever ran the tasks. Files that another rewrite took meanwhile are left out."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from pyroaring import BitMap

from opal_lake import layout
from opal_lake.bitmap import Bitmaps, add_bitmaps
from opal_lake.commit import Actions, Commit, Rewrite, SideFile, file_to_json
from opal_lake.commit_log import CommitLog, Draft, Proposal
from opal_lake.ingest_job import MOST_INLINE_FILES
from opal_lake.job import JobResult
from opal_lake.rewrite_task import Rewritten
from opal_lake.sections import encode_section
from opal_lake.segment import DataFile, Segment
from opal_lake.snapshot import Snapshot


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
        kept[:] = [one for one in outputs if all(path in head.files for path in one.replaced)]
        gone.clear()  # an earlier try may have lost its race
        floor = _raised(run.floor, head.root.floor)
        if not kept and floor is None:
            return None
        rewrite = plan_rewrite_action(head, kept)
        gone[:] = rewrite.gone
        if len(rewrite.add) + len(rewrite.remove) > MOST_INLINE_FILES:
            side = _write_side(log, run.number, next(tries), rewrite)
            rewrite = Rewrite(side=side, dropped_rows=rewrite.dropped_rows, gone=rewrite.gone)
        result = JobResult(operation=run.operation, table=log.storage.uri, counts=_counts(head, kept))
        return Draft(actions=Actions(rewrite=rewrite if kept else None, floor=floor), result=result)

    proposal = Proposal(operation=run.operation, number=run.number, build=build, started_us=run.started_us)
    result = log.commit(run.base, proposal)
    forgotten: Bitmaps = {}
    for one in kept:
        add_bitmaps(forgotten, one.dropped)
    add_bitmaps(forgotten, {segment.id: BitMap(range(segment.rows)) for segment in gone})
    made = tuple(file.path for one in kept for file in one.files)
    return RewriteDone(result=result, made=made, forgotten=forgotten, lost=len(outputs) - len(kept))


def plan_rewrite_action(head: Snapshot, kept: Sequence[Rewritten]) -> Rewrite:
    """A segment is gone when no file of the new version has a row of it."""
    removed = {path for one in kept for path in one.replaced}
    added = tuple(file for one in kept for file in one.files)
    doubtful = {segment for one in kept for segment in one.dropped} - _segments(added)
    if doubtful:
        doubtful -= _segments(file for path, file in head.files.items() if path not in removed)
    return Rewrite(
        add=added,
        remove=tuple(sorted(removed)),
        dropped_rows=sum(one.dropped_rows for one in kept),
        gone=tuple(head.segments[segment] for segment in sorted(doubtful)),
    )


def _segments(files: Iterable[DataFile]) -> set[int]:
    return {segment for file in files for segment in file.segments}


def _raised(wanted: int | None, standing: int | None) -> int | None:
    """A floor is never lowered."""
    return wanted if wanted is not None and (standing is None or wanted > standing) else None


def _counts(head: Snapshot, kept: Sequence[Rewritten]) -> dict[str, int]:
    read = [head.files[path] for one in kept for path in one.replaced]
    written = [file for one in kept for file in one.files]
    return {
        "files_read": len(read),
        "files_written": len(written),
        "bytes_read": sum(file.size for file in read),
        "bytes_written": sum(file.size for file in written),
        "rows": sum(file.rows for file in written),
        "rows_dropped": sum(one.dropped_rows for one in kept),
    }


def _write_side(log: CommitLog, number: int, attempt: int, rewrite: Rewrite) -> SideFile:
    items: list[DataFile | str] = [*rewrite.add, *rewrite.remove]
    data = encode_section(items, lambda item: item if isinstance(item, str) else file_to_json(item))
    path = layout.side_path(number, attempt)
    log.storage.put_if_absent(path, data)
    return SideFile(path=path, size=len(data), crc32=zlib.crc32(data))
