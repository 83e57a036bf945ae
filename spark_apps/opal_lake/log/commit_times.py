"""When versions were committed, as the newest one has it: what their commits say, unless a repair has corrected it (FORMAT, clocks)."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

from opal_lake import layout
from opal_lake.clock import moment_text
from opal_lake.errors import NotFoundError
from opal_lake.log.checkpoint import read_checkpoint
from opal_lake.log.commit import Commit, CorrectedTimes, decode_commit
from opal_lake.log.snapshot import Snapshot, newest_first
from opal_lake.storage.verified import missing_error, read_sealed


class CommitTimes:
    """Of the versions that can be read at a head, in microseconds since 1970."""

    def __init__(self, head: Snapshot) -> None:
        self._head = head
        self._known = {commit.version: commit for commit in head.commits}

    def of(self, version: int) -> int:
        if version == self._head.version:
            return self._head.root.timestamp_us
        return self.corrected(version, self._recorded(version))

    def newest_by(self, moment_us: int) -> int | None:
        """The last readable version that was committed at or before a moment; None when the oldest is younger."""
        low, high = self._head.root.oldest_version, self._head.version
        if self.of(low) > moment_us:
            return None
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.of(middle) <= moment_us else (low, middle - 1)
        return low

    def corrected(self, version: int, recorded_us: int) -> int:
        """The time of a commit: its own, or the corrected one."""
        corrections = (times.of(version) for times in self._repairs)
        return next((moment for moment in corrections if moment is not None), recorded_us)

    @functools.cached_property
    def _repairs(self) -> list[CorrectedTimes]:
        """The newest first."""
        commits = (
            self._commit(version) for version in sorted(self._head.root.clock_repairs, reverse=True)
        )
        return [
            commit.actions.corrected_times
            for commit in commits
            if commit.actions.corrected_times is not None
        ]

    def _recorded(self, version: int) -> int:
        try:
            return self._commit(version).timestamp_us
        except NotFoundError as error:  # its commit has expired, its checkpoint may stand
            state = read_checkpoint(self._head.storage, version)
            if state is None or state.version != version:
                raise missing_error(self._head.storage, layout.commit_path(version)) from error
            return state.root.timestamp_us

    def _commit(self, version: int) -> Commit:
        if version not in self._known:
            path, storage = layout.commit_path(version), self._head.storage
            self._known[version] = decode_commit(
                read_sealed(storage, path), f"{storage.uri}/{path}"
            )
        return self._known[version]


def version_at(head: Snapshot, moment_us: int) -> int:
    """The version that was the newest at a moment; NotFoundError if none is left of that time."""
    version, oldest = CommitTimes(head).newest_by(moment_us), head.root.oldest_version
    if version is None:
        oldest_text = (
            f"the oldest version {oldest} is of {moment_text(CommitTimes(head).of(oldest))}"
        )
        raise NotFoundError(
            f"{head.storage.uri}: nothing is readable as of {moment_text(moment_us)}; {oldest_text}; give a later time"
        )
    return version


def history(head: Snapshot, read_commit: Callable[[int], Commit]) -> Iterator[Commit]:
    """The commits, newest first, with the times that they count as."""
    times = CommitTimes(head)
    for commit in newest_first(head, read_commit):
        yield replace(commit, timestamp_us=times.corrected(commit.version, commit.timestamp_us))
