"""Pages of the log against the commits and segment logs that they copy (I31)."""

from collections.abc import Mapping, Sequence

from opal_lake import layout
from opal_lake.data.segment import LogFile
from opal_lake.errors import NotFoundError
from opal_lake.events.segment_log import Events, concat_events
from opal_lake.inspect.check.chain import Sizes
from opal_lake.inspect.check.state import KnownEvents
from opal_lake.log.commit import Commit
from opal_lake.log.pages import Line, Page, decode_events_line, decode_page, own_logs
from opal_lake.storage.verified import read_sealed

_DELETE = "delete it; it is derived and is written again"


def check_pages(commits: Sequence[Commit], sizes: Sizes, events: KnownEvents) -> None:
    """Compare each page with the existing commits and logs that it copies."""
    if not commits:
        return  # reported already
    by_version = {commit.version: commit for commit in commits}
    logs: dict[str, LogFile] = {}
    for commit in commits:
        logs |= {log.path: log for log in own_logs(commit)}
    for path in sizes:
        if not path.startswith(layout.LOG_PAGES):
            continue
        with events.findings.going_on("I31", path):
            try:
                page = decode_page(read_sealed(events.storage, path), path)
            except NotFoundError:
                continue  # a retention has deleted it meanwhile
            if _is_of_table(page, path, by_version, events):
                _check_commits(page, path, by_version, events)
                _check_events(page, path, logs, sizes, events)


def _is_of_table(
    page: Page, path: str, by_version: Mapping[int, Commit], events: KnownEvents
) -> bool:
    """Return whether a page is of this table; report it if not."""
    table_id = by_version[max(by_version)].table_id
    if page.table_id == table_id:
        return True
    message = f"it belongs to table {page.table_id}, the log to {table_id}; {_DELETE}"
    events.findings.add("I31", path, message)
    return False


def _check_commits(
    page: Page, path: str, by_version: Mapping[int, Commit], events: KnownEvents
) -> None:
    findings = events.findings
    head = max(by_version)
    is_beyond = page.last > head
    if is_beyond and not any(events.storage.list(layout.commit_path(page.last))):
        message = (
            f"it holds version {page.last}, the newest is {head}: commits were lost; "
            f"restore {layout.LOG} from a backup"
        )
        findings.add("I31", path, message)
    for version in page.commits:
        commit = by_version.get(version)
        if commit is not None and page.commit(version) != commit:
            message = f"its copy of version {version} differs from the commit; {_DELETE}"
            findings.add("I31", path, message)


def _check_events(
    page: Page, path: str, logs: Mapping[str, LogFile], sizes: Sizes, events: KnownEvents
) -> None:
    for log_path, line in page.events.items():
        log = logs.get(log_path)
        if log is None or log_path not in sizes:
            continue  # the commit or the log has expired
        parts = events.of(log)
        if parts is not None and not _is_copy(line, log, concat_events(parts)):
            message = f"its events of {log_path} are not those of the log; {_DELETE}"
            events.findings.add("I31", path, message)


def _is_copy(line: Line, log: LogFile, events: Events) -> bool:
    copied = decode_events_line(line, log)
    if copied is None or copied.next_rows is None or events.next_rows is None:
        return False
    pairs = (
        (copied.segment, events.segment),
        (copied.offset, events.offset),
        (copied.until, events.until),
        (copied.next_rows.segment, events.next_rows.segment),
        (copied.next_rows.offset, events.next_rows.offset),
    )
    return all((copy == original).all() for copy, original in pairs)
