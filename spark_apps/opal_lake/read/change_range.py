"""The versions that a change feed covers: given by version, by commit time, or by savepoint."""

from dataclasses import dataclass

from opal_lake import layout
from opal_lake.checked import LATEST
from opal_lake.clock import moment_text
from opal_lake.definition.ordering import encode_order
from opal_lake.definition.schema import Atomic
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.pages import CommitRange
from opal_lake.log.snapshot import Snapshot
from opal_lake.storage.verified import missing_error

_FORMS = (
    "a version such as 8, a commit time such as '2026-01-31T12:00:00Z', or the name of a savepoint "
    "or a business snapshot"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRange:
    """The versions after `earlier`, up to and with `last`; none if `earlier` is None."""

    head: Snapshot
    earlier: Snapshot | None
    last: int


def version_range(log: CommitLog, start: object, end: object = None) -> VersionRange:
    """Return the range from `start` to `end` (default: the head), both included.

    If `start` is the name of a savepoint, the range begins after the savepoint's version.
    """
    head = log.head()
    _refuse_reversed(head, start, end)
    first = _first(head, start)
    last = head.version if end is None else _last(head, end)
    if last > head.version or first > head.version + 1:
        raise NotFoundError(
            f"{log.storage.uri} has no version {max(first, last)} yet; the newest is "
            f"{head.version}: leave the end out to read up to it"
        )
    if first > last:
        # Two times or savepoints may have no commit between them. Two numbers are a mistake.
        are_numbers = hasattr(start, "__index__") and hasattr(end, "__index__")
        is_empty = end is None or (first == last + 1 and not are_numbers)
        if is_empty:
            return VersionRange(head=head, earlier=None, last=last)
        raise InvalidInputError(
            f"the range of changes from start={start!r} (version {first}) to end={end!r} (version "
            f"{last}) ends before it begins; give an earlier start, or a later end"
        )
    earlier = _state_before(log, head, first)
    if earlier.version >= last:
        return VersionRange(head=head, earlier=None, last=last)
    return VersionRange(head=head, earlier=earlier, last=last)


def _refuse_reversed(head: Snapshot, start: object, end: object) -> None:
    """Raise InvalidInputError for two times in the wrong order.

    Their versions do not show the order if no commit lies between the times.
    """
    if end is None or start == LATEST:
        return
    if _version(head, start, "start") is not None or _version(head, end, "end") is not None:
        return
    first_us, last_us = _moment(start, "start"), _moment(end, "end")
    if first_us > last_us:
        raise InvalidInputError(
            f"start={start!r} ({moment_text(first_us)}) is after end={end!r} "
            f"({moment_text(last_us)}), so that the range ends before it begins; give an earlier "
            "start, or a later end"
        )


def commits_of(log: CommitLog, versions: VersionRange) -> CommitRange:
    """Return the commits of a range, in order; raise an error if a commit is missing."""
    assert versions.earlier is not None
    before = versions.earlier.version
    commit_range = log.range_after(before, versions.last, versions.head.commits)
    known = {commit.version for commit in commit_range.commits}
    missing = [version for version in range(before + 1, versions.last + 1) if version not in known]
    if missing:
        raise missing_error(log.storage, layout.commit_path(missing[0]))
    return commit_range


def _state_before(log: CommitLog, head: Snapshot, first: int) -> Snapshot:
    """Return the state before version `first`.

    If that state has expired, return the oldest readable version if it shows the same rows;
    otherwise raise NotFoundError.
    """
    oldest = head.root.oldest_version
    if first - 1 >= oldest:
        return log.at(first - 1, head)
    state = log.at(oldest, head)
    expired = max(first, 1)
    if state.root.viewed >= expired:
        raise NotFoundError(
            f"{log.storage.uri}: the changes of version {expired} have expired; begin with version "
            f"{oldest + 1}, the oldest one with readable changes. The table's property window says "
            "how long changes stay"
        )
    return state


def _first(head: Snapshot, start: object) -> int:
    """Return the first version of a range by its start."""
    if start == LATEST:
        return head.version + 1
    named = _version(head, start, "start")
    if named is not None:
        # A reader has seen the state of a savepoint that it names, but not that of a number
        return named + 1 if isinstance(start, str) else named
    moment_us = _moment(start, "start")
    times = CommitTimes(head)
    # A version with exactly this commit time belongs to the range
    before = times.newest_by(moment_us - 1)
    if before is not None:
        return before + 1
    oldest = head.root.oldest_version
    if oldest > 0:
        raise NotFoundError(
            f"{head.storage.uri}: some of the changes since {moment_text(moment_us)} have expired; "
            f"give a start after {moment_text(times.of(oldest))}, the commit time of version "
            f"{oldest}, the oldest readable one"
        )
    return 0


def _last(head: Snapshot, end: object) -> int:
    """Return the last version of a range by its end."""
    named = _version(head, end, "end")
    if named is not None:
        return named
    moment_us = _moment(end, "end")
    times = CommitTimes(head)
    version = times.newest_by(moment_us)
    if version is None:
        oldest = head.root.oldest_version
        raise NotFoundError(
            f"{head.storage.uri}: no readable version is as old as {moment_text(moment_us)}; "
            f"give an end from {moment_text(times.of(oldest))}, the commit time of version "
            f"{oldest}, the oldest readable one"
        )
    return version


def _version(head: Snapshot, given: object, name: str) -> int | None:
    """Return the version of a bound; None if the bound may be a time.

    A name is that of a savepoint or of a business snapshot. The open business snapshot stands for
    the newest version.
    """
    if isinstance(given, str):
        business, savepoints = head.root.business, head.root.savepoints
        is_unfinished = given in (business.open, *business.held_back)
        if business.is_named_like(given) and (is_unfinished or given not in savepoints):
            return business.version_of(given, savepoints, head.version)
        return savepoints.get(given)
    if isinstance(given, bool) or given is None or isinstance(given, float):
        raise _invalid_bound(name, given)
    if not hasattr(given, "__index__"):
        return None
    version = int(given)
    if version < 0:
        raise InvalidInputError(
            f"{name}={given!r} is not a version: versions begin with 0; `opal history` lists them"
        )
    return version


def _invalid_bound(name: str, given: object) -> InvalidInputError:
    return InvalidInputError(f"{name}={given!r} is not a valid {name}; give {_FORMS}")


def _moment(given: object, name: str) -> int:
    """Return the time that a bound gives, in microseconds since 1970."""
    if given == LATEST:
        raise InvalidInputError(
            f"{name}={LATEST!r} is not a valid {name}: leave {name} out to read up to the newest "
            "version"
        )
    try:
        return encode_order(given, Atomic(name="timestamp"), name=name)
    except InvalidInputError as error:
        raise _invalid_bound(name, given) from error
