"""Pending rows, by the ingests that brought them: which of them a job takes, and which stay (FORMAT, pending segments)."""

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

KEYS_TOLD = 5  # in notes, oldest first
MAX_KEYS_LISTED = 100  # in a result
_AGES = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The pending segments of a partition key, of some tokens, or all.

    Otherwise those of ingests without a partition key. `of_business_snapshots` adds those that
    belong to one, whatever their partition key is.
    """

    partition_key: str | None = None
    tokens: tuple[str, ...] | None = None
    all: bool = False
    of_business_snapshots: bool = False

    def takes(self, segment: PendingSegment) -> bool:
        if self.all:
            return True
        if self.of_business_snapshots and segment.business_snapshot is not None:
            return True
        if self.tokens is not None:
            return any(segment.is_of_token(token) for token in self.tokens)
        return segment.partition_key == self.partition_key

    @property
    def name(self) -> str:
        """What it selects, for messages."""
        if self.all:
            return "any partition key"
        if self.tokens is not None:
            tokens = ", ".join(map(repr, self.tokens))
            return f"token {tokens}" if len(self.tokens) == 1 else f"tokens {tokens}"
        if self.partition_key is not None:
            return f"partition key {self.partition_key!r}"
        return "ingests without a partition key"

    def of(self, snapshot: Snapshot) -> frozenset[int]:
        """The ids of these segments in a state."""
        if not snapshot.root.pending or self.tokens == ():
            return frozenset()
        pending = snapshot.pending_segments.values()
        return frozenset(segment.id for segment in pending if self.takes(segment))


WITHOUT_KEY = Selection()
EVERYTHING = Selection(all=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingKey:
    """What is pending of one partition key, or without one, and since when."""

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
    """The partition keys that have pending segments other than `without`, the oldest first."""
    if snapshot.root.pending == 0:
        return []
    times = CommitTimes(snapshot)
    segments_by_key: dict[str | None, list[PendingSegment]] = {}
    for segment in snapshot.pending_segments.values():
        if segment.id not in without:
            segments_by_key.setdefault(segment.partition_key, []).append(segment)
    keys = [
        PendingKey(
            partition_key=key,
            segments=len(segments),
            rows=sum(segment.rows for segment in segments),
            ingested_us=min(
                times.corrected(version, ingested_us)
                for version, ingested_us in {(one.version, one.ingested_us) for one in segments}
            ),
        )
        for key, segments in segments_by_key.items()
    ]
    return sorted(keys, key=lambda key: (key.ingested_us, key.partition_key or ""))


def pending_notes(keys: Collection[PendingKey], now_us: int) -> tuple[str, ...]:
    """A note for each of the oldest keys, and one for the others."""
    told, others = [*keys][:KEYS_TOLD], [*keys][KEYS_TOLD:]
    notes = [_pending_note(key, now_us) for key in told]
    if others:
        stay = "stays" if len(others) == 1 else "stay"
        notes.append(
            f"{count_text(len(others), 'more partition key')} {stay} pending: {_amount(others)}; "
            "`opal describe` lists them"
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


def _amount(keys: Iterable[PendingKey]) -> str:
    segments, rows = sum(key.segments for key in keys), sum(key.rows for key in keys)
    return f"{count_text(segments, 'segment')}, {count_text(rows, 'row')}"


def age_text(age_us: int) -> str:
    """Round an age down to its largest unit: 2 hours."""
    seconds = max(0, age_us) // 1_000_000
    size, unit = next((one for one in _AGES if seconds >= one[0]), _AGES[-1])
    return count_text(seconds // size, unit)


def discarding(snapshot: Snapshot, chosen: Collection[int]) -> Actions:
    """The actions that give up pending segments. A pending segment lies in one file: no rewrite takes it."""
    if not chosen:
        return Actions()
    paths = {segment: path for path, file in snapshot.files.items() for segment in file.segments}
    discarded = tuple(
        DiscardedSegment(path=paths[number], segment=snapshot.segments[number])
        for number in sorted(chosen)
    )
    kept = {segment_part(number) for number in snapshot.segments.keys() - {*chosen}}
    held = snapshot.root.business.held_numbers
    emptied = {segment_part(number) for number in chosen} - kept
    return Actions(
        discarded=discarded,
        withdrawn=withdrawn_ingests(snapshot, chosen, kept),
        unheld=tuple(sorted(emptied & held)),
    )


def withdrawn_ingests(
    snapshot: Snapshot, chosen: Collection[int], kept: Collection[int]
) -> tuple[tuple[str, int], ...]:
    """Return the keys and numbers of ingests of which nothing is left, visible or pending.

    `chosen` are pending segments that go, `kept` the numbers of ingests with others that stay.
    """
    # A compaction dropped rows of these that were visible
    kept = {*kept, *snapshot.root.incomplete_ingests}
    ingests = {
        (segment.partition_key, segment_part(segment.id))
        for segment in map(snapshot.pending_segments.__getitem__, chosen)
    }
    return tuple(
        sorted((key, number) for key, number in ingests if key is not None and number not in kept)
    )


def discarded_since(snapshot: Snapshot, version: int) -> dict[int, int]:
    """The segments that commits after a version discarded, each with the version of that commit."""
    return {
        discarded.segment.id: commit.version
        for commit in snapshot.commits
        if commit.version > version
        for discarded in commit.actions.discarded
    }


def check_tokens(
    head: Snapshot,
    tokens: Iterable[str],
    read_commit: Callable[[int], Commit],
    read_back: Callable[[int], Commit],
) -> None:
    """Raise unless each token is that of an ingest whose rows are pending or visible.

    A token whose ingest a restore undid passes: its rows are neither, and nobody gave them up.
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
    """Return the note that a restore undid the ingest with this token; None if none did.

    Raises unless an ingest has this token, and none of its rows was discarded or replaced: then
    with this remedy.
    `read_back` reads commits from the head down, `read_commit` a single one.
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
            f"{uri}: token {token!r} is that of the {commit.operation} of version "
            f"{commit.version}; give the token of an ingest"
        )
    if commit.token != token:
        raise InvalidInputError(
            f"{uri}: version {commit.version} replaced the ingest with token {token!r} before it "
            f"committed, so that it adds no rows; {remedy}"
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
        f"{commit.version}, the ingest with token {token!r}; a repeat with this token ingests "
        "nothing: to bring the rows back, ingest them again with another token"
    )


def _commit_of_token(
    head: Snapshot,
    token: str,
    read_commit: Callable[[int], Commit],
    read_back: Callable[[int], Commit],
) -> Commit | None:
    """The readable commit with a token; the head may have forgotten the token."""
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
    """Return the discard or the restore by which the head has no rows of an ingest.

    None if it has some, or if an ingest without rows, or a compaction of rows that no version
    shows any more, is the reason. A restore of a version that had the ingest goes on from that
    version: commits in between do not count.
    """
    brought = ingest.actions.ingested or ingest.actions.ingested_side
    if not brought or any(segment_part(number) == ingest.number for number in head.segments):
        return None
    goes_on_at = head.version
    for commit in newest_first(head, read_back):
        if commit.version <= ingest.version:
            return None
        if commit.version > goes_on_at:
            continue
        if commit.actions.restored is not None:
            goes_on_at = commit.actions.restored.version
            if goes_on_at < ingest.version:
                return commit
        if any(
            segment_part(discarded.segment.id) == ingest.number
            for discarded in commit.actions.discarded
        ):
            return commit
    return None
