"""Pending segments: their choice by a job, their discard, and notes about them (FORMAT, §15)."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from opal_lake.clock import moment_text
from opal_lake.data.segment import DiscardedSegment, PendingSegment
from opal_lake.errors import InvalidInputError, NotFoundError, count_text
from opal_lake.ids import segment_part
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.snapshot import Snapshot, newest_first

MAX_KEYS_NOTED = 5  # so many of the oldest partition keys have a note of their own
MAX_KEYS_LISTED = 100  # so many partition keys are listed in a result
_AGES = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A choice of pending segments: those of a partition key, of some tokens, or all.

    The default selects the segments of ingests without a partition key. `of_business_snapshots`
    also selects the segments of all business snapshots, whatever their partition key is.
    """

    partition_key: str | None = None
    tokens: tuple[str, ...] | None = None
    all: bool = False
    of_business_snapshots: bool = False

    def takes(self, segment: PendingSegment) -> bool:
        """Return whether a pending segment is selected."""
        if self.all:
            return True
        if self.of_business_snapshots and segment.business_snapshot is not None:
            return True
        if self.tokens is not None:
            return any(segment.is_of_token(token) for token in self.tokens)
        return segment.partition_key == self.partition_key

    @property
    def name(self) -> str:
        """The selection, for messages."""
        if self.all:
            return "any partition key"
        if self.tokens is not None:
            noun = "token" if len(self.tokens) == 1 else "tokens"
            return f"{noun} {', '.join(map(repr, self.tokens))}"
        if self.partition_key is not None:
            return f"partition key {self.partition_key!r}"
        return "ingests without a partition key"

    def of(self, snapshot: Snapshot) -> frozenset[int]:
        """Return the ids of the selected segments in a state."""
        if not snapshot.root.pending or self.tokens == ():
            return frozenset()
        pending = snapshot.pending_segments.values()
        return frozenset(segment.id for segment in pending if self.takes(segment))


