"""The chain of commits: reading it, and adding a link to it (FORMAT, commits).

Hazards that this module is built around: a put that fails may have landed; a put that reports 'exists' may be the echo of our own; and a
writer that slept may write below an expired log. So every put is read back by its write id, and followed by a look at what stands above it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from opal_lake import layout
from opal_lake.checkpoint import read_checkpoint, write_checkpoint
from opal_lake.clock import Clock
from opal_lake.commit import Actions, Commit, decode_commit, encode_commit
from opal_lake.conflict import Verdict, judge
from opal_lake.errors import (
    CommitUnknownError,
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from opal_lake.ids import IdSource
from opal_lake.job import JobResult
from opal_lake.readable import is_readable, readable_text
from opal_lake.snapshot import Root, Snapshot, first_root
from opal_lake.storage.protocol import Storage

_READERS = 8
_PUT_TRIES = 4
_LOST_RACES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a job wants to commit onto a head."""

    actions: Actions
    result: JobResult
    changes_view: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A job on its way into the log.

    `build` is asked again after every lost race: it is given the head, and the commits since the job's base that it must take into account
    (only those, and only if the conflict rules say so). None means that nothing is left to do.
    """

    operation: str
    number: int | None
    build: Callable[[Snapshot, Sequence[Commit]], Draft | None]
    started_us: int
    token: str | None = None
    application: tuple[str, int] | None = None
    partition_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLog:
    """A table's log, with the clock and the names that its writer uses."""

    storage: Storage
    clock: Clock
    ids: IdSource
    on_derived_failure: Callable[[Exception], None] = field(default=lambda _: None)

    def head(self) -> Snapshot:
        """The newest version."""
        start = read_checkpoint(self.storage, None)
        return self._extend(start, None)

    def at(self, version: int) -> Snapshot:
        """That version, if it has not expired: files of an expired one may be gone, whatever of its metadata is left."""
        head = self._head_if_sound()
        if head is not None and not is_readable(head.root, version):
            raise NotFoundError(f"{self.storage.uri} {_absence(head.root, version)}; readable are {readable_text(head.root)}")
        if head is not None and head.version == version:
            return head
        start = read_checkpoint(self.storage, version) if version >= 0 else None
        found = self._extend(start, version)
        if found.version != version:
            raise FormatError(f"{self.storage.uri}/{self._missing(found.version, version)} is missing; restore the file from a backup")
        return found

    def _head_if_sound(self) -> Snapshot | None:
        """None where it is damaged: older versions may be whole."""
        try:
            return self.head()
        except FormatError:
            return None

    def _missing(self, reached: int, version: int) -> str:
        """The first commit that is not there, of those between two versions."""
        logged = {layout.commit_version(found.path) for found in self.storage.list(layout.LOG)}
        return layout.commit_path(next((number for number in range(reached + 1, version) if number not in logged), version))

    def oldest(self) -> int:
        """The oldest version that can be read; savepoints may be older."""
        return self.head().root.oldest_version

    def refresh(self, snapshot: Snapshot) -> Snapshot:
        """The newest version, from one that is at hand."""
        try:
            return self._extend(snapshot, None)
        except (FormatError, NotFoundError):
            newest = read_checkpoint(self.storage, None)  # the log after the snapshot may have expired meanwhile
            if newest is None or newest.version <= snapshot.version:
                raise
            return self._extend(newest, None)

    def read_commit(self, version: int) -> Commit:
        path = layout.commit_path(version)
        commit = decode_commit(self.storage.get(path), f"{self.storage.uri}/{path}")
        if commit.version != version:
            raise FormatError(f"{self.storage.uri}/{path} holds version {commit.version}; restore the file from a backup")
        return commit

    def _extend(self, start: Snapshot | None, up_to: int | None) -> Snapshot:
        commits = self.commits_after(start.version if start else -1, up_to)
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
            return f"{first}, where the log begins, is missing, and no checkpoint stands for it; restore {layout.META} from a backup"
        other = next(iter(self.storage.list("")), None)
        seen = f"it holds {other.path!r}, but no {layout.LOG}" if other else "no such folder is there, or nothing is in it"
        way_out = "check the path, or make a table with OpalTable.create or `opal create`"
        return f"{self.storage.uri} is no Opal table: {seen}; {way_out}"

    def commits_after(self, version: int, up_to: int | None = None) -> list[Commit]:
        """The commits that the log has behind a version, oldest first."""
        start_after = layout.commit_path(version) if version >= 0 else ""
        versions = []
        for found in self.storage.list(layout.LOG, start_after):
            number = layout.commit_version(found.path)
            if number is not None and (up_to is None or number <= up_to):
                versions.append(number)
            elif number is not None:
                break
        if len(versions) <= 1:
            return [self.read_commit(number) for number in versions]
        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(self.read_commit, versions))

    def commit(self, base: Snapshot, proposal: Proposal) -> JobResult:
        """Add the proposal to the log, building it again after each lost race; the result says which version it became."""
        head = base
        for _ in range(_LOST_RACES):
            head = self.refresh(head)
            if (earlier := self.earlier_result(head, proposal.operation, proposal.token, proposal.application)) is not None:
                return earlier
            if proposal.number in head.root.abandoned:
                raise ConflictError(f"job {proposal.number} was given up by a cleaner because it took too long; run it again")
            since = [commit for commit in head.commits if commit.version > base.version]
            # Not only when commits are gone: below the oldest version numbers are free again, and what a job there looked at may be gone
            if len(since) != head.version - base.version or base.version < head.root.oldest_version:
                began = f"version {base.version}, where this {proposal.operation} began"
                raise ConflictError(f"the log after {began}, has expired; run it again")
            verdict = judge(proposal.operation, base.root, since)
            draft = proposal.build(head, since if verdict is Verdict.REDO else [])
            if draft is None:
                return JobResult(operation=proposal.operation, table=self.storage.uri, token=proposal.token)
            link = self._link(head, proposal, draft)
            if self.put(link):
                self._after(head, link)
                return result_of(link)
        raise StorageError(f"{self.storage.uri}: lost {_LOST_RACES} races for the next version; run fewer writers at once")

    def earlier_result(
        self, head: Snapshot, operation: str, token: str | None, application: tuple[str, int] | None = None
    ) -> JobResult | None:
        """The result of an earlier run with this token, or with this or a later sequence of the application."""
        if token == "":
            raise InvalidInputError("the token is an empty text; give none, or one that names this job and no other")
        if application is not None and application[1] < 0:
            raise InvalidInputError(f"application {application[0]!r} has sequence {application[1]}; count from 0")
        if token is not None and token in head.tokens:
            earlier = self._result_in(head.tokens[token], operation, token)
            if earlier.operation != operation:
                used = f"token {token!r} was used by the {earlier.operation} of version {earlier.version}"
                raise InvalidInputError(f"{used}; give this {operation} a token of its own")
            return replace(earlier, repeated=True)
        if application is not None and head.root.applications.get(application[0], -1) >= application[1]:
            return JobResult(operation=operation, table=self.storage.uri, token=token, repeated=True)
        return None

    def _result_in(self, version: int, operation: str, token: str) -> JobResult:
        """What a commit says; once it has expired, that it was."""
        try:
            return result_of(self.read_commit(version))
        except NotFoundError:
            gone = f"what came of it has expired with version {version}"
            return JobResult(operation=operation, table=self.storage.uri, version=version, token=token, notes=(gone,))

    def _link(self, head: Snapshot, proposal: Proposal, draft: Draft) -> Commit:
        version, now_us = head.version + 1, self.clock.now_us()
        timings_ms = {"total": max(0, now_us - proposal.started_us) // 1000}
        result = replace(draft.result, version=version, token=proposal.token, timings_ms=timings_ms)
        return Commit(
            version=version,
            table_id=head.root.table_id,
            write_id=self.ids.new_id(),
            previous_write_id=head.root.write_id,
            timestamp_us=max(now_us, head.root.timestamp_us + 1),
            operation=proposal.operation,
            number=proposal.number,
            token=proposal.token,
            application=proposal.application,
            partition_key=proposal.partition_key,
            epoch=head.root.epoch,
            changes_view=draft.changes_view,
            result=result.to_dict(),
            actions=draft.actions,
        )

    def put(self, link: Commit) -> bool:
        """Whether the link is in the log now. False: another one has its version."""
        path, data = layout.commit_path(link.version), encode_commit(link)
        failure: Exception | None = None
        for _ in range(_PUT_TRIES):
            try:
                if self.storage.put_if_absent(path, data):
                    return True
                return self.read_commit(link.version).write_id == link.write_id
            except (StorageError, NotFoundError) as error:
                if failure is None and isinstance(error.__cause__, PermissionError):
                    raise  # who may not write has not written
                failure = error
            with suppress(StorageError, NotFoundError):  # what failed first tells more
                return self.read_commit(link.version).write_id == link.write_id
        raise CommitUnknownError(
            f"{self.storage.uri}: cannot tell whether version {link.version} was written ({failure}); run again with the same token"
        )

    def _after(self, head: Snapshot, link: Commit) -> None:
        self._check_not_below_expired_log(link)
        try:
            if link.token is not None:
                self.storage.put_if_absent(layout.result_path(link.token), result_of(link).to_json().encode())
            if link.version % head.spec.integer("checkpoint_commits") == 0:
                write_checkpoint(self.storage, head.followed_by([link]))
        except (StorageError, FormatError, NotFoundError) as error:
            self.on_derived_failure(error)  # the commit stands; a copy and a checkpoint can be had from it again

    def _check_not_below_expired_log(self, link: Commit) -> None:
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
                above = [layout.commit_version(found.path) for found in self.storage.list(layout.LOG, layout.commit_path(version))]
                higher = [number for number in above if number is not None]
                return higher, self.read_commit(version + 1) if version + 1 in higher else None
            except (StorageError, NotFoundError) as error:
                failure = error
        raise CommitUnknownError(
            f"{self.storage.uri}: version {version} was written, but not confirmed ({failure}); run again with the same token"
        )


def chain(commits: Sequence[Commit], start: Snapshot) -> list[Commit]:
    """The commits that follow on from a snapshot; a break in the chain is damage."""
    version, write_id, table_id = start.version, start.root.write_id, start.root.table_id
    for commit in commits:
        if commit.version != version + 1:
            raise FormatError(f"{start.storage.uri}/{layout.commit_path(version + 1)} is missing; restore the file from a backup")
        if commit.previous_write_id != write_id or commit.table_id != table_id:
            path = f"{start.storage.uri}/{layout.commit_path(commit.version)}"
            raise FormatError(f"{path} does not follow on from the version before; restore it from a backup")
        version, write_id = commit.version, commit.write_id
    return list(commits)


def _absence(root: Root, version: int) -> str:
    return f"has lost version {version}, which has expired" if 0 <= version < root.oldest_version else f"has no version {version}"


def result_of(commit: Commit) -> JobResult:
    """The JobResult that a commit carries."""
    return JobResult.from_dict(commit.result)
