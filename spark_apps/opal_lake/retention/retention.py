"""Retention: old versions expire, and what nothing needs any more is deleted (FORMAT, retention).

The commit comes first: it says which version is the oldest from now on, and which numbers of jobs are given up, so that none of them can
commit a file that is about to go. Only then is anything deleted, and whoever is killed meanwhile leaves files that the next run finds.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from opal_lake import layout
from opal_lake.duration import Duration, parse_duration
from opal_lake.errors import (
    ExpiredError,
    FormatError,
    NoSpaceError,
    NotFoundError,
    count_text,
)
from opal_lake.log.checkpoint import checkpoint_paths, ensure_checkpoint, read_lists
from opal_lake.log.commit import Actions, Commit, unseal
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.store_clock import Ages, clock_bound_us, clock_notes, store_now_us
from opal_lake.log.version_window import cutoff_us, oldest_kept, serving_checkpoint
from opal_lake.result import JobResult
from opal_lake.retention.garbage import LEFT_OVERS, Garbage, find_garbage, left_over_garbage
from opal_lake.retention.live_files import LogView, Needed, find_needed
from opal_lake.retention.log_digest import (
    NEW_COMMITS,
    LogDigest,
    completed,
    read_digest,
    write_digest,
)
from opal_lake.retention.log_pages import page_garbage, trim_pages
from opal_lake.storage.left_overs import remove_left_overs
from opal_lake.storage.protocol import READERS, Storage
from opal_lake.storage.verified import read_sealed

GRACE = "1d"
EXAMPLES = 100
_AT_ONCE = 1000  # deletions, of which S3 takes so many in a request

AtFile = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What a retention keeps: versions of the last `window` (None: the table's own), and jobs of `grace`."""

    window: Duration | None = None
    grace: Duration = GRACE


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """What a retention commits: the oldest version from now on, which was the newest at the cutoff, and the numbers that are given up."""

    oldest: int
    cutoff_us: int
    grace_us: int
    stale: frozenset[int]
    claims: frozenset[int]


def no_progress(done: int, total: int) -> None:
    """Progress is not shown."""


def retain(
    log: CommitLog,
    *,
    window: Duration | None = None,
    grace: Duration | None = None,
    dry_run: bool = False,
    at_file: AtFile = no_progress,
) -> JobResult:
    """Expire versions, give up jobs that take too long, delete what is left over.

    A repeat does what is left.
    """
    keep = Keep(window=window, grace=GRACE if grace is None else grace)
    try:
        return _retain(log, keep, at_file, dry_run=dry_run)
    except NotFoundError as error:  # what it began with, another one has let expire
        log.head()  # says why, where there is no table
        raise ExpiredError(f"another retention was faster: {error}; run it again") from error


