"""Partition keys that a consumer has not consumed. Counts the ingests of each key, so that no expired version hides one."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from hashlib import sha256

from airflow_provider_opal.watermark import Checked, Watermark
from opal_lake.duration import parse_duration
from opal_lake.errors import NotFoundError
from opal_lake.ids import segment_part
from opal_lake.log.commit import Commit
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.store_clock import store_now_us
from opal_lake.log.version_window import is_readable
from opal_lake.read.read import visible_ingests
from opal_lake.retention.retention import GRACE
from opal_lake.table import Table

Ingests = Mapping[str, frozenset[int]]

_NOT_IN_NAMES, _SHOWN = re.compile(r"[^A-Za-z0-9_.-]"), 60


def untaken_keys(
    table: Table, watermark: Watermark, since: datetime, until: datetime
) -> dict[str, int]:
    """The keys whose rows became visible by a moment and were not consumed, each with the last version that brought some.

    Checks the ingests since the last check at which all keys were consumed. The first check goes back to `since`, or to all keys where the
    log does not reach that far. For a key whose version has expired the oldest version is given: it has all rows of the key up to then.
    A key with pending rows is left out until they are published or discarded: its consumers would be told of an unchecked key.
    """
    now = _state_at(table, until)
    if now is None:
        return {}
    checked, visible = watermark.checked, visible_ingests(now)
    head = table.snapshot_at()
    oldest = table.log.at(head.root.oldest_version, head)
    begin, before = _ingests_before(table, visible, checked, since)
    new = {
        key: fresh
        for key, numbers in visible.items()
        if (fresh := numbers - before.get(key, frozenset()))
    }
    brought = _versions_of(table, range(max(begin, oldest.version) + 1, now.version + 1), new)
    untaken = {key for key in new if not watermark.has_consumed(key, len(visible[key]))}
    number = min([_settled_number(oldest), *(min(new[key]) - 1 for key in untaken)])
    watermark.check(_checked(now.version, checked, [brought.get(key) for key in untaken], number))
    held, pending = visible_ingests(oldest), _pending_keys(head)
    return {
        key: brought.get(key, oldest.version if key in held else now.version)
        for key in untaken
        if key not in pending
    }


def keep_seen_version(table: Table, consumer: str, seen: int | None) -> None:
    """A savepoint of the version that a consumer by version has seen, while it is behind, so that what came after it can still be read.

    `seen` is None when it is not behind. Only what may expire soon is kept, so that who is always a little behind costs no commits.
    """
    name, head = savepoint_of(consumer), table.snapshot_at()
    kept = head.root.savepoints.get(name)
    if kept == seen:
        return
    if seen and _may_expire_soon(table, head, seen):
        table.savepoint(name, seen, move=True)
    elif kept is not None:
        table.release(name)


def savepoint_of(consumer: str) -> str:
    """The name of its savepoint: the allowed characters of the consumer's name, and a digest that makes it unique."""
    return f"consumer.{_NOT_IN_NAMES.sub('_', consumer)[:_SHOWN]}-{sha256(consumer.encode()).hexdigest()[:12]}"


def _may_expire_soon(table: Table, head: Snapshot, version: int) -> bool:
    """Whether the next version is older than a quarter of the window, or of a retention's grace if that is shorter."""
    if not is_readable(head.root, version) or version == head.version:
        return False
    if version < head.root.oldest_version:
        return True  # another's savepoint is all that holds it
    span_us = min(parse_duration(span, name="window") for span in (head.spec.word("window"), GRACE))
    return (
        store_now_us(table.storage, table.log.clock) - CommitTimes(head).of(version + 1)
        >= span_us // 4
    )


def _pending_keys(snapshot: Snapshot) -> frozenset[str | None]:
    if snapshot.root.pending == 0:
        return frozenset()
    return frozenset(segment.partition_key for segment in snapshot.pending_segments.values())


def _state_at(table: Table, moment: datetime) -> Snapshot | None:
    try:
        return table.snapshot_at(timestamp=moment)
    except NotFoundError:
        return None


def _ingests_before(
    table: Table, visible: Ingests, checked: Checked | None, since: datetime
) -> tuple[int, Ingests]:
    """The version of the last check, and its ingests. If it has expired: all numbers below the oldest ingest that was still running."""
    if checked is None:
        then = _state_at(table, since)
        return (0, {}) if then is None else (then.version, visible_ingests(then))
    if is_readable(table.snapshot_at().root, checked.version):
        return checked.version, visible_ingests(table.snapshot_at(checked.version))
    return 0, {
        key: frozenset(number for number in numbers if number <= checked.number)
        for key, numbers in visible.items()
    }


def _versions_of(table: Table, looked_at: range, new: Ingests) -> dict[str, int]:
    """The last version that brought rows of each key, or the ingest of none, as far as the log reaches."""
    if not new:
        return {}
    keys = {number: key for key, numbers in new.items() for number in numbers}
    commits = table.log.commits_after(looked_at.start - 1, looked_at.stop - 1)
    return {
        keys[number]: commit.version
        for commit in commits
        for number in _made_visible(commit)
        if number in keys
    }


def _made_visible(commit: Commit) -> Iterator[int]:
    """The numbers of ingests whose rows do not wait after it. One of no rows has no segment that a MetaGen could name."""
    yield from map(segment_part, commit.actions.processed_ids)
    if (
        commit.number is not None
        and not commit.actions.ingested
        and commit.actions.ingested_side is None
    ):
        yield commit.number


def _settled_number(oldest: Snapshot) -> int:
    """The number up to which no ingest is running: earlier ones have ended before the oldest version, or are pending in it."""
    return min(
        [oldest.root.greatest_number, *(segment_part(segment) - 1 for segment in oldest.pending)]
    )


def _checked(
    now: int, before: Checked | None, untaken: Iterable[int | None], number: int
) -> Checked:
    """The version up to which all keys were consumed. It does not advance while a key is open whose version has expired."""
    last = 0 if before is None else before.version
    versions = [last if version is None else version - 1 for version in untaken]
    return Checked(version=max(last, min(versions, default=now)), number=number)
