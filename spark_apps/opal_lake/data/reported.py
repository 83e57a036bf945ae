"""Checks on what tasks report of the files that they wrote, before a commit names these: readers would detect errors too late.

Cheap, since no file is opened: readers verify the files themselves by their checksums.
"""

from collections.abc import Iterable

from opal_lake import checked
from opal_lake.data.segment import BYTES_AN_ENTRY, DataFile, LogFile, RunFile, check_rows
from opal_lake.errors import ForeignPathError, ReportError
from opal_lake.ids import segment_part
from opal_lake.layout import PathKind, own_path


def check_ingested(files: Iterable[DataFile], number: int | None) -> None:
    """ReportError for an entry that cannot be. New segments are those of the job with this number, one a file."""
    known: set[int] = set()
    files = tuple(files)
    check_files(files)
    for file in files:
        if len(file.segments) != 1:
            raise _refused(
                file.path,
                ValueError(f"it has {len(file.segments)} segments, an ingested file has one"),
            )
        [segment] = file.segments
        if segment_part(segment) != number:
            raise _refused(file.path, ValueError(f"its segment {segment} is none of job {number}"))
        if segment in known:
            raise _refused(file.path, ValueError(f"its segment {segment} was reported twice"))
        known.add(segment)


def check_files(entries: Iterable[DataFile | LogFile | RunFile]) -> None:
    """ReportError for an entry that cannot be."""
    paths: set[str] = set()
    for entry in entries:
        try:
            _check(entry)
            if entry.path in paths:
                raise ValueError("it was reported twice")
        except (ForeignPathError, ValueError) as error:
            raise _refused(entry.path, error) from error
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
    if checked.count(run.entries) * BYTES_AN_ENTRY > checked.count(run.size) or not run.size:
        raise ValueError(f"{run.size:,} bytes cannot hold its {run.entries:,} entries")


def _check_content(rows: int, size: int) -> None:
    check_rows(checked.count(rows), checked.count(size))
    if not size:
        raise ValueError("it has 0 bytes")


def _refused(path: object, error: Exception) -> ReportError:
    return ReportError(
        f"a task reported {path!r:.200}, which cannot be committed: {error}; this commit was not made, report it as a bug"
    )