WITHOUT_KEY = Selection()
EVERYTHING = Selection(all=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingKey:
    """The pending rows of one partition key, or of ingests without one, and their age."""

    partition_key: str | None
    segments: int
    rows: int
    ingested_us: int

    def to_json(self) -> dict[str, Any]:
        return {
            "partition_key": self.partition_key,
            "segments": self.segments,
            "rows": self.rows,
            "ingested_at": moment_text(self.ingested_us),
        }


def pending_keys(snapshot: Snapshot, without: Collection[int] = frozenset()) -> list[PendingKey]:
    """Return the partition keys with pending segments, oldest first.

    Segments whose ids are in `without` do not count.
    """
    if snapshot.root.pending == 0:
        return []
    times = CommitTimes(snapshot)
    segments_by_key: dict[str | None, list[PendingSegment]] = {}
    for segment in snapshot.pending_segments.values():
        if segment.id not in without:
            segments_by_key.setdefault(segment.partition_key, []).append(segment)
    keys = [_pending_key(key, segments, times) for key, segments in segments_by_key.items()]
    return sorted(keys, key=lambda key: (key.ingested_us, key.partition_key or ""))


def _pending_key(
    partition_key: str | None, segments: list[PendingSegment], times: CommitTimes
) -> PendingKey:
    """Sum up the pending segments of a partition key."""
    ingests = {(segment.version, segment.ingested_us) for segment in segments}
    return PendingKey(
        partition_key=partition_key,
        segments=len(segments),
        rows=sum(segment.rows for segment in segments),
        ingested_us=min(times.corrected(version, recorded) for version, recorded in ingests),
    )


def pending_notes(keys: Collection[PendingKey], now_us: int) -> tuple[str, ...]:
    """Return notes: one for each of the oldest partition keys, one for all others.

    `keys` are sorted, oldest first.
    """
    by_age = [*keys]
    others = by_age[MAX_KEYS_NOTED:]
    notes = [_pending_note(key, now_us) for key in by_age[:MAX_KEYS_NOTED]]
    if others:
        verb = "stays" if len(others) == 1 else "stay"
        notes.append(
            f"{count_text(len(others), 'more partition key')} {verb} pending: {_amount(others)}; "
            "`opal describe` lists all pending keys"
        )
    return tuple(notes)


def _pending_note(key: PendingKey, now_us: int) -> str:
    amount = f"{_amount([key])}, ingested {age_text(now_us - key.ingested_us)} ago"
    if key.partition_key is None:
        return (
            f"rows without a partition key stay pending: {amount}; publish them with metagen(), "
            "or withdraw them with discard(token=...)"
        )
    argument = f"partition_key={key.partition_key!r}"
    return (
        f"partition key {key.partition_key} stays pending: {amount}; publish it with "
        f"metagen({argument}), or withdraw it with discard({argument})"
    )


def _amount(keys: Collection[PendingKey]) -> str:
    """Describe the pending rows of some keys: `2 segments, 300 rows`."""
    segments = sum(key.segments for key in keys)
    rows = sum(key.rows for key in keys)
    return f"{count_text(segments, 'segment')}, {count_text(rows, 'row')}"


def age_text(age_us: int) -> str:
    """Describe an age, rounded down to its largest unit: `2 hours`."""
    seconds = max(0, age_us) // 1_000_000
    for unit_s, unit in _AGES:
        if seconds >= unit_s:
            return count_text(seconds // unit_s, unit)
    return count_text(seconds, "second")


def discarding(snapshot: Snapshot, chosen: Collection[int]) -> Actions:
    """Return the actions that discard the chosen pending segments."""
    if not chosen:
        return Actions()
    path_of_segment: dict[int, str] = {}
    for path, file in snapshot.files.items():
        # I30: a pending segment is in exactly one file, since a rewrite takes only visible rows
        path_of_segment.update(dict.fromkeys(file.segments, path))
    discarded: list[DiscardedSegment] = []
    for number in sorted(chosen):
        path = path_of_segment[number]
        discarded.append(DiscardedSegment(path=path, segment=snapshot.segments[number]))
    other_segments = snapshot.segments.keys() - {*chosen}
    remaining = {segment_part(number) for number in other_segments}
    emptied = {segment_part(number) for number in chosen} - remaining
    return Actions(
        discarded=tuple(discarded),
        withdrawn=withdrawn_ingests(snapshot, chosen, remaining),
        unheld=tuple(sorted(emptied & snapshot.root.business.held_numbers)),
    )


def withdrawn_ingests(
    snapshot: Snapshot, chosen: Collection[int], remaining: Collection[int]
) -> tuple[tuple[str, int], ...]:
    """Return the partition key and number of each ingest that loses its last segment.

    `chosen` are pending segments that are given up. `remaining` are the numbers of ingests that
    keep other segments, visible or pending.
    """
    # Rows of incomplete ingests were published before a compaction dropped them
    remaining = {*remaining, *snapshot.root.incomplete_ingests}
    withdrawn: set[tuple[str, int]] = set()
    for number in chosen:
        segment = snapshot.pending_segments[number]
        ingest = segment_part(segment.id)
        if segment.partition_key is not None and ingest not in remaining:
            withdrawn.add((segment.partition_key, ingest))
    return tuple(sorted(withdrawn))


def discarded_since(snapshot: Snapshot, version: int) -> dict[int, int]:
    """Return the segments discarded after a version: ids, with the later versions."""
    discarded: dict[int, int] = {}
    for commit in snapshot.commits:
        if commit.version > version:
            for item in commit.actions.discarded:
                discarded[item.segment.id] = commit.version
    return discarded


def check_tokens(
    head: Snapshot,
    tokens: Iterable[str],
    read_commit: Callable[[int], Commit],
    read_back: Callable[[int], Commit],
) -> None:
    """Raise the errors of `undone_note` for tokens without pending rows.

    A token whose ingest a restore undid is accepted: nobody discarded its rows.
    """
    pending = head.pending_segments.values() if head.root.pending else ()
    for token in tokens:
        if not any(segment.is_of_token(token) for segment in pending):
            undone_note(head, token, read_commit, read_back)


def undone_note(
    head: Snapshot,
    token: str,
    read_commit: Callable[[int], Commit],
    read_back: Callable[[int], Commit],
    *,
    remedy: str = "ingest them again, with another token",
) -> str | None:
    """Return a note if a restore undid the ingest of a token, otherwise None.

    Raises NotFoundError if the token is unknown. Raises InvalidInputError if the token is not that
    of an ingest, or if rows of the ingest were discarded or replaced; the message ends with
    `remedy`. `read_back` reads commits from the head down, `read_commit` a single one.
    """
    commit = _commit_of_token(head, token, read_commit, read_back)
    uri = head.storage.uri
    if commit is None:
        if head.version_of_token(token) is not None:
            return None  # its commit has expired
        raise NotFoundError(
            f"{uri} has no ingest with token {token!r} up to version {head.version}; "
            "`opal history` lists the tokens"
        )
    if commit.operation != "ingest":
        raise InvalidInputError(
            f"{uri}: token {token!r} belongs to the {commit.operation} of version "
            f"{commit.version}, not to an ingest; give the token of an ingest"
        )
    if commit.token != token:
        raise InvalidInputError(
            f"{uri}: version {commit.version} replaced the ingest with token {token!r} before that "
            f"ingest committed, so that its rows are not in the table; {remedy}"
        )
    removal = _removal_of(head, commit, read_back)
    if removal is None:
        return None
    restored = removal.actions.restored
    if restored is None:
        raise InvalidInputError(
            f"{uri}: version {removal.version} discarded the rows that were ingested with token "
            f"{token!r}; {remedy}"
        )
    return (
        f"version {removal.version}, a restore of version {restored.version}, undid version "
        f"{commit.version}, the ingest with token {token!r}. A repeat with this token ingests "
        "nothing: to bring the rows back, ingest them again with another token"
    )


def _commit_of_token(
    head: Snapshot,
    token: str,
    read_commit: Callable[[int], Commit],
    read_back: Callable[[int], Commit],
) -> Commit | None:
    """Return the readable commit with a token, even one that the head has forgotten.

    None if there is none, or if it has expired.
    """
    version = head.version_of_token(token)
    if version is None:
        for commit in newest_first(head, read_back):
            if commit.token == token or token in commit.actions.replaced_tokens:
                return commit
        return None
    try:
        return read_commit(version)
    except NotFoundError:
        return None


def _removal_of(
    head: Snapshot, ingest: Commit, read_back: Callable[[int], Commit]
) -> Commit | None:
    """Return the discard or the restore that removed all rows of an ingest, or None.

    None if the head still has rows of the ingest, if the ingest had no rows, or if a compaction
    dropped all of its rows.
    """
    has_rows = ingest.actions.ingested or ingest.actions.ingested_side
    if not has_rows:
        return None
    if any(segment_part(number) == ingest.number for number in head.segments):
        return None
    # A restore undoes all commits after the version that it brings back: they are skipped
    newest_standing = head.version
    for commit in newest_first(head, read_back):
        if commit.version <= ingest.version:
            return None
        if commit.version > newest_standing:
            continue
        if commit.actions.restored is not None:
            newest_standing = commit.actions.restored.version
            if newest_standing < ingest.version:
                return commit
        discarded = commit.actions.discarded
        if any(segment_part(item.segment.id) == ingest.number for item in discarded):
            return commit
    return None
