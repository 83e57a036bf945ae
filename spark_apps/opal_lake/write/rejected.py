"""The rows that ingests put aside: a list of them, and whether they can still be replayed.

No version names the files of rejected rows. A committed ingest has at least one file for each task
that rejected rows. A task that was attempted again may have several: each attempt leaves a file.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from opal_lake import layout
from opal_lake.clock import moment_text
from opal_lake.data.json_rows import JsonForm
from opal_lake.data.rejects import EXAMPLES, fewer_reasons, read_rejects, shown_rejects
from opal_lake.errors import FormatError
from opal_lake.ids import segment_part
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import history
from opal_lake.log.snapshot import Snapshot

# States of the ingest that rejected the rows. Rows can be replayed while it is waiting
WAITING, REPLAYED, DISCARDED, UNDONE = "waiting", "replayed", "discarded", "undone"
# The ingest failed, is still running, or its commit has expired
NO_COMMIT = "no commit"
_TOKEN = re.compile(r"opal\.rejected\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRows:
    """The files of the rows that one job rejected, and the state of the job.

    `commit` is the commit of the job; None if the log has none.
    """

    number: int
    paths: tuple[str, ...]
    state: str
    commit: Commit | None = None


def replay_token(number: int, epoch: int) -> str:
    """Return the token by which a job's rejected rows are replayed only once.

    A restore may undo a replay. It begins a new epoch, in which the rows can be replayed again.
    """
    return f"opal.rejected.{number}.{epoch}"


def find_rejected(log: CommitLog, head: Snapshot) -> list[RejectedRows]:
    """Return the rejected rows of each job that has any, the oldest job first."""
    paths: dict[int, list[str]] = {}
    for entry in log.storage.list(layout.REJECTED):
        number = layout.job_number(entry.path)
        if number is not None:
            paths.setdefault(number, []).append(entry.path)
    if not paths:
        return []
    commits, states = _commits_of(log, head, paths)
    all_rejected: list[RejectedRows] = []
    for number in sorted(paths):
        rejected = RejectedRows(
            number=number,
            paths=tuple(sorted(paths[number])),
            state=states.get(number, NO_COMMIT),
            commit=commits.get(number),
        )
        all_rejected.append(rejected)
    return all_rejected


def _commits_of(
    log: CommitLog, head: Snapshot, numbers: Iterable[int]
) -> tuple[dict[int, Commit], dict[int, str]]:
    """Return the commits of jobs, and the states of their rejected rows, by job.

    The log is read from the head back to the oldest of the jobs. A restore undoes the commits
    between it and the version that it restored.
    """
    wanted = set(numbers)
    commits: dict[int, Commit] = {}
    states: dict[int, str] = {}
    replayed: set[int] = set()
    discarded: set[int] = set()
    # The version that a newer restore has restored, while older commits are undone by it
    restored_version: int | None = None
    for commit in history(head, log.reading_back(head.root.oldest_version)):
        if restored_version is not None and commit.version <= restored_version:
            restored_version = None
        is_undone = restored_version is not None
        if not is_undone:
            replay = _TOKEN.fullmatch(commit.token or "")
            if replay:
                replayed.add(int(replay[1]))
            discarded |= {number for _, number in commit.actions.withdrawn}
            for withdrawn in commit.actions.discarded:
                discarded.add(segment_part(withdrawn.segment.id))
            if commit.actions.restored is not None:
                restored_version = commit.actions.restored.version
        number = commit.number
        if number in wanted and _rejected_count(commit):
            assert number is not None
            commits[number] = commit
            states[number] = _state(number, replayed, discarded, is_undone=is_undone)
            if len(commits) == len(wanted):
                break
    return commits, states


def _state(number: int, replayed: set[int], discarded: set[int], *, is_undone: bool) -> str:
    if is_undone:
        return UNDONE
    if number in replayed:
        return REPLAYED
    if number in discarded:
        return DISCARDED
    return WAITING


def _rejected_count(commit: Commit) -> int:
    counts = commit.result.get("counts", {})
    return int(counts.get("rejected", 0))


def rows_of(log: CommitLog, rejected: RejectedRows) -> tuple[pa.Table, JsonForm | None]:
    """Return all rows that an ingest rejected, each once, and the form of their JSON.

    Raises FormatError unless the commit says the same number of rows: no row may be lost unnoticed.
    """
    by_task: dict[str, list[str]] = {}
    for path in rejected.paths:
        by_task.setdefault(layout.rejected_task(path), []).append(path)
    tables: list[pa.Table] = []
    forms: set[JsonForm | None] = set()
    for attempts in by_task.values():
        rows, form = read_rejects(log.storage.get(attempts[0]), attempts[0])
        _check_attempts(log, attempts, rows)
        tables.append(rows)
        forms.add(form)
    rows = pa.concat_tables(tables)
    commit = rejected.commit
    if commit is not None and rows.num_rows != _rejected_count(commit):
        raise FormatError(
            f"{log.storage.uri}: version {commit.version} rejected "
            f"{_rejected_count(commit):,} rows, but its files in "
            f"{layout.rejected_pattern(rejected.number)} have {rows.num_rows:,} rows; "
            "restore the files from a backup, or ingest the source again"
        )
    form = forms.pop() if len(forms) == 1 else None
    return rows, form


def _check_attempts(log: CommitLog, attempts: Sequence[str], rows: pa.Table) -> None:
    """Raise FormatError if attempts of one task rejected different rows.

    `rows` are those of the first attempt. Only one attempt was committed, and it is unknown which.
    """
    for path in attempts[1:]:
        rows_of_attempt, _ = read_rejects(log.storage.get(path), path)
        if _counted(rows_of_attempt) != _counted(rows):
            raise FormatError(
                f"{log.storage.uri}: two attempts of a task rejected different rows, in "
                f"{attempts[0]} and {path}. The log does not show which attempt was committed; "
                "ingest the source again"
            )


def _counted(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Return how often each row occurs."""
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def rejected_list(log: CommitLog) -> list[dict[str, Any]]:
    """Describe the rejected rows of each job, the newest job first, with a sample."""
    return [_described(log, rejected) for rejected in reversed(find_rejected(log, log.head()))]


def _described(log: CommitLog, rejected: RejectedRows) -> dict[str, Any]:
    commit = rejected.commit
    tables: list[pa.Table] = []
    has_forms = True
    for path in rejected.paths:
        rows, form = read_rejects(log.storage.get(path), path)
        tables.append(rows)
        has_forms = has_forms and form is not None
    all_rows = pa.concat_tables(tables)
    reasons = fewer_reasons(Counter(all_rows["reason"].to_pylist()))
    of_commit: dict[str, Any] = {
        "version": None,
        "committed_at": None,
        "partition_key": None,
        "token": None,
        "rows": all_rows.num_rows,
    }
    if commit is not None:
        of_commit = {
            "version": commit.version,
            "committed_at": moment_text(commit.timestamp_us),
            "partition_key": commit.partition_key,
            "token": commit.token,
            "rows": _rejected_count(commit),
        }
    return {
        "job": rejected.number,
        "state": rejected.state,
        **of_commit,
        "can_replay": rejected.state == WAITING and has_forms,
        "reasons": dict(reasons.most_common()),
        "files": list(rejected.paths),
        "sample": shown_rejects(all_rows.slice(0, EXAMPLES)),
    }
