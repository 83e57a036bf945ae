"""Retention: old versions expire, and files that nothing needs are deleted (FORMAT, retention).

The commit comes first. It sets the oldest version, and gives up numbers of jobs, so that none of
these jobs can commit a file that is about to be deleted. Files are deleted after the commit. If a
retention is killed meanwhile, the next one deletes the remaining files.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby

from opal_lake import layout
from opal_lake.duration import Duration, parse_duration
from opal_lake.errors import (
    ConflictError,
    ExpiredError,
    FormatError,
    NoSpaceError,
    NotFoundError,
    count_text,
)
from opal_lake.log.checkpoint import (
    checkpoint_paths,
    ensure_checkpoint,
    read_checkpoint,
    read_lists,
)
from opal_lake.log.commit import Actions, Commit, unseal
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.store_clock import Ages, clock_bound_us, clock_notes, store_now_us
from opal_lake.log.version_window import (
    cutoff_us,
    oldest_kept,
    savepoints_text,
    serving_checkpoint,
)
from opal_lake.result import JobResult
from opal_lake.retention.earlier_files import find_earlier_files
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
EXAMPLES = 100  # files that a dry run lists
_AT_ONCE = 1000  # files that S3 deletes in a request

AtFile = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The spans of a retention: it keeps versions of `window` and jobs of `grace`.

    Without a window, the table's property `window` applies.
    """

    window: Duration | None = None
    grace: Duration = GRACE


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The content of a retention's commit.

    `oldest` becomes the oldest version: it was the newest one at the cutoff. `stale` are the
    numbers of jobs that are given up, and `claims` all claimed numbers.
    """

    oldest: int
    cutoff_us: int
    grace_us: int
    stale: frozenset[int]
    claims: frozenset[int]


def no_progress(done: int, total: int) -> None:
    """Show no progress."""


def retain(
    log: CommitLog,
    *,
    window: Duration | None = None,
    grace: Duration | None = None,
    dry_run: bool = False,
    at_file: AtFile = no_progress,
) -> JobResult:
    """Expire versions, give up overdue jobs, and delete files that nothing needs.

    If a retention dies, a repeat does its remaining steps.
    """
    keep = Keep(window=window, grace=GRACE if grace is None else grace)
    try:
        return _retain(log, keep, at_file, dry_run=dry_run)
    except NotFoundError as error:
        log.head()  # raises a better error if the table is missing
        raise ExpiredError(
            f"another retention deleted files meanwhile ({error}); run `opal retain` again"
        ) from error


def _retain(log: CommitLog, keep: Keep, at_file: AtFile, *, dry_run: bool) -> JobResult:
    started_us = log.clock.now_us()
    head = log.head()
    claims = _claims(log.storage)
    now_us = store_now_us(log.storage, log.clock)
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
        newest = log.refresh(head)
        digest = completed(log, newest, digest)
        view = _view(log, newest, digest, newest.root.oldest_version, view.state)
    needed = find_needed(view, expiry.claims, frozenset())
    with log.derived():
        trim_pages(log.storage, head.root.table_id, needed.oldest)
    counts += _delete(log, needed, _garbage(head, needed, expiry), at_file)
    _keep_digest(view, needed)
    took_us = max(0, log.clock.now_us() - started_us)
    return JobResult(
        operation="retain",
        table=log.storage.uri,
        version=version,
        counts=dict(counts),
        timings_ms={"total": took_us // 1000},
        notes=(
            _readable_note(needed.oldest, needed.head),
            *clock_notes(log.storage.now_us(), head.root, log.storage.uri),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The outcome of a cut: the deleted files, and the older ones that remain."""

    deleted_files: int
    remaining_files: int
    notes: tuple[str, ...]


def cut(log: CommitLog, erased: int, *, grace: Duration) -> Cut:
    """Delete all files from before an erasure, once the grace has passed.

    The version of the erasure becomes the oldest one, unless that is a later one already. Before
    the grace has passed, nothing is changed: jobs and readers that began earlier may still need the
    files. If a cut dies, a repeat does its remaining steps.
    """
    try:
        return _cut(log, erased, grace)
    except NotFoundError as error:
        log.head()  # raises a better error if the table is missing
        raise ExpiredError(
            f"another retention deleted files meanwhile ({error}); run the erase again"
        ) from error


