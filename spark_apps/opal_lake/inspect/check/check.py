"""Whether a table is what FORMAT.md says: every numbered invariant, on the newest version.

A check goes on behind the first damage. With `all` the files of older versions are looked at, too:
of savepoints, and of all versions that can be read. Files that nothing refers to are no finding: a
job that died leaves them. `quick` reads no data file, and checks only what the metadata says.

What rows, events and entries mean for each other is looked at slot by slot, within the memory that
is given. Until then they wait in a file without a name, some 50 bytes a row and 50 an entry, which
goes with the process.
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
    kept_root,
    list_sizes,
)
from opal_lake.inspect.check.content.by_tasks import look_by_tasks
from opal_lake.inspect.check.content.in_process import (
    LEAST_BYTES,
    Content,
    KnownContent,
    LocalCheck,
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
from opal_lake.inspect.check.state import KnownEvents, check_state
from opal_lake.inspect.check.versions import OlderVersions, check_older
from opal_lake.log.snapshot import Root, Snapshot
from opal_lake.log.version_window import readable_text
from opal_lake.storage.left_overs import find_left_overs
from opal_lake.storage.protocol import Storage

if TYPE_CHECKING:
    from opal_lake.operations.look import Check

DEFAULT_MEMORY = "1g"
# Before the notes of a job's result
LOOKED_AT, LEFT_OUT, LEFT_OVER = "looked at: ", "not looked at: ", "left over: "
_MEMORY_UNITS = {"m": 1 << 20, "g": 1 << 30}
_MEMORY = re.compile(r"([0-9]{1,6})([mg])\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The extent of a check: versions in words, and how many versions, files and rows.

    `share` is that of the keys whose rows were looked at, 0 where only metadata was.
    """

    which: str
    versions: int
    files: int
    rows: int
    share: float

    @property
    def text(self) -> str:
        """One line for people."""
        how = "whole" if self.share == 1 else f"{100 * self.share:.6g}% of the keys"
        how = how if self.share else "metadata only"
        files, rows = count_text(self.files, "data file"), count_text(self.rows, "row")
        return f"{self.which}: {files} with {rows}, {how}"


class CheckedList(list[Finding]):
    """The findings of a check as a list; `looked_at` and `left_out` say what they are of."""

    def __init__(self, checked: "Checked") -> None:
        super().__init__(checked.findings)
        self.looked_at = checked.looked_at
        self.left_out = checked.left_out
        self.notes = checked.notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Findings, what was checked, and what was not.

    Left-over files are not damage: they take space until a retention deletes them.
    """

    findings: tuple[Finding, ...]
    looked_at: Looked | None = None
    left_out: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what was looked at, what was not, and what is left over, for a job's result."""
        looked = [LOOKED_AT + self.looked_text] if self.looked_at else []
        left_out = (LEFT_OUT + line for line in self.left_out)
        left_over = (LEFT_OVER + line for line in self.left_over)
        return (*looked, *left_out, *left_over)

    @property
    def looked_text(self) -> str:
        """What was looked at, for people; nothing where no version could be put together."""
        return self.looked_at.text if self.looked_at else ""


