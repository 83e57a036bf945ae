"""Erasure: all rows of some keys are removed, and the versions that still show them expire.

1. A commit replaces the files, logs and runs that hold the keys. It begins a new epoch, so that no
   job that began earlier brings old rows or entries back (I34).
2. Once the grace has passed, a retention makes the version of this commit the oldest readable one,
   and deletes all older files.

If an erasure dies, a repeat does the remaining steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from opal_lake.data.segment import DataFile
from opal_lake.duration import parse_duration
from opal_lake.engine.open_table import OpenTable
from opal_lake.engine.results import find_result, keep_result
from opal_lake.errors import ConflictError, InvalidInputError, count_text
from opal_lake.events.bitmap import Bitmaps, add_bitmaps
from opal_lake.log.claim import claim_number
from opal_lake.log.commit import ERASE, Actions, Commit
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.lists import list_changes
from opal_lake.log.snapshot import Snapshot, newest_first
from opal_lake.log.version_window import savepoints_text
from opal_lake.maintenance.compaction_plan import Bin
from opal_lake.maintenance.erase_rows import (
    ErasedRun,
    EraseRunTask,
    Keys,
    KeyTask,
    RowTask,
    erase_in_run,
    keys_in_file,
    no_keys,
    rows_in_file,
    united,
)
from opal_lake.maintenance.merge_logs import LogTask, MergedLogs, merge_logs, plan_log_bins
from opal_lake.maintenance.rewrite_job import plan_rewrite_action, with_side_file
from opal_lake.maintenance.rewrite_task import (
    BinWork,
    RewriteTask,
    Rewritten,
    rewrite_bin,
    row_bases_of,
)
from opal_lake.read.where import where_condition
from opal_lake.result import JobResult
from opal_lake.retention.retention import GRACE, Cut, cut
from opal_lake.rule.outputs import segment_groups, slot_writer

if TYPE_CHECKING:
    from opal_lake.operations.erase import Erase

MAX_TRIES = 10  # against jobs that commit meanwhile


class _OvertakenError(Exception):
    """Another job committed since the plan was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The rows to erase, by file, and their keys.

    If no file of the `base` holds such rows, `rows_by_file` has those in files of older versions.
    """

    base: Snapshot
    keys: Keys
    rows_by_file: Mapping[str, Bitmaps]

    @property
    def files(self) -> list[DataFile]:
        """The files of the base that hold some of the rows."""
        known = self.base.files
        return [known[path] for path in self.rows_by_file if path in known]

    @property
    def older_files(self) -> int:
        """The number of files with such rows that the base has no more."""
        return len(self.rows_by_file) - len(self.files)

    @property
    def erased(self) -> Bitmaps:
        """All rows to erase, by segment."""
        erased: Bitmaps = {}
        for rows in self.rows_by_file.values():
            add_bitmaps(erased, rows)
        return erased

    @property
    def counts(self) -> dict[str, int]:
        return {
            "keys": len(self.keys.hashes),
            "rows": sum(map(len, self.erased.values())),
            "files": len(self.files),
        }


@dataclass(slots=True, kw_only=True)
class Erasure:
    """An erasure: its arguments, and what it has learned of files, which never change."""

    table: OpenTable
    asked: "Erase"
    _keys: dict[str, Keys] = field(default_factory=dict)

    def run(self) -> JobResult:
        """Erase the rows, and delete the older files if the grace has passed."""
        log = self.table.log
        grace = GRACE if self.asked.grace is None else self.asked.grace
        parse_duration(grace, name="grace")
        head = log.head()
        where_condition(self.asked.where, head.spec)  # raises for a faulty condition
        if self.asked.dry_run:
            return self._dry_run(head)
        result = find_result(log, head, ERASE, self.asked.token)
        if result is None:
            result = self._erase(head)
        else:
            result = self._with_later_rows(head, result)
        head = log.head()
        version = result.version
        if version is None:
            # The rows may be gone because of an earlier erasure whose files still exist
            version = _last_erasure(self.table, head)
        if version is None:
            return self._nothing(head, result)
        done = cut(log, version, grace=grace)
        if result.version is None and not done.deleted_files and not done.remaining_files:
            return self._nothing(head, result)
        return _with_cut(result, done)

    def _with_later_rows(self, head: Snapshot, result: JobResult) -> JobResult:
        """Add the files with rows that came after the first call to its result."""
        plan = self._plan(head, since=result.version or 0)
        files = len(plan.rows_by_file)
        if not files:
            return result
        rows = sum(map(len, plan.erased.values()))
        note = (
            f"{count_text(rows, 'row')} of the keys, in {count_text(files, 'file')}, came after "
            "the first call with this token: erase with another token to erase these, too"
        )
        counts = {**result.counts, "remaining_files": files}
        return replace(result, counts=counts, notes=(*result.notes, note))

    def _erase(self, head: Snapshot) -> JobResult:
        """Commit the removal of the rows; without rows, the result has no version."""
        number: int | None = None
        started_us = self.table.log.clock.now_us()
        for _ in range(MAX_TRIES):
            plan = self._plan(head)
            if not plan.rows_by_file:
                return JobResult(
                    operation=ERASE, table=self.table.uri, token=self.asked.token, counts={}
                )
            _refuse_savepoints(head)
            _refuse_pending(plan)
            number = claim_number(self.table.storage, head.root, ERASE, self.table.log.clock)
            try:
                return self._commit(plan, number, started_us)
            except _OvertakenError:
                head = self.table.log.refresh(head)
        raise ConflictError(
            f"{self.table.uri}: other jobs committed during each of {MAX_TRIES} tries to erase; "
            "run erase again when fewer jobs write"
        )

    def _plan(self, base: Snapshot, since: int | None = None) -> _Plan:
        """Plan from the files of a version or, if none has the rows, from older files.

        Only files that some version from `since` on names are searched, by default from the last
        erasure on: its cut deletes older files.
        """
        plan = self._search(base, [*base.files.values()])
        if plan.rows_by_file:
            return plan
        if since is None:
            since = _last_erasure(self.table, base) or 0
        return self._search(base, _replaced_files(self.table, base, since))

    def _search(self, base: Snapshot, files: Sequence[DataFile]) -> _Plan:
        """Find the rows to erase in some files."""
        spec, storage = base.spec, self.table.storage
        keys = no_keys(spec)
        if spec.has_keys:
            key_task = KeyTask(storage=storage, spec=spec, where=self.asked.where)
            # A file never changes, so that a further try reads only new files
            unread = [file for file in files if file.path not in self._keys]
            found_keys = self.table.executor.run(partial(keys_in_file, key_task), unread)
            for file, keys_of_file in zip(unread, found_keys, strict=True):
                self._keys[file.path] = keys_of_file
            keys = united([self._keys[file.path] for file in files], spec)
            if not len(keys.hashes):
                return _Plan(base=base, keys=keys, rows_by_file={})
        row_task = RowTask(storage=storage, spec=spec, where=self.asked.where, keys=keys)
        found_rows = self.table.executor.run(partial(rows_in_file, row_task), files)
        rows_by_file: dict[str, Bitmaps] = {}
        for file, rows in zip(files, found_rows, strict=True):
            if rows:
                rows_by_file[file.path] = rows
        return _Plan(base=base, keys=keys, rows_by_file=rows_by_file)

    def _commit(self, plan: _Plan, number: int, started_us: int) -> JobResult:
        """Rewrite what holds the rows, and commit; raise if overtaken by another job."""
        outputs = self._rewritten(plan, number)
        logs = self._merged_logs(plan, number)
        runs = self._filtered_runs(plan, number)
        counts = {
            **plan.counts,
            "bytes_written": sum(file.size for output in outputs for file in output.files),
            "entries": sum(run.erased for run in runs),
            "events": sum(merged.forgotten for merged in logs),
        }

        def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
            if head.version != plan.base.version:
                raise _OvertakenError
            _refuse_savepoints(head)
            rewrite = None
            if outputs:
                planned = plan_rewrite_action(head, outputs)
                rewrite = with_side_file(self.table.log, number, 0, planned)
            actions = Actions(
                rewrite=rewrite,
                add_logs=tuple(log for merged in logs for log in merged.logs),
                remove_logs=tuple(path for merged in logs for path in merged.replaced),
                removed_events=sum(merged.events for merged in logs),
                forgotten=head.spec.has_keys,
                add_runs=tuple(made for run in runs for made in run.made),
                remove_runs=tuple(run.replaced.path for run in runs),
            )
            result = JobResult(operation=ERASE, table=self.table.uri, counts=counts)
            return Draft(actions=actions, result=result, changes_view=True)

        proposal = Proposal(
            operation=ERASE,
            number=number,
            build=build,
            started_us=started_us,
            token=self.asked.token,
        )
        return self.table.log.commit(plan.base, proposal)

    def _rewritten(self, plan: _Plan, number: int) -> Sequence[Rewritten]:
        base = plan.base
        task = RewriteTask(
            storage=self.table.storage,
            spec=base.spec,
            number=number,
            target_bytes=base.spec.integer("target_mb") << 20,
        )
        works: list[BinWork] = []
        for index, file in enumerate(plan.files):
            works.append(
                BinWork(
                    position=index,
                    bin=Bin(files=(file,), codec=file.codec),
                    row_bases=row_bases_of(base, [file]),
                    droppable=plan.rows_by_file[file.path],
                )
            )
        return self.table.executor.run(partial(rewrite_bin, task), works)

    def _merged_logs(self, plan: _Plan, number: int) -> Sequence[MergedLogs]:
        works = plan_log_bins(plan.base, plan.erased)
        if not works:
            return ()
        task = LogTask(
            storage=self.table.storage,
            number=number,
            groups=segment_groups(plan.base),
            forgotten=plan.erased,
        )
        return self.table.executor.run(partial(merge_logs, task), works)

    def _filtered_runs(self, plan: _Plan, number: int) -> list[ErasedRun]:
        runs = tuple(plan.base.runs.values())
        if not runs:
            return []
        writer = replace(slot_writer(plan.base, number, self.table.cache), runs=runs, merged=())
        task = EraseRunTask(writer=writer, hashes=plan.keys.hashes)
        filtered = self.table.executor.run(partial(erase_in_run, task), runs)
        return [run for run in filtered if run is not None]

    def _nothing(self, head: Snapshot, result: JobResult) -> JobResult:
        if result.repeated:
            return result
        note = (
            "nothing to erase: no row that is stored for the versions "
            f"{head.root.oldest_version} to {head.version} meets the condition"
        )
        return keep_result(self.table.storage, replace(result, notes=(note,)))

    def _dry_run(self, head: Snapshot) -> JobResult:
        plan = self._plan(head)
        notes = ["nothing was changed: this was a dry run"]
        if plan.older_files:
            older = count_text(plan.older_files, "file")
            notes.append(f"the rows have left the newest version, and are in {older} of older ones")
        if plan.rows_by_file:
            notes.append(
                f"versions {head.root.oldest_version} to {head.version} would become unreadable"
            )
        savepoints = head.root.savepoints
        if savepoints:
            notes.append(
                f"savepoints {savepoints_text(savepoints)} hold older versions: erase refuses "
                "until they are released"
            )
        pending = _pending_rows(plan)
        if pending:
            notes.append(
                f"{count_text(pending, 'row')} of the keys are pending: erase refuses until a "
                "metagen processes them, or `opal discard` withdraws them"
            )
        return JobResult(
            operation=ERASE, table=self.table.uri, counts=plan.counts, notes=tuple(notes)
        )


def _pending_rows(plan: _Plan) -> int:
    pending = plan.base.pending
    return sum(len(rows) for segment, rows in plan.erased.items() if segment in pending)


def _refuse_pending(plan: _Plan) -> None:
    rows = _pending_rows(plan)
    if rows:
        raise InvalidInputError(
            f"{plan.base.storage.uri}: {count_text(rows, 'row')} to erase are pending, and a "
            "metagen would bring their keys back; run `opal metagen` or `opal discard` for them, "
            "then erase again"
        )


def _refuse_savepoints(head: Snapshot) -> None:
    savepoints = head.root.savepoints
    older = {name: at for name, at in savepoints.items() if at <= head.version}
    if older:
        raise InvalidInputError(
            f"{head.storage.uri}: savepoints {savepoints_text(older)} keep versions that may show "
            "the rows; release them (`opal savepoint TABLE NAME --release`), then erase again"
        )


def _replaced_files(table: OpenTable, head: Snapshot, since: int) -> list[DataFile]:
    """Return the files that the head lacks and a version from `since` on has."""
    first = max(since, head.root.oldest_version)
    files = dict(table.log.at(first, head).files)
    for commit in table.log.commits_after(first, head.version):
        for path, file in list_changes("files", table.storage, commit):
            if file is not None:
                files[str(path)] = file
    return [file for path, file in files.items() if path not in head.files]


def _last_erasure(table: OpenTable, head: Snapshot) -> int | None:
    """Return the version of the newest erasure in the log, None if there is none."""
    read = table.log.reading_back(head.root.oldest_version)
    for commit in newest_first(head, read):
        if commit.operation == ERASE:
            return commit.version
    return None


def _with_cut(result: JobResult, done: Cut) -> JobResult:
    """Return the result of an erasure, with the counts of its cut."""
    counts = {
        **result.counts,
        "deleted_files": done.deleted_files,
        "remaining_files": done.remaining_files + result.counts.get("remaining_files", 0),
    }
    return replace(result, counts=counts, notes=(*result.notes, *done.notes))