def _cut(log: CommitLog, erased: int, grace: Duration) -> Cut:
    started_us = log.clock.now_us()
    head = log.head()
    claims = _claims(log.storage)
    now_us = store_now_us(log.storage, log.clock)
    digest = read_digest(log, head)
    # A retention may have deleted the erasure's commit: then the next one has the latest time at
    # which a file from before the erasure can have been stored
    first = min(version for version in digest.entries if version >= erased)
    _refuse_restored(log, erased, first)
    # A retention that was killed may have made a later version the oldest one, and left files
    oldest = max(erased, head.root.oldest_version)
    keep = Keep(window=grace, grace=grace)
    planned = plan_expiry(head, digest, claims, keep, now_us)
    entry = digest.entries[first]
    is_due = planned.grace_us == 0 or planned.oldest >= oldest
    cut_us = CommitTimes(head).corrected(first, entry.timestamp_us)
    # A job that began before the erasure may still write files with erased rows
    unused = planned.claims - digest.numbers() - head.root.abandoned
    earlier = {number for number in unused if first == erased and number < (entry.number or 0)}
    expiry = replace(planned, oldest=oldest, cutoff_us=cut_us, stale=planned.stale | earlier)
    if not is_due:
        view = _view(log, head, digest, oldest)
        needed = find_needed(view, expiry.claims, expiry.stale)
        remaining = len(_garbage(head, needed, expiry))
        due = datetime.fromtimestamp((cut_us + expiry.grace_us) / 1_000_000, UTC)
        note = (
            f"{count_text(remaining, 'file')} of older versions still exist, because jobs and "
            f"readers may need them until {due.isoformat(timespec='seconds')}; run the same erase "
            "again after that, and it deletes them"
        )
        return Cut(deleted_files=0, remaining_files=remaining, notes=(note,))
    _refuse_older_savepoints(head, erased)
    _secure(_view(log, head, digest, oldest))
    if expiry.stale or expiry.oldest > head.root.oldest_version:
        _commit(log, head, expiry, started_us, erased=erased)
        head = log.refresh(head)
        digest = completed(log, head, digest)
        oldest = head.root.oldest_version
    # The state is read from its own checkpoint: older ones list files with erased values
    view = _view(log, head, digest, oldest, read_checkpoint(log.storage, oldest))
    needed = find_needed(view, expiry.claims, frozenset())
    trim_pages(log.storage, head.root.table_id, needed.oldest)
    # Names of files, and so of folders of partitions, are in the digests of the log, too
    log.storage.delete(digest.stored)
    deleted = _delete(log, needed, _garbage(head, needed, expiry), no_progress)
    files = deleted.total() - deleted["bytes"]
    # The times of other files are the store's, too
    erased_us = digest.modified_us[first]
    stays = find_earlier_files(log, head, needed, claims, (erased, erased_us))
    notes = [
        f"all files of versions before {erased} are deleted",
        _readable_note(oldest, head.version),
    ]
    notes += stays.notes
    return Cut(deleted_files=files, remaining_files=stays.number, notes=tuple(notes))


def _expire(
    view: LogView, expiry: Expiry, started_us: int, at_file: AtFile
) -> tuple[JobResult, Counter[str]]:
    """Commit an expiry; return its result, and counts of files deleted to make room.

    On a full disk, files that earlier commits let expire are deleted first.
    """
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
        freed = count_text(counts["bytes"], "byte")
        raise NoSpaceError(
            f"{view.log.storage.uri}: the disk has no space for the commit of this retention, "
            f"though {freed} were deleted ({error}). Expired files can be deleted only after the "
            "commit: free 100 kB outside the table, then run `opal retain` again"
        ) from error


def _make_room(view: LogView, expiry: Expiry, at_file: AtFile) -> Counter[str]:
    """Delete files that earlier commits let expire, and retention's own derived files.

    Files of versions that are about to expire have to stay until that is committed.
    """
    log, head = view.log, view.head
    current_view = _view(log, head, view.digest, head.root.oldest_version)
    needed = find_needed(current_view, expiry.claims, frozenset())
    counts = _delete(log, needed, _garbage(head, needed, expiry), at_file)
    digests = [*log.storage.list(layout.DIGESTS)]
    log.storage.delete(entry.path for entry in digests)
    counts["bytes"] += sum(entry.size for entry in digests)
    return counts