def _parse_memory(text: object) -> int:
    """Return the bytes of an amount as people write it: 1g, 2500m."""
    match = _MEMORY.match(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidInputError(
            f"memory={text!r} is not an amount of memory; "
            "write a number of gigabytes or megabytes, as 1g or 2500m"
        )
    size = int(match[1]) * _MEMORY_UNITS[match[2]]
    if size < LEAST_BYTES:
        raise InvalidInputError(
            f"memory={text!r} is too little for a check; give it {LEAST_BYTES >> 20}m at least"
        )
    return size


def check(
    table: OpenTable,
    asked: "Check",
    *,
    memory: str = DEFAULT_MEMORY,
    at_step: AtStep = no_step,
) -> Checked:
    """Return what is wrong with the newest version, and with older ones if these are asked for.

    The table's engine looks at the rows, events and entries, by tasks if there are several slots.

    Files that retention deleted meanwhile are not damage: the check runs again without them.
    """
    check_sample(asked.sample)
    memory_bytes = _parse_memory(memory)
    while True:
        kept, expired = kept_root(table.log), None
        try:
            checked = _check(table, kept, asked, memory_bytes, at_step)
        except ExpiredError as error:
            checked, expired = Checked(findings=()), error
        newer = kept_root(table.log) if checked.findings or expired else None
        if kept is None or newer is None or newer.oldest_version == kept.oldest_version:
            if expired is not None:
                raise expired
            return checked


def _check(
    table: OpenTable, kept: Root | None, asked: "Check", memory_bytes: int, at_step: AtStep
) -> Checked:
    findings, storage, deep = Findings(), table.storage, not asked.quick
    at_step("metadata", 0, 0)
    sizes = list_sizes(storage)
    commits = check_chain(table.log, kept, sizes, findings)
    check_kept(kept, sizes, findings)
    if not commits:
        table.snapshot_at()  # says why this is no table
    check_clock(table.log, commits, findings)
    check_results(storage, sizes, findings)
    check_claims(storage, commits, sizes, findings)
    check_traffic(storage, commits, sizes, findings)
    check_business(storage, commits, findings)
    check_restores(table.log, commits, kept, findings)
    check_processed(storage, commits, findings)
    events = KnownEvents(storage=storage, findings=findings)
    state = check_state(commits, kept, sizes, events)
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
    content = Content(
        state=state,
        sizes=sizes,
        events=events,
        keys=keys,
        discarded=discarded,
        memory=memory_bytes,
        at_step=at_step,
        known=KnownContent() if asked.all and deep else None,
    )
    if deep:
        _look(content, table.executor)
    else:
        LocalCheck(content=content).run(deep=False)
    older = OlderVersions()
    if asked.all and kept is not None:
        at_step("older version", 0, 0)
        older = check_older(table.log, kept, commits, content, deep=deep)
    return Checked(
        findings=(*findings.unique,),
        looked_at=_looked_at(state, kept, older, keys, deep=deep),
        left_out=(
            *_left_out(state, keys, deep=deep),
            *_left_out_versions(older, deep=deep),
        ),
        left_over=left_over,
    )


def _look(content: Content, executor: Executor) -> None:
    """Look at rows, events and entries; those of a small table in this process."""
    slots = executor.slots(content.rows)
    if slots > 1:
        look_by_tasks(content, executor, slots)
    else:
        look_here(content)


def _looked_at(
    state: Snapshot, kept: Root | None, older: OlderVersions, keys: KeyRange, *, deep: bool
) -> Looked:
    files = [*state.files.values(), *older.files]
    which = f"version {state.version}"
    if older.versions and kept is not None:
        which = f"versions {readable_text(kept)}"
    return Looked(
        which=which,
        versions=1 + len(older.versions),
        files=len(files),
        rows=sum(file.rows for file in files),
        share=keys.share if deep else 0,
    )


def _left_out_versions(older: OlderVersions, *, deep: bool) -> Iterator[str]:
    """Yield what was not looked at of versions before the newest, in words."""
    left = len(older.versions - older.compared)
    if left:
        why = "they are too many, or too large together, to compare each"
        if not deep:
            why = "a quick check reads metadata only"
        elif older.has_damage:
            why = "once something is found in older versions, those after it are not compared"
        yield (
            f"how rows, events and key-store entries of {count_text(left, 'older version')} fit together (I18, I20, I21), but for what "
            f"merges of logs and runs took over: {why}"
        )
    yield from older.left_out


def _check_condition(state: Snapshot, findings: Findings) -> None:
    """Report a condition that is not of the language: no ingest evaluates it."""
    try:
        delete_condition(state.spec)
    except InvalidInputError as error:
        fault = str(error).partition("\n")[0]
        findings.add(
            "I25",
            layout.commit_path(0),
            f"{fault}. Do not trust this table; if you need its rows, copy them into a table of your own",
        )


def _left_over(storage: Storage) -> Iterator[str]:
    """Files in the making, but for those of writers that are known to be at work."""
    left_overs = find_left_overs(storage)
    if left_overs:
        size = sum(file.size for file in left_overs)
        files = f"{count_text(len(left_overs), 'file')} of {size:,} bytes in {storage.uri}/{left_overs[0].path.partition('/')[0]}"
        yield (
            f"{files} are of writers that were killed, or write on another machine; `opal retain` deletes those that are older "
            f"than its grace"
        )


def _is_readable(state: Snapshot, findings: Findings) -> bool:
    """Whether the long lists are at hand: behind a damaged commit they come from sections, which may be damaged too."""
    try:
        return all(
            part is not None
            for part in (
                state.files,
                state.segments,
                state.pending,
                state.logs,
                state.runs,
                state.bases,
            )
        )
    except (FormatError, NotFoundError) as error:
        findings.add(
            "I7", "_opal/checkpoints/", f"the newest version cannot be put together: {error}"
        )
        return False


def _left_out(state: Snapshot, keys: KeyRange, *, deep: bool) -> Iterator[str]:
    """What was not checked, in words."""
    files = [*state.files.values()]
    if not deep:
        yield f"the content of {count_text(len(files), 'data file')}, and logs and runs beside the rows (I10 to I12, I14, I18, I20, I21)"
        return
    if keys.is_all:
        return
    away = sum(not keys.takes(file) for file in files)
    percent, rows = f"{100 * (1 - keys.share):.6g}%", sum(file.rows for file in files)
    if state.spec.has_keys:
        yield f"{percent} of the keys, about {int(rows * (1 - keys.share)):,} of {rows:,} rows: their events and key-store entries (I18 to I21)"
    yield (
        f"in {away:,} of {count_text(len(files), 'data file')} the checksum of the whole (I9), and all columns but row ids, keys, "
        "delta and tie-breaks (I12): pages and footers have checksums of their own"
    )
