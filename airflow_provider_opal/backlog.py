"""Partition keys that a consumer has not consumed.

The ingests of each key are counted, so that a key is not missed because its version has expired.
"""

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

# By partition key: the numbers of the ingests that brought rows of the key
Ingests = Mapping[str, frozenset[int]]

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_NAME_CHARACTERS = 60
_DIGEST_CHARACTERS = 12


def unconsumed_keys(
    table: Table, watermark: Watermark, since: datetime, until: datetime
) -> dict[str, int]:
    """Return the keys with unconsumed visible rows, each with its last version.

    Only rows that became visible by `until` count. The check examines the ingests since the last
    check that found all keys consumed. The first check goes back to `since`, or examines all keys
    if the log does not reach that far. If the version of a key has expired, the oldest version
    stands for it, which has all earlier rows of the key. A key with pending rows is left out until
    these rows are published or discarded: its consumers would otherwise read unchecked rows.
    """
    now = _state_at(table, until)
    if now is None:
        return {}
    checked, visible = watermark.checked, visible_ingests(now)
    head = table.snapshot_at()
    oldest = table.log.at(head.root.oldest_version, head)
    begin, before = _ingests_before(table, visible, checked, since)
    fresh = _fresh_ingests(visible, before)
    versions_to_read = range(max(begin, oldest.version) + 1, now.version + 1)
    last_versions = _last_versions(table, versions_to_read, fresh)
    unconsumed = {key for key in fresh if not watermark.has_consumed(key, len(visible[key]))}

    # Ingests from the first unconsumed one on are examined again if this version expires
    number = min([_settled_number(oldest), *(min(fresh[key]) - 1 for key in unconsumed)])
    versions_of_unconsumed = [last_versions.get(key) for key in unconsumed]
    watermark.check(_checked(now.version, checked, versions_of_unconsumed, number))

    in_oldest = visible_ingests(oldest)
    keys = {}
    for key in unconsumed - _pending_keys(head):
        fallback = oldest.version if key in in_oldest else now.version
        keys[key] = last_versions.get(key, fallback)
    return keys


def keep_seen_version(table: Table, consumer: str, seen: int | None) -> None:
    """Keep the version that a consumer has seen readable while it is behind.

    `seen` is None when the consumer is not behind. A savepoint is set only if the version may
    expire soon, so that a consumer that is always a little behind costs no commits.
    """
    name, head = savepoint_of(consumer), table.snapshot_at()
    saved_version = head.root.savepoints.get(name)
    if saved_version == seen:
        return
    if seen and _may_expire_soon(table, head, seen):
        table.savepoint(name, seen, move=True)
    elif saved_version is not None:
        table.release(name)


def savepoint_of(consumer: str) -> str:
    """Return the name of a consumer's savepoint.

    It holds the allowed characters of the consumer's name, and a digest that makes it unique.
    """
    readable = _NOT_IN_NAMES.sub("_", consumer)[:_MAX_NAME_CHARACTERS]
    digest = sha256(consumer.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"consumer.{readable}-{digest}"


def _may_expire_soon(table: Table, head: Snapshot, version: int) -> bool:
    """Return whether retention may soon let a readable version expire.

    The age of the next version decides when a version expires. Soon means: that age is at least a
    quarter of the window, or of retention's grace if the grace is shorter.
    """
    if not is_readable(head.root, version) or version == head.version:
        return False
    if version < head.root.oldest_version:
        return True  # it is readable only as long as someone else keeps a savepoint of it
    spans = (head.spec.word("window"), GRACE)
    shortest_us = min(parse_duration(span, name="window") for span in spans)
    now_us = store_now_us(table.storage, table.log.clock)
    age_us = now_us - CommitTimes(head).of(version + 1)
    return age_us >= shortest_us // 4


def _pending_keys(snapshot: Snapshot) -> frozenset[str | None]:
    if snapshot.root.pending == 0:
        return frozenset()
    return frozenset(segment.partition_key for segment in snapshot.pending_segments.values())


def _state_at(table: Table, moment: datetime) -> Snapshot | None:
    try:
        return table.snapshot_at(timestamp=moment)
    except NotFoundError:
        return None


def _fresh_ingests(visible: Ingests, before: Ingests) -> dict[str, frozenset[int]]:
    """Return the ingests of each key that were not visible before, if any."""
    fresh = {}
    for key, numbers in visible.items():
        fresh_numbers = numbers - before.get(key, frozenset())
        if fresh_numbers:
            fresh[key] = fresh_numbers
    return fresh


def _ingests_before(
    table: Table, visible: Ingests, checked: Checked | None, since: datetime
) -> tuple[int, Ingests]:
    """Return the version of the last check, and the ingests that were visible at it.

    If that version has expired, return 0 and the visible ingests up to the number that the check
    stored.
    """
    if checked is None:
        first = _state_at(table, since)
        if first is None:
            return 0, {}
        return first.version, visible_ingests(first)
    if is_readable(table.snapshot_at().root, checked.version):
        return checked.version, visible_ingests(table.snapshot_at(checked.version))
    before = {}
    for key, numbers in visible.items():
        before[key] = frozenset(number for number in numbers if number <= checked.number)
    return 0, before


def _last_versions(table: Table, versions: range, fresh: Ingests) -> dict[str, int]:
    """Return the last of the versions that brought rows of each key.

    Keys without such a version in the log are left out.
    """
    if not fresh:
        return {}
    key_of_number = {}
    for key, numbers in fresh.items():
        key_of_number.update(dict.fromkeys(numbers, key))
    last_versions = {}
    for commit in table.log.commits_after(versions.start - 1, versions.stop - 1):
        for number in _made_visible(commit):
            if number in key_of_number:
                last_versions[key_of_number[number]] = commit.version
    return last_versions


def _made_visible(commit: Commit) -> Iterator[int]:
    """Yield the numbers of the ingests whose rows are not pending after a commit."""
    actions = commit.actions
    yield from map(segment_part, actions.processed_ids)
    # An ingest without rows has no segment that a MetaGen could name
    has_no_rows = not actions.ingested and actions.ingested_side is None
    if commit.number is not None and has_no_rows:
        yield commit.number


def _settled_number(oldest: Snapshot) -> int:
    """Return the number up to which all ingests are settled in the oldest version.

    An ingest is settled if it has ended and its rows are not pending.
    """
    before_pending = [segment_part(segment) - 1 for segment in oldest.pending]
    return min([oldest.root.greatest_number, *before_pending])


def _checked(
    newest: int, before: Checked | None, unconsumed: Iterable[int | None], number: int
) -> Checked:
    """Return a check with the version up to which all keys were consumed.

    `unconsumed` are the last versions of unconsumed keys. None stands for an expired version: then
    the check stays at the version of the check before.
    """
    last = 0 if before is None else before.version
    settled = newest
    for version in unconsumed:
        settled = min(settled, last if version is None else version - 1)
    return Checked(version=max(last, settled), number=number)