def plan_expiry(
    head: Snapshot, digest: LogDigest, claims: Mapping[int, int], keep: Keep, now_us: int
) -> Expiry:
    """Plan which versions expire, and which numbers are given up.

    `claims` has the store's time of each number. The window is never shorter than the grace:
    versions in use by jobs and readers stay.
    """
    window = keep.window if keep.window is not None else head.spec.word("window")
    cutoff = cutoff_us(window, keep.grace, now_us)
    grace_us = parse_duration(keep.grace, name="grace")
    used = digest.numbers() | head.root.abandoned
    unused_claims = {number: at_us for number, at_us in claims.items() if number not in used}
    # A recorded time may be that of a wrong clock, and a copy may have set the time of a file
    ages = Ages(
        has_store_time=head.storage.now_us() is not None,
        bound_us=clock_bound_us(head.spec),
        now_us=now_us,
    )
    commit_times = CommitTimes(head)
    since_us: dict[int, int] = {}
    for version, entry in digest.entries.items():
        recorded_us = commit_times.corrected(version, entry.timestamp_us)
        since_us[version] = ages.since(recorded_us, digest.modified_us[version])
    return Expiry(
        oldest=oldest_kept(head, cutoff, since_us),
        cutoff_us=cutoff,
        grace_us=grace_us,
        stale=_stale(head.storage, unused_claims, ages, now_us - grace_us),
        claims=frozenset(claims),
    )


def _view(
    log: CommitLog, head: Snapshot, digest: LogDigest, oldest: int, known: Snapshot | None = None
) -> LogView:
    """Return the view whose state is version `oldest`; `known` may be that state."""
    if known is not None and known.version == oldest:
        state = known
    elif oldest < head.version:
        state = log.at(oldest, head)
    else:
        state = head
    return LogView(
        log=log,
        head=head,
        state=state,
        digest=digest,
        checkpoints=tuple(checkpoint_paths(log.storage)),
    )


def _secure(view: LogView) -> None:
    """Ensure that the oldest version can be read without the log below it.

    I22: a checkpoint serves it, and its lists can be read. I34: the checkpoint is not older than
    the last erasure up to this version.
    """
    state = view.state
    root = replace(view.head.root, oldest_version=state.version)
    serving = serving_checkpoint(root, view.root_versions.values())
    is_served = serving is not None and serving >= view.erased
    if state.version > 0 and not is_served:
        ensure_checkpoint(view.log.storage, state, tuning=view.log.tuning)
    read_lists(state)


def _garbage(head: Snapshot, needed: Needed, expiry: Expiry) -> list[Garbage]:
    """Return all garbage: files, left-overs of killed writers, and pages of the log."""
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
    digest = replace(view.digest, roots=needed.roots)
    with view.log.derived():
        write_digest(view.log.storage, digest, view.head, needed.begin)


def _claims(storage: Storage) -> dict[int, int]:
    """Return the claimed numbers, with the store's time of each claim."""
    claims: dict[int, int] = {}
    for entry in storage.list(layout.CLAIMS):
        number = layout.claim_number(entry.path)
        if number is not None:
            claims[number] = entry.modified_us
    return claims


def _stale(
    storage: Storage, claims: Mapping[int, int], ages: Ages, before_us: int
) -> frozenset[int]:
    """Return the numbers that were claimed before a time; `claims` has their times."""
    with ThreadPoolExecutor(READERS) as pool:
        claimed_us = list(pool.map(partial(_claimed_us, storage), claims))
    stale: set[int] = set()
    for (number, stored_us), recorded_us in zip(claims.items(), claimed_us, strict=True):
        # A job whose time is unknown counts as running
        if recorded_us is not None and ages.since(recorded_us, stored_us) <= before_us:
            stale.add(number)
    return frozenset(stale)


def _claimed_us(storage: Storage, number: int) -> int | None:
    """Return the time that a claim records; None for a missing or damaged claim."""
    path = layout.claim_path(number)
    try:
        return int(unseal(read_sealed(storage, path), f"{storage.uri}/{path}")["timestamp_us"])
    except (FormatError, NotFoundError, KeyError, TypeError, ValueError):
        return None


