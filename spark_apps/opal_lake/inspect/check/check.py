"""The check of a table against every numbered invariant of FORMAT.md, on the newest version.

A check goes on after the first damage. With `all`, it also looks at the files of older versions: of
savepoints, and of all versions that can be read. Files that nothing refers to are not a finding: a
job that died leaves them. `quick` reads no data file, and checks only the metadata.

A check compares rows, events and entries with each other slot by slot, within the given memory.
Until their slot is checked, they wait in a file without a name, which disappears with the process.
It has some 50 bytes for each row and each entry.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opal_lake import layout
from opal_lake.definition.table_spec import delete_condition
from opal_lake.engine.executor import AtStep, Executor, no_step
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import ExpiredError, FormatError, InvalidInputError, NotFoundError, count_text
from opal_lake.inspect.check.business import check_business
from opal_lake.inspect.check.chain import (
    check_chain,
    check_claims,
    check_clock,
    check_kept,
    check_results,
    check_traffic,
    list_sizes,
    newest_root,
)
from opal_lake.inspect.check.content.by_tasks import look_by_tasks
from opal_lake.inspect.check.content.in_process import (
    DEFAULT_TUNING,
    LEAST_BYTES,
    Content,
    KnownContent,
    LocalCheck,
    Tuning,
    look_here,
)
from opal_lake.inspect.check.files import (
    check_pending,
    check_processed,
    check_row_bases,
    check_sizes,
    check_totals,
)
from opal_lake.inspect.check.finding import Finding, Findings
from opal_lake.inspect.check.pages import check_pages
from opal_lake.inspect.check.restores import check_restores
from opal_lake.inspect.check.sample import KeyRange, check_sample, plan_sample
from opal_lake.inspect.check.spill_buffer import SpillBuffer
from opal_lake.inspect.check.state import KnownEvents, check_state
from opal_lake.inspect.check.versions import OlderVersions, check_older
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.snapshot import Root, Snapshot
from opal_lake.log.version_window import readable_text
from opal_lake.read.stored_violations import CheckedFiles, stored_violations
from opal_lake.storage.left_overs import find_left_overs
from opal_lake.storage.protocol import Storage

if TYPE_CHECKING:
    from opal_lake.operations.look import Check

DEFAULT_MEMORY = "1g"
_LISTS = ("files", "segments", "pending", "logs", "runs", "bases")  # of a Snapshot
# The beginnings of the notes in a job's result
LOOKED_AT, LEFT_OUT, LEFT_OVER = "looked at: ", "not looked at: ", "left over: "
_MEMORY_UNITS = {"m": 1 << 20, "g": 1 << 30}
_MEMORY = re.compile(r"([0-9]{1,6})([mg])\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The extent of a check.

    `which` names the versions in words. `share` is the share of the keys whose rows were checked, 0
    if only metadata was.
    """

    which: str
    versions: int
    files: int
    rows: int
    share: float

    @property
    def text(self) -> str:
        """The extent as one line for people."""
        if not self.share:
            how = "metadata only"
        elif self.share == 1:
            how = "whole"
        else:
            how = f"{100 * self.share:.6g}% of the keys"
        files, rows = count_text(self.files, "data file"), count_text(self.rows, "row")
        return f"{self.which}: {files} with {rows}, {how}"


class CheckedList(list[Finding]):
    """The findings of a check as a list, with its extent."""

    def __init__(self, checked: "Checked") -> None:
        super().__init__(checked.findings)
        self.looked_at = checked.looked_at
        self.left_out = checked.left_out
        self.notes = checked.notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The findings of a check, its extent, and what it left out.

    Left-over files are not damage: they take space until a retention deletes them.
    """

    findings: tuple[Finding, ...]
    looked_at: Looked | None = None
    left_out: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The extent, what was left out, and left-over files, for a job's result."""
        looked = [LOOKED_AT + self.looked_text] if self.looked_at else []
        left_out = (LEFT_OUT + line for line in self.left_out)
        left_over = (LEFT_OVER + line for line in self.left_over)
        return (*looked, *left_out, *left_over)

    @property
    def looked_text(self) -> str:
        """The extent of the check for people, empty if no version could be put together."""
        return self.looked_at.text if self.looked_at else ""


