"""The chain of commits: reading it, and adding a link to it (FORMAT, §4 and §12).

This module is built around three hazards:

- A put that fails may have written its file.
- A put that reports "exists" may be the echo of our own earlier try.
- A writer that slept may write below a log whose begin has expired.

So every put is read back by its write id, and then the versions above it are checked.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from opal_lake import layout
from opal_lake.after_commit import notify_of_commit
from opal_lake.clock import Clock
from opal_lake.definition.job_names import check_application, check_token
from opal_lake.errors import (
    CommitUnknownError,
    ConflictError,
    ExpiredError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    OpalError,
    StorageError,
    TableExistsError,
)
from opal_lake.ids import IdSource
from opal_lake.log.checkpoint import checkpoint_paths, read_checkpoint, write_checkpoint
from opal_lake.log.commit import ERASE, Commit, decode_commit, encode_readable
from opal_lake.log.conflict import Draft, Proposal, Verdict, check_positions, judge
from opal_lake.log.pages import (
    MAX_VERSIONS,
    CommitRange,
    EventReader,
    Line,
    Page,
    PageRef,
    read_cover,
    useful_pages,
    write_page,
)
from opal_lake.log.pending import undone_note
from opal_lake.log.snapshot import Root, Snapshot, chain, first_root, row_id_fault
from opal_lake.log.store_clock import clock_notes, writer_now_us
from opal_lake.log.tuning import DEFAULT_TUNING, Tuning
from opal_lake.log.version_window import is_readable, readable_text
from opal_lake.result import JobResult
from opal_lake.storage.protocol import READERS, Storage
from opal_lake.storage.verified import MAX_SEALED, read_sealed

_PUT_TRIES = 4
_MAX_LOST_RACES = 1_000
# A reader reads this many commits one after the other before it lists the log: a listing costs more
# the longer the log is
_PROBES = 8
# A follower of the log looks for a newer checkpoint once this many commits came after the last one
_FOLLOWED = 64


@dataclass(slots=True)
class Written:
    """The version that this process wrote last. A copy for another process is empty.

    `has_committed` is true once this process has committed.
    """

    state: Snapshot | None = None
    has_committed: bool = False

    def __reduce__(self) -> tuple[type["Written"], tuple[()]]:
        return Written, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLog:
    """A table's log, with the clock and the names that its writer uses.

    `creates` is true for the job that creates a table with rows: it alone sees the table before it
    is finished, and it commits version 1 or nothing.
    """

    storage: Storage
    clock: Clock
    ids: IdSource
    tuning: Tuning = DEFAULT_TUNING
    creates: bool = False
    on_derived_failure: Callable[[Exception], None] = field(default=lambda _: None)
    written: Written = field(default_factory=Written, compare=False, repr=False)

    def head(self, *, to_commit: bool = False) -> Snapshot:
        """Return the newest version.

        If retention deletes the start of the log during the read, the read starts again from a
        newer checkpoint. With `to_commit`, a writer goes on from the version that it wrote, and the
        end of the log is not verified: the commit itself does that.

        Raises NotFoundError for a table whose creation is not finished.
        """
        head = self.newest(to_commit=to_commit)
        if head.root.unfinished and not self.creates:
            raise NotFoundError(
                f"{self.storage.uri} is not an Opal table yet, but an unfinished one: the "
                "statement that creates it with its rows still runs, or was killed; run it again "
                "to finish the table, or DROP TABLE it"
            )
        if self.creates and head.version > 0 and not self.written.has_committed:
            raise self._created_meanwhile()
        return head

    def _created_meanwhile(self) -> TableExistsError:
        return TableExistsError(
            f"{self.storage.uri} is an Opal table already: another job created it meanwhile"
        )

    def _check_begun(self, link: Commit) -> None:
        """Raise ConflictError if the unfinished table is removed, or was.

        The job that began it may remove it, see `opal_lake.retention.drop`.
        """
        is_removed = any(self.storage.list(layout.DROPPED))
        # The marker comes before the deletion, and goes after it
        first = None if is_removed else self._read_unless_gone(0)
        if first is None or first.write_id != link.previous_write_id:
            raise ConflictError(
                f"{self.storage.uri}: the unfinished table was removed meanwhile, and with it the "
                f"files of this {link.operation}; run it again"
            )

    def newest(self, *, to_commit: bool = False) -> Snapshot:
        """Return the newest version, also of a table whose creation is not finished."""
        if to_commit:
            known = self._from_written()
            if known is not None:
                return known
        last_tried = None
        while True:
            try:
                checkpoint = read_checkpoint(self.storage, None)
                return self._extend(checkpoint, None, to_commit=to_commit)
            except (FormatError, NotFoundError):
                newest = next(checkpoint_paths(self.storage), None)
                if newest == last_tried:
                    raise
                last_tried = newest

    def _from_written(self) -> Snapshot | None:
        """Return the newest version, read from the one that this process wrote last.

        None if this process wrote nothing, if the path has another table by now, or if so many
        commits were added since then that a checkpoint is nearer.
        """
        state = self.written.state
        if state is None:
            return None
        try:
            written = self.read_commit(state.version)
            if written.write_id != state.root.write_id:
                return None
            head = self._extend(state, None, to_commit=True)
        except (FormatError, NotFoundError):
            return None
        return head if len(head.commits) <= _PROBES else None

    def at(self, version: int, head: Snapshot | None = None) -> Snapshot:
        """Return a version; raise NotFoundError or ExpiredError if it is not readable.

        Files of an expired version may be deleted, even if its metadata still exists. The root of
        `head` decides which versions are readable; without `head`, that of the newest version.
        """
        if head is None:
            head = self._head_if_sound()
        if head is not None and not is_readable(head.root, version):
            raise NotFoundError(_unreadable(self.storage.uri, head.root, version))
        if head is not None and head.version == version:
            return head
        try:
            return self._folded(version, head)
        except (FormatError, NotFoundError) as error:
            if head is None:
                raise
            # A retention may have deleted the version after the head was read
            newer = self.head().root
            if is_readable(newer, version):
                raise
            raise ExpiredError(_unreadable(self.storage.uri, newer, version)) from error

    def _folded(self, version: int, head: Snapshot | None) -> Snapshot:
        """Return a version, folded from the checkpoint before it and the commits since.

        The commits of `head` are not read again. Raises FormatError if a commit is missing.
        """
        start = read_checkpoint(self.storage, version) if version >= 0 else None
        snapshot = self._extend(start, version, head.commits if head else ())
        if snapshot.version != version:
            missing = self._first_missing(snapshot.version, version)
            raise FormatError(
                f"{self.storage.uri}/{missing} is missing; restore the file from a backup"
            )
        return snapshot

    def _head_if_sound(self) -> Snapshot | None:
        """Return the newest version, or None if it is damaged.

        Older versions may still be intact then.
        """
        try:
            return self.head()
        except FormatError:
            return None

    def _first_missing(self, reached: int, version: int) -> str:
        """Return the path of the first missing commit after `reached`, up to `version`."""
        entries = self.storage.list(layout.LOG)
        logged = {layout.commit_version(entry.path) for entry in entries}
        for number in range(reached + 1, version):
            if number not in logged:
                return layout.commit_path(number)
        return layout.commit_path(version)

    def refresh(self, snapshot: Snapshot) -> Snapshot:
        """Return the newest version, by reading only the commits after a known snapshot."""
        try:
            return self._extend(snapshot, None)
        except (FormatError, NotFoundError):
            # The log after the snapshot may have expired meanwhile
            newest = read_checkpoint(self.storage, None)
            if newest is None or newest.version <= snapshot.version:
                raise
            return self._extend(newest, None)

    def follow(self, snapshot: Snapshot) -> Snapshot:
        """Return the newest version like `refresh`, for callers that ask again and again.

        Once the snapshot holds many commits, those up to the newest checkpoint are dropped:
        otherwise a long-lived caller would hold every commit that it ever saw.
        """
        newest = self.refresh(snapshot)
        if len(newest.commits) < _FOLLOWED:
            return newest
        start = read_checkpoint(self.storage, newest.version)
        if start is None:
            return newest
        write_ids = {commit.version: commit.write_id for commit in newest.commits}
        is_of_this_chain = write_ids.get(start.version) == start.root.write_id
        if not is_of_this_chain:
            return newest
        later = tuple(commit for commit in newest.commits if commit.version > start.version)
        return Snapshot(self.storage, newest.root, start.sections, later)

    def read_commit(self, version: int) -> Commit:
        """Read the commit of a version; raise NotFoundError if its file does not exist."""
        path = layout.commit_path(version)
        commit = decode_commit(read_sealed(self.storage, path), f"{self.storage.uri}/{path}")
        if commit.version != version:
            raise FormatError(
                f"{self.storage.uri}/{path} holds version {commit.version} instead of "
                f"{version}; restore the file from a backup"
            )
        return commit

    def reading_back(self, oldest: int) -> Callable[[int], Commit]:
        """Return a `read_commit` that reads ahead, down to the `oldest` version."""
        return BackwardReader(self, oldest)

    def _extend(
        self,
        start: Snapshot | None,
        up_to: int | None,
        at_hand: Sequence[Commit] = (),
        *,
        to_commit: bool = False,
    ) -> Snapshot:
        """Return the state after `start` and the commits that follow it.

        Without a `start`, the commits begin with version 0. They end with version `up_to`, or with
        the newest one if it is None. `at_hand` are commits that need not be read again.
        """
        version = start.version if start else -1
        commits: Sequence[Commit]
        if up_to is None:
            commits = self._to_the_end(start, to_commit)
        else:
            commits = self.range_after(version, up_to, at_hand).commits
        if start is None:
            if not commits or commits[0].version != 0:
                raise NotFoundError(self._no_table(has_log=bool(commits)))
            first = commits[0]
            start = Snapshot(self.storage, first_root(first), {}, (first,))
            commits = commits[1:]
        if not commits:
            return start
        return start.followed_by(chain(commits, start))

    def _no_table(self, *, has_log: bool) -> str:
        """Return the message for a path at which no table can be read."""
        uri = self.storage.uri
        if any(self.storage.list(layout.DROPPED)):
            return f"{uri} is being dropped, or its drop was killed; drop it again to finish that"
        if has_log:
            return (
                f"{uri}/{layout.commit_path(0)}, the first commit of the log, is missing, and no "
                f"checkpoint replaces it; restore {layout.META} from a backup"
            )
        other = next(iter(self.storage.list("")), None)
        if other is None:
            content = "the folder does not exist, or is empty"
        else:
            content = f"it holds {other.path!r}, but no {layout.LOG}"
        return (
            f"{uri} is not an Opal table: {content}; check the path, or create a table with "
            "OpalTable.create or `opal create`"
        )

    def _to_the_end(self, start: Snapshot | None, to_commit: bool) -> list[Commit]:
        """Return the commits after a start, up to the newest one.

        Up to `_PROBES` commits are read by their names, one after the other. The log is listed only
        if there are more of them, or if it is unclear where the log ends.
        """
        commits: list[Commit] = []
        version = start.version if start else -1
        while len(commits) < _PROBES:
            commit = self._read_unless_gone(version + len(commits) + 1)
            if commit is None:
                break
            commits.append(commit)
        end = version + len(commits)
        # If the version after the missing one exists, the log has a hole, which a listing shows
        is_end = len(commits) < _PROBES and self._read_unless_gone(end + 2) is None
        # Without version 0 only a listing shows what the log holds
        is_trusted = end >= 0 and (to_commit or self._none_was_deleted(start, commits))
        if is_end and is_trusted:
            return commits
        return commits + self.commits_after(end)

    def _none_was_deleted(self, start: Snapshot | None, commits: Sequence[Commit]) -> bool:
        """Return whether no commit after `start`, nor the next one, was ever deleted.

        The name of a deleted commit is free again, so that a stalled writer may have taken it. The
        vouchers of the versions prove that this did not happen (FORMAT, §12).
        """
        if start is None:
            return False
        write_ids = {commit.version: commit.write_id for commit in commits}
        known = {**start.root.vouchers, **write_ids}
        versions = range(start.version + 1, start.version + len(commits) + 2)
        vouching_versions = {layout.vouching_version(version) for version in versions}
        return all(self._vouches(known, vouching) for vouching in vouching_versions)

    def _vouches(self, known: Mapping[int, str], vouching: int | None) -> bool:
        """Return whether the commit of a vouching version still exists unchanged.

        `known` are write ids by version. False if the version is not among them, or if its commit
        cannot be read.
        """
        if vouching is None or vouching not in known:
            return False
        try:
            return self.read_commit(vouching).write_id == known[vouching]
        except (FormatError, NotFoundError, StorageError):
            return False

    def commits_after(self, version: int, up_to: int | None = None) -> list[Commit]:
        """Return the commits after a version up to another or the newest, oldest first."""
        if up_to is None:
            return self._listed_after(version, None)
        return [*self.range_after(version, up_to).commits]

    def range_after(self, version: int, up_to: int, at_hand: Sequence[Commit] = ()) -> CommitRange:
        """Return the commits after a version up to another one, oldest first.

        A commit is taken from those at hand, or else from a page if that saves requests, or else
        from the log. The newest commit that is not at hand is read from the log, unless a commit at
        hand names its write id. Every other one must have the write id that its successor names: a
        page may be of another chain.
        """
        known = {commit.version: commit for commit in at_hand if version < commit.version}
        # The newest version that is not at hand
        top = up_to
        while top in known:
            top -= 1
        newer = [known[number] for number in range(top + 1, up_to + 1)]
        follower = known.get(top + 1)
        refs = useful_pages(self.storage, version + 1, top, self.tuning)
        if refs:
            paged = self._paged(version, top, follower, refs)
            if paged is not None:
                return replace(paged, commits=[*paged.commits, *newer])
        older = self._listed_after(version, top) if top > version else []
        return CommitRange(commits=[*older, *newer])

    def _paged(
        self, version: int, top: int, follower: Commit | None, refs: Sequence[PageRef]
    ) -> CommitRange | None:
        """Return the commits after a version up to `top`, as far as possible from pages.

        `follower` is the commit after `top`, if it is known. None if a commit is neither in a page
        nor in the log, or if the commits are not one chain.
        """
        newest = self._read_unless_gone(top) if follower is None else follower
        if newest is None:
            return None
        pages = read_cover(self.storage, newest.table_id, refs, version + 1, top)
        page_of_version = {number: page for page in pages for number in page.commits}
        # Commits below the pages may have expired: if they are many, a listing shows which exist
        paged_versions = [number for number in page_of_version if number > version]
        begin = min([top, *paged_versions]) - 1
        if begin - version <= _PROBES:
            begin = version
        from_log: dict[int, Commit | None] = {}
        if follower is None:
            from_log[top] = newest
        available = page_of_version.keys() | from_log.keys()
        single = [number for number in range(begin + 1, top + 1) if number not in available]
        with ThreadPoolExecutor(READERS) as pool:
            from_log |= zip(single, pool.map(self._read_unless_gone, single), strict=True)
        newer, copied = self._walk_back(range(top, begin, -1), follower, from_log, page_of_version)
        if len(newer) < top - begin:
            return None
        older = self._listed_after(version, begin) if begin > version else []
        if older and older[-1].write_id != newer[-1].previous_write_id:
            return None
        events: dict[str, Line] = {}
        for page in pages:
            copied_from_page = {number for number in copied if page_of_version[number] is page}
            events |= page.events_of(copied_from_page)
        return CommitRange(commits=[*older, *reversed(newer)], events=events)

    def _walk_back(
        self,
        versions: range,
        follower: Commit | None,
        from_log: Mapping[int, Commit | None],
        page_of_version: Mapping[int, Page],
    ) -> tuple[list[Commit], set[int]]:
        """Return commits newest first, and the versions with a valid copy in a page.

        A copy is valid if its write id is the one that the next commit names. `from_log`
        has the commits that were read from the log, None for a missing one. The walk ends before
        the first version whose commit is neither in the log nor in a page.
        """
        commits: list[Commit] = []
        copied: set[int] = set()
        expected_id = None if follower is None else follower.previous_write_id
        for number in versions:
            commit = from_log.get(number)
            if commit is not None:
                expected_id = commit.write_id
            page = page_of_version.get(number)
            copy = None if page is None else page.copies(number, expected_id)
            if copy is not None:
                copied.add(number)
            if commit is None:
                commit = copy
            if commit is None and number not in from_log:
                commit = self._read_unless_gone(number)
            if commit is None:
                break
            commits.append(commit)
            expected_id = commit.previous_write_id
        return commits, copied

    def _listed_after(self, version: int, up_to: int | None) -> list[Commit]:
        """Return the commits in a listing of the log after a version, up to another one.

        Raises NotFoundError if one of them disappears after the listing, unless retention deletes
        the oldest ones.
        """
        start_after = layout.commit_path(version) if version >= 0 else ""
        versions = []
        for entry in self.storage.list(layout.LOG, start_after):
            number = layout.commit_version(entry.path)
            if number is None:
                continue
            if up_to is not None and number > up_to:
                break
            versions.append(number)
        if len(versions) <= 1:
            return [self.read_commit(number) for number in versions]
        with ThreadPoolExecutor(READERS) as pool:
            commits = list(pool.map(self._read_unless_gone, versions))
        while commits and commits[0] is None:
            del commits[0]  # retention deletes from the begin of the log
        if None in commits:
            # Read again one by one, which raises the error of the missing commit
            return [self.read_commit(number) for number in versions]
        return [commit for commit in commits if commit is not None]

    def _read_unless_gone(self, version: int) -> Commit | None:
        """Read a commit; return None if its file does not exist."""
        try:
            return self.read_commit(version)
        except NotFoundError:
            return None

    def commit(self, base: Snapshot, proposal: Proposal) -> JobResult:
        """Add a commit of the proposal to the log, and return its result.

        The draft is built again after each lost race. If an earlier run with the same token or
        sequence committed, nothing is added, and the result of that run is returned.
        """
        uri = self.storage.uri
        head = base
        for lost in range(_MAX_LOST_RACES):
            if lost > 0 or not proposal.skips_refresh:
                head = self.refresh(head)
            if self.creates and base.version == 0 < head.version:
                raise self._created_meanwhile()
            earlier = self.earlier_result(
                head, proposal.operation, proposal.token, proposal.application
            )
            if earlier is not None:
                return earlier
            check_positions(head, proposal.positions, self.read_commit)
            if proposal.number in head.root.abandoned:
                raise ConflictError(
                    f"retention gave up job {proposal.number}, which ran longer than the grace of "
                    "the retention; run the job again"
                )
            winners = self._winners(base, head, proposal.operation)
            verdict = judge(proposal.operation, base.root, winners)
            draft = proposal.build(head, winners if verdict is Verdict.REDO else [])
            if draft is None:
                return JobResult(operation=proposal.operation, table=uri, token=proposal.token)
            draft.actions.check_reported(proposal.number)
            link = self._link(head, proposal, draft)
            fault = row_id_fault(head.root, link)
            if fault is not None:
                raise FormatError(
                    f"{uri}: version {link.version} was not written: {fault}; run `opal check`"
                )
            if self.creates and link.version == 1:
                self._check_begun(link)
            if self.put(link):
                self._after(head, link)
                notify_of_commit(self, partial(head.followed_by, [link]))
                return result_of(link)
        raise StorageError(
            f"{uri}: this {proposal.operation} lost {_MAX_LOST_RACES:,} races against other "
            "writers and committed nothing; run it again with fewer concurrent writers"
        )

    def _winners(self, base: Snapshot, head: Snapshot, operation: str) -> list[Commit]:
        """Return the commits after a job's base; raise ExpiredError if some have expired."""
        winners = [commit for commit in head.commits if commit.version > base.version]
        has_gap = len(winners) != head.version - base.version
        # Files of expired versions may be deleted even if every commit since then still exists
        is_expired = base.version < head.root.oldest_version
        if has_gap or is_expired:
            raise ExpiredError(
                f"the log after version {base.version}, where this {operation} began, has expired; "
                f"the readable versions are now {readable_text(head.root)}; run it again"
            )
        return winners

    def earlier_result(
        self,
        head: Snapshot,
        operation: str,
        token: str | None,
        application: tuple[str, int] | None = None,
    ) -> JobResult | None:
        """Return the result of an earlier run with this token or sequence.

        A later sequence of the application counts, too. None without such a run. Raises
        InvalidInputError for the token of an ingest whose rows were discarded: its result would
        report rows that the table does not have. If a restore undid the earlier run, a note of the
        result names that restore.
        """
        check_token(token)
        check_application(application)
        if token is not None:
            applied = head.version_of_token(token)
            if applied is not None:
                return self._repeated(head, operation, token, applied)
        if application is None:
            return None
        name, sequence = application
        last_applied = head.root.applications.get(name, -1)
        if last_applied < sequence:
            return None
        return JobResult(operation=operation, table=self.storage.uri, token=token, repeated=True)

    def _repeated(self, head: Snapshot, operation: str, token: str, applied: int) -> JobResult:
        """Return the result of version `applied`, which has the token, marked as repeated.

        Raises InvalidInputError if that version is of another operation.
        """
        earlier = self._result_in(applied, operation, token)
        if earlier.operation != operation:
            raise InvalidInputError(
                f"token {token!r} was used by the {earlier.operation} of version "
                f"{earlier.version}; give this {operation} another token"
            )
        notes = earlier.notes
        if operation == "ingest":
            read_back = self.reading_back(head.root.oldest_version)
            undone = undone_note(head, token, self.read_commit, read_back)
            if undone is not None:
                notes = (*notes, undone)
        return replace(earlier, repeated=True, notes=notes)

    def _result_in(self, version: int, operation: str, token: str) -> JobResult:
        """Return the result that a version's commit carries.

        If the commit has expired, the result has only a note that says so.
        """
        try:
            return result_of(self.read_commit(version))
        except NotFoundError:
            return JobResult(
                operation=operation,
                table=self.storage.uri,
                version=version,
                token=token,
                notes=(f"its result has expired with version {version}",),
            )

    def _link(self, head: Snapshot, proposal: Proposal, draft: Draft) -> Commit:
        """Return the commit of a draft as the version after the head."""
        version = head.version + 1
        uri = self.storage.uri
        own_us = self.clock.now_us()
        store_us = self.storage.now_us()
        repair = draft.actions.corrected_times
        # I3: timestamps increase strictly, after a repair from its last corrected time on
        previous_us = head.root.timestamp_us if repair is None else repair.times_us[-1]
        timestamp_us = max(writer_now_us(own_us, store_us, head.spec, uri), previous_us + 1)
        notes = draft.result.notes
        if repair is None:
            notes = (*notes, *clock_notes(store_us, head.root, uri))
        total_us = max(0, own_us - proposal.started_us)
        result = replace(
            draft.result,
            version=version,
            token=proposal.token,
            timings_ms={"total": total_us // 1000},
            notes=notes,
        )
        epoch = head.root.epoch
        if draft.actions.restored is not None or proposal.operation == ERASE:
            epoch += 1
        first_row_id = head.root.next_row_id if draft.actions.gives_row_ids else None
        return Commit(
            version=version,
            table_id=head.root.table_id,
            write_id=self.ids.new_id(),
            previous_write_id=head.root.write_id,
            timestamp_us=timestamp_us,
            operation=proposal.operation,
            writer_us=None if own_us == timestamp_us else own_us,
            number=proposal.number,
            token=proposal.token,
            application=proposal.application,
            positions=proposal.positions,
            partition_key=proposal.partition_key,
            business_snapshot=proposal.business_snapshot,
            epoch=epoch,
            first_row_id=first_row_id,
            changes_view=draft.changes_view,
            result=result.to_dict(),
            actions=draft.actions,
        )

    def put(self, link: Commit) -> bool:
        """Write a commit, and return whether the log has it now.

        False if another writer's commit took the version. Raises CommitUnknownError if it cannot be
        found out which commit the version has.
        """
        data = encode_readable(link)
        path = layout.commit_path(link.version)
        if len(data) > MAX_SEALED:
            raise InvalidInputError(
                f"the commit of version {link.version} would have {len(data):,} bytes, more than "
                f"the allowed {MAX_SEALED:,}; split the {link.operation} into several smaller ones"
            )
        failure: Exception | None = None
        for _ in range(_PUT_TRIES):
            try:
                if self.storage.put_if_absent(path, data):
                    return True
                return self._is_written(link)
            except (StorageError, NotFoundError) as error:
                if failure is None and isinstance(error, NotWrittenError):
                    raise
                failure = error
            # The failed put may have written the file. If reading it back fails as well, the
            # message names the failure of the put, which explains more.
            with suppress(StorageError, NotFoundError):
                return self._is_written(link)
        raise CommitUnknownError(
            f"{self.storage.uri}: it is unknown whether version {link.version} was written "
            f"({failure}); run the {link.operation} again with the same token"
        )

    def _is_written(self, link: Commit) -> bool:
        """Return whether the commit in the log is this one, and not another writer's."""
        return self.read_commit(link.version).write_id == link.write_id

    @contextmanager
    def derived(self) -> Iterator[None]:
        """Report failures to write derived files, instead of raising them.

        The commit that they are derived from stands, and a later writer can write them again.
        """
        try:
            yield
        except (OpalError, OSError, MemoryError) as error:
            self.on_derived_failure(error)

    def _after(self, head: Snapshot, link: Commit) -> None:
        """Check a commit that was just written, and write the files that are due after it."""
        self.written.state = None
        self.written.has_committed = True
        self._check_not_below_expired_log(head, link)
        with self.derived():
            state = head.followed_by([link])
            is_due = link.version % head.spec.integer("checkpoint_commits") == 0
            is_new_epoch = link.epoch != head.root.epoch
            if is_due or is_new_epoch:
                events = EventReader(self.storage)
                # The page comes first: if a writer dies in between, the next page takes its commits
                self._write_page(state, events)
                state = write_checkpoint(self.storage, state, read=events.read, tuning=self.tuning)
            self.written.state = state

    def _write_page(self, state: Snapshot, events: EventReader) -> None:
        step = state.spec.integer("checkpoint_commits")
        if state.version % step == 0:
            with self.derived():
                write_page(state, step, self.read_commit, events, tuning=self.tuning)

    def _check_not_below_expired_log(self, head: Snapshot, link: Commit) -> None:
        """Raise ConflictError if the version was free only because it had been deleted."""
        if self._vouches(head.root.vouchers, layout.vouching_version(link.version)):
            return
        higher, follower = self._above(link.version)
        is_followed = follower is not None and follower.previous_write_id == link.write_id
        if higher and not is_followed:
            raise ConflictError(
                f"{self.storage.uri}: version {link.version} was written too late: the log has "
                f"reached version {max(higher)} without it; run the {link.operation} again"
            )

    def _above(self, version: int) -> tuple[list[int], Commit | None]:
        """Return the versions in the log above one, and the commit right after it, if any."""
        failure: Exception | None = None
        for _ in range(_PUT_TRIES):
            try:
                higher: list[int] = []
                for entry in self.storage.list(layout.LOG, layout.commit_path(version)):
                    number = layout.commit_version(entry.path)
                    if number is not None:
                        higher.append(number)
                follower = self.read_commit(version + 1) if version + 1 in higher else None
            except (StorageError, NotFoundError) as error:
                failure = error
            else:
                return higher, follower
        raise CommitUnknownError(
            f"{self.storage.uri}: version {version} was written, but the log above it could not be "
            f"read ({failure}); run again with the same token, or, without a token, only if "
            "`opal history` does not show the version"
        )


class BackwardReader:
    """A reader of commits in descending order, which reads ever larger portions ahead."""

    def __init__(self, log: CommitLog, oldest: int) -> None:
        self._log = log
        self._oldest = oldest
        self._at_hand: dict[int, Commit] = {}
        self._portion = _PROBES

    def __call__(self, version: int) -> Commit:
        if version not in self._at_hand:
            self._fetch(version)
        commit = self._at_hand.get(version)
        if commit is None:
            return self._log.read_commit(version)
        return commit

    def _fetch(self, version: int) -> None:
        """Read a portion of commits that ends with a version.

        If one of them cannot be read, none is kept: the caller may never ask for that one.
        """
        after = max(self._oldest, version - self._portion)
        follower = self._at_hand.get(version + 1)
        at_hand = () if follower is None else (follower,)
        try:
            read = self._log.range_after(after, version, at_hand)
        except (FormatError, NotFoundError):
            # The next calls meet the same fault: a large portion for each of them would read the
            # log many times
            self._portion = _PROBES
        else:
            self._portion = min(2 * self._portion, MAX_VERSIONS)
            self._at_hand = {commit.version: commit for commit in read.commits}


def _unreadable(uri: str, root: Root, version: int) -> str:
    """Return the message for a version that is not readable."""
    if 0 <= version < root.oldest_version:
        fault = f"version {version} of {uri} has expired"
    else:
        fault = f"{uri} has no version {version}"
    return f"{fault}; the readable versions are {readable_text(root)}"


def result_of(commit: Commit) -> JobResult:
    """Return the JobResult that a commit carries."""
    return JobResult.from_dict(commit.result)
