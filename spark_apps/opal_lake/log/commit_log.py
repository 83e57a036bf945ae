"""The chain of commits: reading it, and adding a link to it (FORMAT, commits).

Hazards that this module is built around: a put that fails may have landed; a put that reports 'exists' may be the echo of our own; and a
writer that slept may write below an expired log. So every put is read back by its write id, and then the versions above it are checked.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from opal_lake import layout
from opal_lake.after_commit import tell_of_commit
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
)
from opal_lake.ids import IdSource
from opal_lake.log.checkpoint import checkpoint_paths, read_checkpoint, write_checkpoint
from opal_lake.log.commit import Commit, decode_commit, encode_readable
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
from opal_lake.log.version_window import is_readable, readable_text
from opal_lake.result import JobResult
from opal_lake.storage.protocol import READERS, Storage
from opal_lake.storage.verified import MOST_SEALED, read_sealed

_PUT_TRIES = 4
_LOST_RACES = 1_000
_PROBES = 8  # commits that are read one after the other before the log is listed
_FOLLOWED = 64  # commits behind a checkpoint before one that follows the log looks for a newer one


@dataclass(slots=True)
class Written:
    """The version that this process wrote last. A copy for another process holds none."""

    state: Snapshot | None = None

    def __reduce__(self) -> tuple[type["Written"], tuple[()]]:
        return Written, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLog:
    """A table's log, with the clock and the names that its writer uses."""

    storage: Storage
    clock: Clock
    ids: IdSource
    on_derived_failure: Callable[[Exception], None] = field(default=lambda _: None)
    written: Written = field(default_factory=Written, compare=False, repr=False)

    def head(self, *, to_commit: bool = False) -> Snapshot:
        """The newest version. If retention deletes the start of the log during the read, the read starts again from a newer checkpoint.

        With `to_commit`, the end of the log is not verified: the commit itself does that. A writer goes on from the version that it wrote.
        """
        if to_commit and (known := self._from_written()) is not None:
            return known
        tried = None
        while True:
            try:
                return self._extend(read_checkpoint(self.storage, None), None, to_commit=to_commit)
            except (FormatError, NotFoundError):
                newest = next(checkpoint_paths(self.storage), None)
                if newest == tried:
                    raise
                tried = newest

    def _from_written(self) -> Snapshot | None:
        """None if this is another table by now, or if so much came since that a checkpoint is nearer."""
        state = self.written.state
        try:
            if state is None or self.read_commit(state.version).write_id != state.root.write_id:
                return None
            head = self._extend(state, None, to_commit=True)
        except (FormatError, NotFoundError):
            return None
        return head if len(head.commits) <= _PROBES else None

    def at(self, version: int, head: Snapshot | None = None) -> Snapshot:
        """That version, unless it has expired: files of an expired version may be deleted, even if its metadata is left.

        If the caller gives a head, what is readable is decided by that head.
        """
        head = head or self._head_if_sound()
        if head is not None and not is_readable(head.root, version):
            raise NotFoundError(
                f"{self.storage.uri} {_absence(head.root, version)}; readable are {readable_text(head.root)}"
            )
        if head is not None and head.version == version:
            return head
        try:
            return self._folded(version, head)
        except (FormatError, NotFoundError) as error:
            newer = None if head is None else self.head().root  # retention may have been faster
            if newer is None or is_readable(newer, version):
                raise
            raise ExpiredError(
                f"{self.storage.uri} {_absence(newer, version)}; readable are {readable_text(newer)}"
            ) from error

    def _folded(self, version: int, head: Snapshot | None) -> Snapshot:
        start = read_checkpoint(self.storage, version) if version >= 0 else None
        snapshot = self._extend(start, version, head.commits if head else ())
        if snapshot.version != version:
            raise FormatError(
                f"{self.storage.uri}/{self._missing(snapshot.version, version)} is missing; restore the file from a backup"
            )
        return snapshot

    def _head_if_sound(self) -> Snapshot | None:
        """None if it is damaged: older versions may be intact."""
        try:
            return self.head()
        except FormatError:
            return None

    def _missing(self, reached: int, version: int) -> str:
        """The first missing commit between two versions."""
        logged = {layout.commit_version(entry.path) for entry in self.storage.list(layout.LOG)}
        return layout.commit_path(
            next(
                (number for number in range(reached + 1, version) if number not in logged), version
            )
        )

    def refresh(self, snapshot: Snapshot) -> Snapshot:
        """The newest version, read from a known one on."""
        try:
            return self._extend(snapshot, None)
        except (FormatError, NotFoundError):
            newest = read_checkpoint(
                self.storage, None
            )  # the log after the snapshot may have expired meanwhile
            if newest is None or newest.version <= snapshot.version:
                raise
            return self._extend(newest, None)

    def follow(self, snapshot: Snapshot) -> Snapshot:
        """As `refresh`, for those who ask again and again: what a newer checkpoint holds is let go, else all commits would gather."""
        newest = self.refresh(snapshot)
        if len(newest.commits) < _FOLLOWED:
            return newest
        start = read_checkpoint(self.storage, newest.version)
        known = {commit.version: commit.write_id for commit in newest.commits}
        if start is None or known.get(start.version) != start.root.write_id:
            return newest
        return Snapshot(
            self.storage,
            newest.root,
            start.sections,
            tuple(one for one in newest.commits if one.version > start.version),
        )

    def read_commit(self, version: int) -> Commit:
        path = layout.commit_path(version)
        commit = decode_commit(read_sealed(self.storage, path), f"{self.storage.uri}/{path}")
        if commit.version != version:
            raise FormatError(
                f"{self.storage.uri}/{path} holds version {commit.version}; restore the file from a backup"
            )
        return commit

    def reading_back(self, oldest: int) -> Callable[[int], Commit]:
        """Return a `read_commit` for callers that go from a version down to the oldest one."""
        return BackwardReader(self, oldest)

    def _extend(
        self,
        start: Snapshot | None,
        up_to: int | None,
        at_hand: Sequence[Commit] = (),
        *,
        to_commit: bool = False,
    ) -> Snapshot:
        version = start.version if start else -1
        commits = (
            self._to_the_end(start, to_commit)
            if up_to is None
            else self._commits_after(version, up_to, at_hand)
        )
        if start is None:
            if not commits or commits[0].version != 0:
                raise NotFoundError(self._no_table(bool(commits)))
            root = first_root(commits[0])
            start = Snapshot(self.storage, root, {}, (commits[0],))
            commits = commits[1:]
        return start.followed_by(chain(commits, start)) if commits else start

    def _no_table(self, has_log: bool) -> str:
        if has_log:
            first = f"{self.storage.uri}/{layout.commit_path(0)}"
            return f"{first}, where the log begins, is missing, and no checkpoint replaces it; restore {layout.META} from a backup"
        other = next(iter(self.storage.list("")), None)
        seen = (
            f"it holds {other.path!r}, but no {layout.LOG}"
            if other
            else "the folder does not exist, or is empty"
        )
        way_out = "check the path, or make a table with OpalTable.create or `opal create`"
        return f"{self.storage.uri} is no Opal table: {seen}; {way_out}"

    def _to_the_end(self, start: Snapshot | None, to_commit: bool) -> list[Commit]:
        """The commits after a version. A listing costs more the longer the log is: the log is listed only if they are many, or in doubt."""
        commits: list[Commit] = []
        version = start.version if start else -1
        while len(commits) < _PROBES:
            after = self._read_unless_gone(version + len(commits) + 1)
            if after is None:
                break
            commits.append(after)
        end = version + len(commits)
        is_end = len(commits) < _PROBES and self._read_unless_gone(end + 2) is None
        is_told = end >= 0 and (
            to_commit or self._none_was_deleted(start, commits)
        )  # without version 0 a listing says what there is
        return commits if is_end and is_told else commits + self.commits_after(end)

    def _none_was_deleted(self, start: Snapshot | None, commits: Sequence[Commit]) -> bool:
        """Whether neither the versions after `start`, nor the next one, have ever been deleted (FORMAT, vouchers).

        If one was, its name became free again, and the file may be that of a stalled writer.
        """
        if start is None:
            return False
        known = {**start.root.vouchers, **{commit.version: commit.write_id for commit in commits}}
        versions = range(start.version + 1, start.version + len(commits) + 2)
        return all(
            self._vouches(known, vouching)
            for vouching in {layout.vouching_version(version) for version in versions}
        )

    def _vouches(self, known: Mapping[int, str], vouching: int | None) -> bool:
        """Whether the known commit of this version still exists; False also if that is unknown."""
        if vouching is None or vouching not in known:
            return False
        try:
            return self.read_commit(vouching).write_id == known[vouching]
        except (FormatError, NotFoundError, StorageError):
            return False

    def _commits_after(
        self, version: int, up_to: int | None, at_hand: Sequence[Commit]
    ) -> list[Commit]:
        """The store is read only if those at hand are not enough."""
        if up_to is None:
            return self.commits_after(version)
        return [*self.range_after(version, up_to, at_hand).commits]

    def commits_after(self, version: int, up_to: int | None = None) -> list[Commit]:
        """The commits that the log has after a version, oldest first."""
        if up_to is not None:
            return [*self.range_after(version, up_to).commits]
        return self._listed_after(version, None)

    def range_after(self, version: int, up_to: int, at_hand: Sequence[Commit] = ()) -> CommitRange:
        """The commits after a version up to another one, oldest first, from pages where they save requests.

        The last one is read from the log, or follows from those at hand. Every other one is what
        the one behind it names as its predecessor, so that a page of another chain is not believed.
        """
        known = {commit.version: commit for commit in at_hand if version < commit.version}
        top = up_to
        while top in known:
            top -= 1
        newer = [known[number] for number in range(top + 1, up_to + 1)]
        behind = known.get(top + 1)
        refs = useful_pages(self.storage, version + 1, top)
        if refs:
            paged = self._paged(version, top, behind, refs)
            if paged is not None:
                return replace(paged, commits=[*paged.commits, *newer])
        older = self._listed_after(version, top) if top > version else []
        return CommitRange(commits=[*older, *newer])

    def _paged(
        self, version: int, top: int, behind: Commit | None, refs: Sequence[PageRef]
    ) -> CommitRange | None:
        """The commits after a version, partly from pages; None if one of them is in no page and not in the log.

        `behind` is the commit that follows, if it is known.
        """
        newest = self._read_unless_gone(top) if behind is None else behind
        if newest is None:
            return None
        read_back = read_cover(self.storage, newest.table_id, refs, version + 1, top)
        pages = {
            number: page for page in read_back for number in page.commits if version < number <= top
        }
        begin = min([top, *pages]) - 1  # what is below may have expired: a listing tells
        if begin - version <= _PROBES:
            begin = version
        at_hand = {} if behind is not None else {top: newest}
        single = [
            number
            for number in range(begin + 1, top + 1)
            if number not in pages and number not in at_hand
        ]
        with ThreadPoolExecutor(READERS) as pool:
            read: dict[int, Commit | None] = dict(
                zip(single, pool.map(self._read_unless_gone, single), strict=True)
            )
        read |= at_hand
        accepted: dict[int, Page] = {}  # the pages of the copies that are in the chain
        expected = None if behind is None else behind.previous_write_id
        newer: list[Commit] = []
        for number in range(top, begin, -1):
            commit = read.get(number)
            if commit is not None:
                expected = commit.write_id
            page = pages.get(number)
            copy = None if page is None else page.copies(number, expected)
            if page is not None and copy is not None:
                accepted[number] = page
            if number not in read:
                commit = copy or self._read_unless_gone(number)
            if commit is None:
                return None
            newer.append(commit)
            expected = commit.previous_write_id
        older = self._listed_after(version, begin) if begin > version else []
        if older and older[-1].write_id != expected:
            return None
        events: dict[str, Line] = {}
        for page in read_back:
            events |= page.events_of({v for v, holder in accepted.items() if holder is page})
        return CommitRange(commits=[*older, *reversed(newer)], events=events)

    def _listed_after(self, version: int, up_to: int | None) -> list[Commit]:
        start_after = layout.commit_path(version) if version >= 0 else ""
        versions = []
        for entry in self.storage.list(layout.LOG, start_after):
            number = layout.commit_version(entry.path)
            if number is not None and (up_to is None or number <= up_to):
                versions.append(number)
            elif number is not None:
                break
        if len(versions) <= 1:
            return [self.read_commit(number) for number in versions]
        with ThreadPoolExecutor(READERS) as pool:
            commits = list(pool.map(self._read_unless_gone, versions))
        while commits and commits[0] is None:
            del commits[0]  # retention deletes from the begin of the log
        if None in commits:
            return [self.read_commit(number) for number in versions]  # says which one is missing
        return [commit for commit in commits if commit is not None]

    def _read_unless_gone(self, version: int) -> Commit | None:
        try:
            return self.read_commit(version)
        except NotFoundError:
            return None

    def commit(self, base: Snapshot, proposal: Proposal) -> JobResult:
        """Add the proposal to the log, building it again after each lost race; the result says which version it became."""
        head = base
        for lost in range(_LOST_RACES):
            if lost or not proposal.at_once:
                head = self.refresh(head)
            if (
                earlier := self.earlier_result(
                    head, proposal.operation, proposal.token, proposal.application
                )
            ) is not None:
                return earlier
            check_positions(head, proposal.positions, self.read_commit)
            if proposal.number in head.root.abandoned:
                raise ConflictError(
                    f"retention gave up job {proposal.number}, which ran longer than its grace; run it again"
                )
            since = [commit for commit in head.commits if commit.version > base.version]
            # Not only when commits are gone: below the oldest version numbers are free again, and what a job there looked at may be gone
            if len(since) != head.version - base.version or base.version < head.root.oldest_version:
                began = f"version {base.version}, where this {proposal.operation} began"
                raise ExpiredError(
                    f"the log after {began}, has expired; readable are {readable_text(head.root)} now: run it again"
                )
            verdict = judge(proposal.operation, base.root, since)
            draft = proposal.build(head, since if verdict is Verdict.REDO else [])
            if draft is None:
                return JobResult(
                    operation=proposal.operation, table=self.storage.uri, token=proposal.token
                )
            draft.actions.check_reported(proposal.number)
            link = self._link(head, proposal, draft)
            fault = row_id_fault(head.root, link)
            if fault is not None:
                raise FormatError(
                    f"{self.storage.uri}: version {link.version} was not written: {fault}; "
                    "run `opal check`"
                )
            if self.put(link):
                self._after(head, link)
                tell_of_commit(self, partial(head.followed_by, [link]))
                return result_of(link)
        raise StorageError(
            f"{self.storage.uri}: lost {_LOST_RACES} races; nothing was committed: run it again, with fewer writers at once"
        )

    def earlier_result(
        self,
        head: Snapshot,
        operation: str,
        token: str | None,
        application: tuple[str, int] | None = None,
    ) -> JobResult | None:
        """Return the result of an earlier run with this token, or with this or a later sequence.

        Raises InvalidInputError for the token of an ingest whose rows were discarded: a repeat
        would report rows that the table does not have. A note names the restore that undid it.
        """
        check_token(token)
        check_application(application)
        if token is not None and (applied := head.version_of_token(token)) is not None:
            earlier = self._result_in(applied, operation, token)
            if earlier.operation != operation:
                used = f"token {token!r} was used by the {earlier.operation} of version {earlier.version}"
                raise InvalidInputError(f"{used}; give this {operation} a token of its own")
            notes = earlier.notes
            if operation == "ingest":
                read_back = self.reading_back(head.root.oldest_version)
                undone = undone_note(head, token, self.read_commit, read_back)
                notes = notes if undone is None else (*notes, undone)
            return replace(earlier, repeated=True, notes=notes)
        if (
            application is not None
            and head.root.applications.get(application[0], -1) >= application[1]
        ):
            return JobResult(
                operation=operation, table=self.storage.uri, token=token, repeated=True
            )
        return None

    def _result_in(self, version: int, operation: str, token: str) -> JobResult:
        """The result in a commit; if the commit has expired, a result that says so."""
        try:
            return result_of(self.read_commit(version))
        except NotFoundError:
            gone = f"its result has expired with version {version}"
            return JobResult(
                operation=operation,
                table=self.storage.uri,
                version=version,
                token=token,
                notes=(gone,),
            )

    def _link(self, head: Snapshot, proposal: Proposal, draft: Draft) -> Commit:
        version, uri = head.version + 1, self.storage.uri
        own_us, told_us = self.clock.now_us(), self.storage.now_us()
        before_us, repair = head.root.timestamp_us, draft.actions.corrected_times
        if repair is not None:
            before_us = repair.times_us[-1]
        timestamp_us = max(writer_now_us(own_us, told_us, head.spec, uri), before_us + 1)
        timings_ms = {"total": max(0, own_us - proposal.started_us) // 1000}
        notes = (
            draft.result.notes
            if repair
            else (*draft.result.notes, *clock_notes(told_us, head.root, uri))
        )
        result = replace(
            draft.result, version=version, token=proposal.token, timings_ms=timings_ms, notes=notes
        )
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
            epoch=head.root.epoch + (draft.actions.restored is not None),
            first_row_id=head.root.next_row_id if draft.actions.gives_row_ids else None,
            changes_view=draft.changes_view,
            result=result.to_dict(),
            actions=draft.actions,
        )

    def put(self, link: Commit) -> bool:
        """Whether the link is in the log now. False: another one has its version."""
        data = encode_readable(link)
        path = layout.commit_path(link.version)
        if len(data) > MOST_SEALED:
            raise InvalidInputError(
                f"version {link.version} would have {len(data):,} bytes, at most are {MOST_SEALED:,}; do less at once"
            )
        failure: Exception | None = None
        for _ in range(_PUT_TRIES):
            try:
                if self.storage.put_if_absent(path, data):
                    return True
                return self.read_commit(link.version).write_id == link.write_id
            except (StorageError, NotFoundError) as error:
                if failure is None and isinstance(error, NotWrittenError):
                    raise
                failure = error
            with suppress(StorageError, NotFoundError):  # what failed first tells more
                return self.read_commit(link.version).write_id == link.write_id
        raise CommitUnknownError(
            f"{self.storage.uri}: cannot tell whether version {link.version} was written ({failure}); run again with the same token"
        )

    @contextmanager
    def derived(self) -> Iterator[None]:
        """Around what is done behind a commit: that stands, and what is derived can be had from it again."""
        try:
            yield
        except (OpalError, OSError, MemoryError) as error:
            self.on_derived_failure(error)

    def _after(self, head: Snapshot, link: Commit) -> None:
        self.written.state = None
        self._check_not_below_expired_log(head, link)
        with self.derived():
            state = head.followed_by([link])
            if (
                link.version % head.spec.integer("checkpoint_commits") == 0
                or link.actions.restored is not None
            ):
                events = EventReader(self.storage)
                self._write_page(state, events)
                state = write_checkpoint(self.storage, state, read=events.read)
            self.written.state = state

    def _write_page(self, state: Snapshot, events: EventReader) -> None:
        """Before the checkpoint: who dies in between leaves its commits to the page of the next one."""
        step = state.spec.integer("checkpoint_commits")
        if state.version % step == 0:
            with self.derived():
                write_page(state, step, self.read_commit, events)

    def _check_not_below_expired_log(self, head: Snapshot, link: Commit) -> None:
        """Not where the version was free because it had not been there yet, and not because it was deleted."""
        if self._vouches(head.root.vouchers, layout.vouching_version(link.version)):
            return
        higher, follower = self._above(link.version)
        if higher and (follower is None or follower.previous_write_id != link.write_id):
            raise ConflictError(
                f"{self.storage.uri}: version {link.version} was written too late, the log went on to {max(higher)} without it; "
                "run the job again"
            )

    def _above(self, version: int) -> tuple[list[int], Commit | None]:
        """The versions above one that was just written, and the commit right after it."""
        failure: Exception | None = None
        for _ in range(_PUT_TRIES):
            try:
                above = [
                    layout.commit_version(entry.path)
                    for entry in self.storage.list(layout.LOG, layout.commit_path(version))
                ]
                higher = [number for number in above if number is not None]
                return higher, self.read_commit(version + 1) if version + 1 in higher else None
            except (StorageError, NotFoundError) as error:
                failure = error
        raise CommitUnknownError(
            f"{self.storage.uri}: version {version} was written, but whether it counts could not be read ({failure}); run again with the "
            "same token, or, without one, look first whether `opal history` shows it"
        )


