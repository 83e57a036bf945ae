"""Checks on the files that tasks report, before a commit names them.

Readers would detect a wrong entry only after the commit. The checks open no file: readers verify
the files by their checksums.
"""

from collections.abc import Iterable

from opal_lake import checked
from opal_lake.data.segment import BYTES_AN_ENTRY, DataFile, LogFile, RunFile, check_rows
from opal_lake.errors import ForeignPathError, ReportError
from opal_lake.ids import segment_part
from opal_lake.layout import PathKind, own_path


def check_ingested(files: Iterable[DataFile], number: int | None) -> None:
    """Raise ReportError for an ingested file that cannot be committed.

    Each file has one new segment, of the job with the given number.
    """
    files = tuple(files)
    check_files(files)
    seen: set[int] = set()
    for file in files:
        if len(file.segments) != 1:
            raise _refused(
                file.path, f"it has {len(file.segments)} segments, but an ingested file has one"
            )
        [segment] = file.segments
        if segment_part(segment) != number:
            raise _refused(file.path, f"its segment {segment} does not belong to job {number}")
        if segment in seen:
            raise _refused(file.path, f"its segment {segment} was reported twice")
        seen.add(segment)


def check_files(entries: Iterable[DataFile | LogFile | RunFile]) -> None:
    """Raise ReportError for a file that cannot be committed or is reported twice."""
    paths: set[str] = set()
    for entry in entries:
        try:
            _check(entry)
            if entry.path in paths:
                raise ValueError("it was reported twice")
        except (ForeignPathError, ValueError) as error:
            raise _refused(entry.path, str(error)) from error
        paths.add(entry.path)


def _check(entry: DataFile | LogFile | RunFile) -> None:
    match entry:
        case DataFile():
            _check_file(entry)
        case LogFile():
            _check_log(entry)
        case RunFile():
            _check_run(entry)


def _check_file(file: DataFile) -> None:
    own_path(PathKind.DATA, file.path)
    _check_content(file.rows, file.size)
    if not checked.counts(file.segments):
        raise ValueError("it has no segment")
    if not 0 < checked.count(file.footer_bytes) <= file.size:
        raise ValueError(f"its footer has {file.footer_bytes!r} of its {file.size} bytes")


def _check_log(log: LogFile) -> None:
    own_path(PathKind.LOG, log.path)
    _check_content(log.events, log.size)
    checked.counts(log.groups)


def _check_run(run: RunFile) -> None:
    own_path(PathKind.RUN, run.path)
    least_size = checked.count(run.entries) * BYTES_AN_ENTRY
    size = checked.count(run.size)
    if least_size > size or size == 0:
        raise ValueError(f"{size:,} bytes cannot hold its {run.entries:,} entries")


def _check_content(rows: int, size: int) -> None:
    check_rows(checked.count(rows), checked.count(size))
    if not size:
        raise ValueError("it has 0 bytes")


def _refused(path: object, reason: str) -> ReportError:
    return ReportError(
        f"a task reported {path!r:.200}, which cannot be committed: {reason}. "
        "Nothing was committed; report this as a bug"
    )