def _parse_memory(text: object) -> int:
    """Return the number of bytes of a text such as 1g or 2500m."""
    match = _MEMORY.match(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidInputError(
            f"memory={text!r} is not an amount of memory; "
            "write a number of gigabytes or megabytes such as 1g or 2500m"
        )
    size = int(match[1]) * _MEMORY_UNITS[match[2]]
    if size < LEAST_BYTES:
        raise InvalidInputError(
            f"memory={text!r} is too little for a check, which needs at least {LEAST_BYTES >> 20}m"
        )
    return size


def check(
    table: OpenTable,
    asked: "Check",
    *,
    memory: str = DEFAULT_MEMORY,
    at_step: AtStep = no_step,
    tuning: Tuning = DEFAULT_TUNING,
) -> Checked:
    """Check the newest version, and with `asked.all` also older ones.

    The table's engine checks rows, events and entries, by tasks if there are several slots. Files
    that a retention deleted meanwhile are not damage: the check runs again without them.
    """
    check_sample(asked.sample)
    memory_bytes = _parse_memory(memory)
    while True:
        newest = newest_root(table.log)
        expired = None
        try:
            checked = _check(table, newest, asked, memory_bytes, at_step, tuning=tuning)
        except ExpiredError as error:
            checked, expired = Checked(findings=()), error
        is_suspect = expired is not None or bool(checked.findings)
        if is_suspect and _has_expired_since(table.log, newest):
            continue
        if expired is not None:
            raise expired
        return checked


def _has_expired_since(log: CommitLog, newest: Root | None) -> bool:
    """Return whether versions have expired since a root was the newest one."""
    if newest is None:
        return False
    newer = newest_root(log)
    return newer is not None and newer.oldest_version != newest.oldest_version


def _check(
    table: OpenTable,
    newest: Root | None,
    asked: "Check",
    memory_bytes: int,
    at_step: AtStep,
    *,
    tuning: Tuning,
) -> Checked:
    findings = Findings()
    storage = table.storage
    deep = not asked.quick
    at_step("metadata", 0, 0)
    sizes = list_sizes(storage)
    commits = check_chain(table.log, newest, sizes, findings)
    check_kept(newest, sizes, findings)
    if not commits:
        table.snapshot_at()  # raises an error that says why this is not a table
    check_clock(table.log, commits, findings)
    check_results(storage, sizes, findings)
    check_claims(storage, commits, sizes, findings)
    check_traffic(storage, commits, sizes, findings)
    check_business(storage, commits, findings)
    check_restores(table.log, commits, newest, findings)
    check_processed(storage, commits, findings)
    events = KnownEvents(storage=storage, findings=findings)
    state = check_state(commits, newest, sizes, events)
    check_pages(commits, sizes, events)
    left_over = tuple(_left_over(storage))
    if state is None or not _is_readable(state, findings):
        return Checked(
            findings=(*findings.unique,),
            left_over=left_over,
            left_out=("logs, runs and rows: the newest version cannot be put together",),
        )
    _check_condition(state, findings)
    check_sizes(state, sizes, findings)
    check_totals(state, commits, findings)
    check_row_bases(state, findings)
    discarded = check_pending(storage, commits, findings)
    keys = plan_sample(asked.sample, state)
    known = None
    if asked.all and deep:
        # Files are read once for all versions that are compared
        known = KnownContent(buffer=SpillBuffer(memory_bytes=tuning.buffer_bytes))
    content = Content(
        state=state,
        sizes=sizes,
        events=events,
        keys=keys,
        discarded=discarded,
        memory=memory_bytes,
        at_step=at_step,
        known=known,
        tuning=tuning,
    )
    if deep:
        _look(content, table.executor)
        _check_constraints(state, table.executor, findings)
    else:
        LocalCheck(content=content).run(deep=False)
    older = OlderVersions()
    if asked.all and newest is not None:
        at_step("older version", 0, 0)
        older = check_older(table.log, newest, commits, content, deep=deep)
    left_out = [*_left_out(state, keys, deep=deep), *_left_out_versions(older, deep=deep)]
    return Checked(
        findings=(*findings.unique,),
        looked_at=_looked_at(state, newest, older, keys, deep=deep),
        left_out=tuple(left_out),
        left_over=left_over,
    )


def _look(content: Content, executor: Executor) -> None:
    """Check rows, events and entries: by tasks, or a small table's in this process."""
    slots = executor.slots(content.rows)
    if slots > 1:
        look_by_tasks(content, executor, slots)
    else:
        look_here(content)


def _looked_at(
    state: Snapshot, newest: Root | None, older: OlderVersions, keys: KeyRange, *, deep: bool
) -> Looked:
    files = [*state.files.values(), *older.files]
    which = f"version {state.version}"
    if older.versions and newest is not None:
        which = f"versions {readable_text(newest)}"
    return Looked(
        which=which,
        versions=1 + len(older.versions),
        files=len(files),
        rows=sum(file.rows for file in files),
        share=keys.share if deep else 0,
    )


def _left_out_versions(older: OlderVersions, *, deep: bool) -> Iterator[str]:
    """Yield notes on what was not checked of versions before the newest."""
    uncompared = len(older.versions - older.compared)
    if uncompared:
        if not deep:
            why = "a quick check reads metadata only"
        elif older.has_damage:
            why = "after the first damaged older version, no further one is compared"
        else:
            why = "the versions are too many, or too large together, to compare each"
        yield (
            "how rows, events and key-store entries fit together in "
            f"{count_text(uncompared, 'older version')} (I18, I20, I21), except for the logs and "
            f"runs that merges took over: {why}"
        )
    yield from older.left_out


def _check_condition(state: Snapshot, findings: Findings) -> None:
    """Report a delete condition or a constraint that no ingest can evaluate."""
    try:
        delete_condition(state.spec)
        _ = state.spec.checks
    except InvalidInputError as error:
        fault = str(error).partition("\n")[0]
        message = (
            f"{fault}. Do not trust this table; if you need its rows, copy them into a table of "
            "your own"
        )
        findings.add("I25", layout.commit_path(0), message)


def _check_constraints(state: Snapshot, executor: Executor, findings: Findings) -> None:
    """Report rows that violate constraints.

    After damage of files or metadata, nothing is checked.
    """
    if findings.unique:
        return
    violations = stored_violations(state, state.spec, executor, CheckedFiles())
    if violations is not None:
        message = (
            f"{count_text(violations.rows, 'row')} of version {state.version} violate its "
            f"constraints:\n{violations.text}\nCorrect these rows, or drop the constraints"
        )
        findings.add("I35", layout.commit_path(state.version), message)


def _left_over(storage: Storage) -> Iterator[str]:
    """Yield a note about unfinished files of writers that are not known to run."""
    left_overs = find_left_overs(storage)
    if left_overs:
        size = sum(file.size for file in left_overs)
        folder = left_overs[0].path.partition("/")[0]
        yield (
            f"{count_text(len(left_overs), 'file')} of {size:,} bytes in {storage.uri}/{folder} "
            "are of writers that were killed, or that write on another machine; `opal retain` "
            "deletes the files that are older than its grace"
        )


def _is_readable(state: Snapshot, findings: Findings) -> bool:
    """Return whether all lists of a version can be loaded; report the first damage.

    After a damaged commit the lists come from a checkpoint, which may be damaged, too.
    """
    try:
        for name in _LISTS:
            getattr(state, name)  # a snapshot loads a list when it is first needed
    except (FormatError, NotFoundError) as error:
        message = f"the newest version cannot be put together: {error}"
        findings.add("I7", "_opal/checkpoints/", message)
        return False
    return True


def _left_out(state: Snapshot, keys: KeyRange, *, deep: bool) -> Iterator[str]:
    """Yield notes on what was not checked of the newest version."""
    files = [*state.files.values()]
    if not deep:
        yield (
            f"the content of {count_text(len(files), 'data file')}, and logs and runs against the "
            "rows (I10 to I12, I14, I18, I20, I21, I35)"
        )
        return
    if keys.is_all:
        return
    rows = sum(file.rows for file in files)
    if state.spec.has_keys:
        left_out = 1 - keys.share
        yield (
            f"{100 * left_out:.6g}% of the keys, about {int(rows * left_out):,} of {rows:,} rows: "
            "their events and key-store entries (I18 to I21)"
        )
    partial_files = sum(not keys.takes(file) for file in files)
    yield (
        f"in {partial_files:,} of {count_text(len(files), 'data file')} the checksum of the whole "
        "(I9), and all columns except row ids, keys, delta and tie-breaks (I12): pages and footers "
        "have checksums of their own"
    )