class BackwardReader:
    """Reads commits from a version down, ever more at once, and so from ever longer pages."""

    def __init__(self, log: CommitLog, oldest: int) -> None:
        self._log = log
        self._oldest = oldest
        self._at_hand: dict[int, Commit] = {}
        self._portion = _PROBES

    def __call__(self, version: int) -> Commit:
        if version not in self._at_hand:
            self._fetch(version)
        commit = self._at_hand.get(version)
        return self._log.read_commit(version) if commit is None else commit

    def _fetch(self, version: int) -> None:
        """What cannot be read is left to the caller, who may never ask for it."""
        after = max(self._oldest, version - self._portion)
        newer = self._at_hand.get(version + 1)
        try:
            read = self._log.range_after(after, version, () if newer is None else (newer,))
        except (FormatError, NotFoundError):
            # As much again for every version would read the log as often as it is long
            self._portion = _PROBES
        else:
            self._portion = min(2 * self._portion, MAX_VERSIONS)
            self._at_hand = {commit.version: commit for commit in read.commits}


def _absence(root: Root, version: int) -> str:
    return (
        f"has lost version {version}, which has expired"
        if 0 <= version < root.oldest_version
        else f"has no version {version}"
    )


def result_of(commit: Commit) -> JobResult:
    """The JobResult that a commit carries."""
    return JobResult.from_dict(commit.result)