def _retain(log: CommitLog, keep: Keep, at_file: AtFile, *, dry_run: bool) -> JobResult:
    started_us, head = log.clock.now_us(), log.head()
    claims, now_us = _claims(log.storage), store_now_us(log.storage, log.clock)
    digest = read_digest(log, head)
    expiry = plan_expiry(head, digest, claims, keep, now_us)
    view = _view(log, head, digest, expiry.oldest)
    if dry_run:
        needed = find_needed(view, expiry.claims, expiry.stale)
        return _build_result(log, head, expiry, _garbage(head, needed, expiry))
    counts: Counter[str] = Counter()
    version = None
    if expiry.stale or expiry.oldest > head.root.oldest_version:
        committed, counts = _expire(view, expiry, started_us, at_file)
        version = committed.version
        counts += Counter(committed.counts)
        now = log.refresh(head)
        view = _view(log, now, completed(log, now, digest), now.root.oldest_version, view.state)
    needed = find_needed(view, expiry.claims, frozenset())
    with log.derived():
        trim_pages(log.storage, head.root.table_id, needed.oldest)
    counts += _delete(log, needed, _garbage(head, needed, expiry), at_file)
    _keep_digest(view, needed)
    return JobResult(
        operation="retain",
        table=log.storage.uri,
        version=version,
        counts=dict(counts),
        timings_ms={"total": max(0, log.clock.now_us() - started_us) // 1000},
        notes=(
            *_notes(needed.oldest, needed.head),
            *clock_notes(log.storage.now_us(), head.root, log.storage.uri),
        ),
    )


def _expire(
    view: LogView, expiry: Expiry, started_us: int, at_file: AtFile
) -> tuple[JobResult, Counter[str]]:
    """Commit what expires. On a full disk, first delete what may go without that commit."""
    counts: Counter[str] = Counter()
    try:
        _secure(view)
        return _commit(view.log, view.head, expiry, started_us), counts
    except NoSpaceError:
        counts = _make_room(view, expiry, at_file)
    try:
        _secure(view)
        return _commit(view.log, view.head, expiry, started_us), counts
    except NoSpaceError as error:
        raise NoSpaceError(
            f"{view.log.storage.uri}: what expires cannot be deleted before that is committed, and there is no space for the "
            f"commit, though {count_text(counts['bytes'], 'byte')} were deleted ({error}); free 100 kB outside the table, "
            "then run it again"
        ) from error


def _make_room(view: LogView, expiry: Expiry, at_file: AtFile) -> Counter[str]:
    """Delete what an earlier commit lets go, and what is derived and of retention's own use.

    What is about to expire has to stay: nothing is given up before a commit says so.
    """
    log, head = view.log, view.head
    now = _view(log, head, view.digest, head.root.oldest_version)
    needed = find_needed(now, expiry.claims, frozenset())
    counts = _delete(log, needed, _garbage(head, needed, expiry), at_file)
    digests = [*log.storage.list(layout.DIGESTS)]
    log.storage.delete(entry.path for entry in digests)
    counts["bytes"] += sum(entry.size for entry in digests)
    return counts


def plan_expiry(
    head: Snapshot, digest: LogDigest, claims: Mapping[int, int], keep: Keep, now_us: int
) -> Expiry:
    """The window is never shorter than the grace: versions in use by jobs and readers stay. `claims` has the store's time of each.

    The recorded time of a commit or a claim may be that of a wrong clock, and a copy may have set its file's time.
    """
    window = keep.window if keep.window is not None else head.spec.word("window")
    cutoff = cutoff_us(window, keep.grace, now_us)
    grace_us = parse_duration(keep.grace, name="grace")
    used = digest.numbers() | head.root.abandoned
    unused = {number: stored for number, stored in claims.items() if number not in used}
    ages = Ages(
        has_store_time=head.storage.now_us() is not None,
        bound_us=clock_bound_us(head.spec),
        now_us=now_us,
    )
    commit_times = CommitTimes(head)
    times = {
        version: commit_times.corrected(version, entry.timestamp_us)
        for version, entry in digest.entries.items()
    }
    return Expiry(
        oldest=oldest_kept(
            head,
            cutoff,
            {version: ages.since(us, digest.modified_us[version]) for version, us in times.items()},
        ),
        cutoff_us=cutoff,
        grace_us=grace_us,
        stale=_stale(head.storage, unused, ages, now_us - grace_us),
        claims=frozenset(claims),
    )


def _view(
    log: CommitLog, head: Snapshot, digest: LogDigest, oldest: int, known: Snapshot | None = None
) -> LogView:
    state = (
        known
        if known is not None and known.version == oldest
        else log.at(oldest, head)
        if oldest < head.version
        else head
    )
    return LogView(
        log=log,
        head=head,
        state=state,
        digest=digest,
        checkpoints=tuple(checkpoint_paths(log.storage)),
    )


def _secure(view: LogView) -> None:
    """Ensure that a checkpoint serves the oldest version without the log below, and that its lists can be read."""
    state = view.state
    root = replace(view.head.root, oldest_version=state.version)
    if state.version > 0 and serving_checkpoint(root, view.root_versions.values()) is None:
        ensure_checkpoint(view.log.storage, state)
    read_lists(state)


def _garbage(head: Snapshot, needed: Needed, expiry: Expiry) -> list[Garbage]:
    storage = head.storage
    return [
        *find_garbage(storage, needed, expiry.cutoff_us),
        *left_over_garbage(storage, expiry.grace_us),
        *page_garbage(storage, head.root.table_id, needed.oldest),
    ]


def _keep_digest(view: LogView, needed: Needed) -> None:
    """Write a digest if it saves the next retention enough requests."""
    if view.digest.fresh < NEW_COMMITS:
        return
    with view.log.derived():
        write_digest(
            view.log.storage, replace(view.digest, roots=needed.roots), view.head, needed.begin
        )


def _claims(storage: Storage) -> dict[int, int]:
    return {
        number: entry.modified_us
        for entry in storage.list(layout.CLAIMS)
        if (number := layout.claim_number(entry.path)) is not None
    }


def _stale(
    storage: Storage, claims: Mapping[int, int], ages: Ages, before_us: int
) -> frozenset[int]:
    """Those that were claimed before a moment."""
    with ThreadPoolExecutor(READERS) as pool:
        claimed = zip(claims.items(), pool.map(partial(_claimed_us, storage), claims), strict=True)
        return frozenset(
            number
            for (number, stored), us in claimed
            if us is not None and ages.since(us, stored) <= before_us
        )


def _claimed_us(storage: Storage, number: int) -> int | None:
    """None if it is unknown: such a job counts as running."""
    path = layout.claim_path(number)
    try:
        return int(unseal(read_sealed(storage, path), f"{storage.uri}/{path}")["timestamp_us"])
    except (FormatError, NotFoundError, KeyError, TypeError, ValueError):
        return None


def _commit(log: CommitLog, base: Snapshot, expiry: Expiry, started_us: int) -> JobResult:
    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        """Another retention, or a job that was thought dead, may have been faster."""
        used = {commit.number for commit in head.commits if commit.version > base.version}
        stale = tuple(sorted(expiry.stale - used - head.root.abandoned))
        expired = max(0, expiry.oldest - head.root.oldest_version)
        if not stale and not expired:
            return None
        counts = {"versions": expired, "abandoned": len(stale)}
        actions = Actions(oldest_version=expiry.oldest if expired else None, abandoned=stale)
        return Draft(
            actions=actions,
            result=JobResult(operation="retain", table=log.storage.uri, counts=counts),
        )

    return log.commit(
        base, Proposal(operation="retain", number=None, build=build, started_us=started_us)
    )


def _delete(
    log: CommitLog, needed: Needed, garbage: Sequence[Garbage], at_file: AtFile
) -> Counter[str]:
    """But for what a commit named since: none should, as all that is younger than the grace was left out.

    What comes in one turn goes in any order, and much of it at once.
    """
    if not garbage:
        return Counter()
    needed = needed.grown(log.storage, log.commits_after(needed.head))
    left = [item for item in garbage if item.path not in needed.paths]
    counts: Counter[str] = Counter()
    done = 0
    with ThreadPoolExecutor(READERS) as pool:
        for _, turn in groupby(left, key=lambda item: item.turn):
            members = [*turn]
            portions = [
                members[start : start + _AT_ONCE] for start in range(0, len(members), _AT_ONCE)
            ]
            for portion in pool.map(partial(_delete_portion, log.storage), portions):
                at_file(done, len(left))
                done += len(portion)
                counts += counted(portion)
    return counts


def _delete_portion(storage: Storage, portion: Sequence[Garbage]) -> Sequence[Garbage]:
    remove = (
        partial(remove_left_overs, storage) if portion[0].kind == LEFT_OVERS else storage.delete
    )
    remove([item.path for item in portion])
    return portion


def counted(garbage: Iterable[Garbage]) -> Counter[str]:
    """By kind, and the bytes of all."""
    counts: Counter[str] = Counter()
    for item in garbage:
        counts[item.kind] += 1
        counts["bytes"] += item.size
    return counts


def _build_result(
    log: CommitLog, head: Snapshot, expiry: Expiry, garbage: Sequence[Garbage]
) -> JobResult:
    """What a run would do; the largest files as examples."""
    examples = sorted(garbage, key=lambda item: (-item.size, item.path))[:EXAMPLES]
    counts = {"versions": expiry.oldest - head.root.oldest_version, "abandoned": len(expiry.stale)}
    return JobResult(
        operation="retain",
        table=log.storage.uri,
        counts={
            name: number for name, number in (Counter(counts) + counted(garbage)).items() if number
        },
        notes=(
            "nothing was deleted: this was a dry run",
            *_shortened(len(examples), len(garbage)),
            *_notes(expiry.oldest, head.version),
            *clock_notes(log.storage.now_us(), head.root, log.storage.uri),
        ),
        examples=tuple(
            {"path": item.path, "size": item.size, "why": item.why} for item in examples
        ),
    )


def _shortened(shown: int, total: int) -> tuple[str, ...]:
    return (f"listed are the {shown:,} largest of {total:,} files",) if shown < total else ()


def _notes(oldest: int, newest: int) -> tuple[str, ...]:
    return (f"readable are the versions {oldest} to {newest}",)
