"""Which versions a change feed covers: by version, by commit time, or by savepoints."""

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

_FORMS = "a version, as 8, a commit time as '2026-01-31T12:00:00Z', or the name of a savepoint or a business snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRange:
    """The versions after `earlier` up to `last`, none if there is no `earlier`."""

    head: Snapshot
    earlier: Snapshot | None
    last: int


def version_range(log: CommitLog, start: object, end: object = None) -> VersionRange:
    """Both bounds belong to it. From a savepoint it begins with the version after the savepoint's, and ends with the savepoint's own."""
    head = log.head()
    _refuse_reversed(head, start, end)
    first, last = _first(head, start), head.version if end is None else _last(head, end)
    if last > head.version or first > head.version + 1:
        raise NotFoundError(
            f"{log.storage.uri} has no version {max(first, last)} yet; the newest is {head.version}, and end=None reads up to it"
        )
    are_numbers = hasattr(start, "__index__") and hasattr(end, "__index__")
    if first > last and (
        end is None or (first == last + 1 and not are_numbers)
    ):  # between these times or savepoints was no commit
        return VersionRange(head=head, earlier=None, last=last)
    if first > last:
        raise InvalidInputError(
            f"the changes from {start!r} (version {first}) to {end!r} (version {last}) are of a range that ends before it begins; give an "
            "earlier start, or a later end"
        )
    earlier = _state_before(log, head, first)
    return VersionRange(head=head, earlier=earlier if last > earlier.version else None, last=last)


def _refuse_reversed(head: Snapshot, start: object, end: object) -> None:
    """Two times, between which no commit may lie."""
    if (
        end is not None
        and start != LATEST
        and _version(head, start, "start") is None
        and _version(head, end, "end") is None
    ):
        first_us, last_us = _moment(start, "start"), _moment(end, "end")
        if first_us > last_us:
            raise InvalidInputError(
                f"start={start!r} is {moment_text(first_us)} and end={end!r} {moment_text(last_us)}: the range ends before it begins; give "
                "an earlier start, or a later end"
            )


def commits_of(log: CommitLog, versions: VersionRange) -> CommitRange:
    """Those of the range, in order."""
    assert versions.earlier is not None
    before = versions.earlier.version
    found = log.range_after(before, versions.last, versions.head.commits)
    known = {commit.version for commit in found.commits}
    missing = [version for version in range(before + 1, versions.last + 1) if version not in known]
    if missing:
        raise missing_error(log.storage, layout.commit_path(missing[0]))
    return found


def _state_before(log: CommitLog, head: Snapshot, first: int) -> Snapshot:
    """The state that the first version changed. If it has expired, the oldest version's, provided that it shows the same rows."""
    oldest = head.root.oldest_version
    if first - 1 >= oldest:
        return log.at(first - 1, head)
    state = log.at(oldest, head)
    if state.root.viewed >= max(first, 1):
        raise NotFoundError(
            f"{log.storage.uri}: the changes of version {max(first, 1)} have expired; the oldest readable ones are those of version "
            f"{oldest + 1}. The table's property window says how long they stay"
        )
    return state


def _first(head: Snapshot, start: object) -> int:
    if start == LATEST:
        return head.version + 1
    named = _version(head, start, "start")
    if named is not None:
        return named + 1 if isinstance(start, str) else named
    moment_us = _moment(start, "start")
    before = CommitTimes(head).newest_by(moment_us - 1)
    if before is None and head.root.oldest_version > 0:
        oldest = head.root.oldest_version
        raise NotFoundError(
            f"{head.storage.uri}: some of the changes since {moment_text(moment_us)} have expired; version {oldest}, the oldest readable "
            f"one, is of {moment_text(CommitTimes(head).of(oldest))}: give a later start"
        )
    return 0 if before is None else before + 1


def _last(head: Snapshot, end: object) -> int:
    named = _version(head, end, "end")
    if named is not None:
        return named
    moment_us, times = _moment(end, "end"), CommitTimes(head)
    version = times.newest_by(moment_us)
    if version is None:
        oldest = head.root.oldest_version
        raise NotFoundError(
            f"{head.storage.uri}: no readable version is as old as {moment_text(moment_us)}; version {oldest}, the oldest, is of "
            f"{moment_text(times.of(oldest))}: give a later end"
        )
    return version


def _version(head: Snapshot, given: object, name: str) -> int | None:
    """A version, the one that a savepoint keeps, or, of the open business snapshot, the newest; None for what may be a time."""
    if isinstance(given, str):
        business, savepoints = head.root.business, head.root.savepoints
        if business.is_named_like(given) and (
            given in (business.open, *business.held) or given not in savepoints
        ):
            return business.version_of(given, savepoints, head.version)
        return savepoints.get(given)
    if isinstance(given, bool) or given is None or isinstance(given, float):
        raise InvalidInputError(
            f"{name}={given!r} is no bound of a range of changes; give {_FORMS}"
        )
    if not hasattr(given, "__index__"):
        return None
    version = int(given)
    if version < 0:
        raise InvalidInputError(
            f"{name}={given!r} is no version; versions begin with 0, as `opal history` lists them"
        )
    return version


def _moment(given: object, name: str) -> int:
    if given == LATEST:
        raise InvalidInputError(
            f"{name}={LATEST!r} is no bound: leave {name} out to read up to the newest version"
        )
    try:
        return encode_order(given, Atomic(name="timestamp"), name=name)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{name}={given!r} is no bound of a range of changes; give {_FORMS}"
        ) from error