def _commit(
    log: CommitLog, base: Snapshot, expiry: Expiry, started_us: int, *, erased: int = 0
) -> JobResult:
    """Commit an expiry; with `erased`, refuse savepoints from before that erasure."""

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        _refuse_older_savepoints(head, erased)
        # Another retention, or a job that was thought dead, may have been faster
        used = {commit.number for commit in head.commits if commit.version > base.version}
        stale = tuple(sorted(expiry.stale - used - head.root.abandoned))
        expired = max(0, expiry.oldest - head.root.oldest_version)
        if not stale and not expired:
            return None
        counts = {"versions": expired, "abandoned": len(stale)}
        actions = Actions(oldest_version=expiry.oldest if expired else None, abandoned=stale)
        result = JobResult(operation="retain", table=log.storage.uri, counts=counts)
        return Draft(actions=actions, result=result)

    proposal = Proposal(operation="retain", number=None, build=build, started_us=started_us)
    return log.commit(base, proposal)


def _refuse_restored(log: CommitLog, erased: int, first: int) -> None:
    """Raise ConflictError if a restore brought back the rows of an erasure.

    `first` is the first version of the log from the erasure on.
    """
    for commit in log.commits_after(max(erased, first - 1)):
        restored = commit.actions.restored
        if restored is not None and restored.version < erased:
            raise ConflictError(
                f"{log.storage.uri}: version {commit.version} restored version {restored.version}, "
                f"which shows the rows that version {erased} erased; erase again with a new token"
            )


def _refuse_older_savepoints(head: Snapshot, erased: int) -> None:
    """Raise ConflictError if savepoints keep versions before the one of an erasure."""
    older = {name: at for name, at in head.root.savepoints.items() if at < erased}
    if older:
        raise ConflictError(
            f"{head.storage.uri}: savepoints {savepoints_text(older)} were made before rows were "
            f"erased in version {erased}, and keep versions that may show the rows; release them "
            "(`opal savepoint TABLE NAME --release`), then erase again"
        )


def _delete(
    log: CommitLog, needed: Needed, garbage: Sequence[Garbage], at_file: AtFile
) -> Counter[str]:
    """Delete garbage, turn by turn; return the counts of what was deleted.

    Files of one turn are deleted in any order, and many of them at once.
    """
    if not garbage:
        return Counter()
    # No commit should have named garbage since, as files younger than the grace are not listed
    needed = needed.grown(log.storage, log.commits_after(needed.head))
    unneeded = [item for item in garbage if item.path not in needed.paths]
    counts: Counter[str] = Counter()
    done = 0
    with ThreadPoolExecutor(READERS) as pool:
        for _, turn in groupby(unneeded, key=lambda item: item.turn):
            members = [*turn]
            starts = range(0, len(members), _AT_ONCE)
            portions = [members[start : start + _AT_ONCE] for start in starts]
            for portion in pool.map(partial(_delete_portion, log.storage), portions):
                at_file(done, len(unneeded))
                done += len(portion)
                counts += counted(portion)
    return counts


def _delete_portion(storage: Storage, portion: Sequence[Garbage]) -> Sequence[Garbage]:
    paths = [item.path for item in portion]
    # Left-overs have a turn of their own, so a portion has only them or none
    if portion[0].kind == LEFT_OVERS:
        remove_left_overs(storage, paths)
    else:
        storage.delete(paths)
    return portion


def counted(garbage: Iterable[Garbage]) -> Counter[str]:
    """Return the number of files by kind, and the bytes of all."""
    counts: Counter[str] = Counter()
    for item in garbage:
        counts[item.kind] += 1
        counts["bytes"] += item.size
    return counts


def _build_result(
    log: CommitLog, head: Snapshot, expiry: Expiry, garbage: Sequence[Garbage]
) -> JobResult:
    """Return the result of a dry run, with the largest files as examples."""
    largest = sorted(garbage, key=lambda item: (-item.size, item.path))[:EXAMPLES]
    versions = expiry.oldest - head.root.oldest_version
    # The sum of counters leaves out what is zero
    counts = Counter(versions=versions, abandoned=len(expiry.stale)) + counted(garbage)
    notes = ["nothing was deleted: this was a dry run"]
    if len(largest) < len(garbage):
        notes.append(f"only the {len(largest):,} largest of {len(garbage):,} files are listed")
    notes.append(_readable_note(expiry.oldest, head.version))
    notes += clock_notes(log.storage.now_us(), head.root, log.storage.uri)
    examples = [{"path": item.path, "size": item.size, "why": item.why} for item in largest]
    return JobResult(
        operation="retain",
        table=log.storage.uri,
        counts=dict(counts),
        notes=tuple(notes),
        examples=tuple(examples),
    )


def _readable_note(oldest: int, newest: int) -> str:
    return f"the readable versions are {oldest} to {newest}"
