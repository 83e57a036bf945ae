"""Commit times of versions: as recorded, unless a clock repair has corrected them (FORMAT, §12)."""

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
    """The commit times of the versions readable at a head, in microseconds."""

    def __init__(self, head: Snapshot) -> None:
        self._head = head
        self._known = {commit.version: commit for commit in head.commits}

    def of(self, version: int) -> int:
        """Return the time of a version."""
        if version == self._head.version:
            return self._head.root.timestamp_us
        return self.corrected(version, self._recorded(version))

    def newest_by(self, moment_us: int) -> int | None:
        """Return the last readable version that was committed at or before a moment.

        None if the oldest readable version was committed later.
        """
        low, high = self._head.root.oldest_version, self._head.version
        if self.of(low) > moment_us:
            return None
        # I3: times increase strictly, so that a binary search finds the version
        while low < high:
            middle = (low + high + 1) // 2
            if self.of(middle) <= moment_us:
                low = middle
            else:
                high = middle - 1
        return low

    def corrected(self, version: int, recorded_us: int) -> int:
        """Return the corrected time of a commit, or the recorded one without a repair."""
        for times in self._repairs:
            moment_us = times.of(version)
            if moment_us is not None:
                return moment_us
        return recorded_us

    @functools.cached_property
    def _repairs(self) -> list[CorrectedTimes]:
        """The corrections of all clock repairs. The first one of a version counts."""
        repairs: list[CorrectedTimes] = []
        for version in sorted(self._head.root.clock_repairs, reverse=True):
            times = self._commit(version).actions.corrected_times
            if times is not None:
                repairs.append(times)
        return repairs

    def _recorded(self, version: int) -> int:
        """Return the time that the commit of a version has, or else its checkpoint."""
        try:
            return self._commit(version).timestamp_us
        except NotFoundError as error:
            # The commit has expired, but the checkpoint of its version may still exist
            state = read_checkpoint(self._head.storage, version)
            if state is None or state.version != version:
                raise missing_error(self._head.storage, layout.commit_path(version)) from error
            return state.root.timestamp_us

    def _commit(self, version: int) -> Commit:
        """Return the commit of a version, which is read only once."""
        commit = self._known.get(version)
        if commit is None:
            storage = self._head.storage
            path = layout.commit_path(version)
            commit = decode_commit(read_sealed(storage, path), f"{storage.uri}/{path}")
            self._known[version] = commit
        return commit


def version_at(head: Snapshot, moment_us: int) -> int:
    """Return the version that was the newest at a moment.

    Raises NotFoundError if no version of that time is left.
    """
    times = CommitTimes(head)
    version = times.newest_by(moment_us)
    if version is None:
        oldest = head.root.oldest_version
        raise NotFoundError(
            f"{head.storage.uri} has no readable version as of {moment_text(moment_us)}: its "
            f"oldest version {oldest} was committed at {moment_text(times.of(oldest))}; "
            "give a later time"
        )
    return version


def history(head: Snapshot, read_commit: Callable[[int], Commit]) -> Iterator[Commit]:
    """Yield the commits of readable versions, newest first, with corrected times."""
    times = CommitTimes(head)
    for commit in newest_first(head, read_commit):
        yield replace(commit, timestamp_us=times.corrected(commit.version, commit.timestamp_us))
