"""Retention: old versions expire, and what nothing needs any more is deleted (FORMAT, retention).

The commit comes first: it says which version is the oldest from now on, and which numbers of jobs are given up, so that none of them can
commit a file that is about to go. Only then is anything deleted, and whoever is killed meanwhile leaves files that the next run finds.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from opal_lake import layout
from opal_lake.checkpoint import checkpoint_versions, ensure_checkpoint, read_lists
from opal_lake.commit import Actions, Commit, unseal
from opal_lake.commit_log import CommitLog, Draft, Proposal
from opal_lake.duration import parse_duration
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.garbage import Garbage, find_garbage
from opal_lake.job import JobResult
from opal_lake.reachable import Needed, find_needed
from opal_lake.readable import oldest_kept, serving_checkpoint
from opal_lake.snapshot import Snapshot
from opal_lake.storage.protocol import Storage

GRACE = "1d"
EXAMPLES = 100
_READERS = 8
_AT_ONCE = 1000  # deletions, of which S3 takes so many in a request

AtFile = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What was asked for. Without a window the table's own counts; jobs within their grace are left alone."""

    window: str | None = None
    grace: str | None = None
    dry_run: bool = False
    at_file: AtFile = lambda done, total: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """What a retention commits: the oldest version from now on, and the numbers that are given up."""

    oldest: int
    stale: frozenset[int]
    claims: frozenset[int]


def retain(log: CommitLog, terms: Terms) -> JobResult:
    """Expire versions, give up jobs that take too long, delete what is left over. A repeat does what is left."""
    started_us, head = log.clock.now_us(), log.head()
    expiry = plan_expiry(log, head, terms, started_us)
    if terms.dry_run:
        needed = find_needed(log, head, expiry.oldest, expiry.claims, expiry.stale)
        return _told(log, head, expiry, [*find_garbage(log.storage, needed)])
    _secure(log, head, expiry.oldest)
    committed = _commit(log, head, expiry, started_us)
    now = log.refresh(head)
    needed = find_needed(log, now, now.root.oldest_version, expiry.claims, frozenset())
    counts = _delete(log, needed, [*find_garbage(log.storage, needed)], terms.at_file)
    counts = Counter(committed.counts) + counts
    timings_ms = {"total": max(0, log.clock.now_us() - started_us) // 1000}
    return JobResult(
        operation="retain",
        table=log.storage.uri,
        version=committed.version,
        counts=dict(counts),
        timings_ms=timings_ms,
        notes=_notes(now.root.oldest_version, now.version),
    )


def plan_expiry(log: CommitLog, head: Snapshot, terms: Terms, now_us: int) -> Expiry:
    """The window never is shorter than the grace: what a running job or reader began with stays."""
    window_us = parse_duration(terms.window if terms.window is not None else head.spec.word("window"), name="window")
    grace_us = parse_duration(terms.grace if terms.grace is not None else GRACE, name="grace")
    claims = frozenset(_claims(log.storage))
    used = {commit.number for commit in log.commits_after(-1, head.version)} | head.root.abandoned
    stale = _stale(log.storage, sorted(claims - used), now_us - grace_us)
    return Expiry(oldest=oldest_kept(head, now_us - max(window_us, grace_us)), stale=stale, claims=claims)


def _secure(log: CommitLog, head: Snapshot, oldest: int) -> None:
    """What is to serve the oldest version without the log below is there, and can be read."""
    state = log.at(oldest)
    if oldest > 0 and serving_checkpoint(replace(head.root, oldest_version=oldest), checkpoint_versions(log.storage)) is None:
        ensure_checkpoint(log.storage, state)
    read_lists(state)


def _claims(storage: Storage) -> Iterator[int]:
    return (number for found in storage.list(layout.CLAIMS) if (number := layout.claim_number(found.path)) is not None)


def _stale(storage: Storage, numbers: Sequence[int], before_us: int) -> frozenset[int]:
    """Those that were claimed before a moment, by what the claim says."""
    with ThreadPoolExecutor(_READERS) as pool:
        moments = pool.map(partial(_claimed_us, storage), numbers)
        return frozenset(number for number, moment in zip(numbers, moments, strict=True) if moment is not None and moment <= before_us)


def _claimed_us(storage: Storage, number: int) -> int | None:
    """None where it cannot be told: such a job counts as running."""
    path = layout.claim_path(number)
    try:
        return int(unseal(storage.get(path), f"{storage.uri}/{path}")["timestamp_us"])
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
        return Draft(actions=actions, result=JobResult(operation="retain", table=log.storage.uri, counts=counts))

    return log.commit(base, Proposal(operation="retain", number=None, build=build, started_us=started_us))


def _delete(log: CommitLog, needed: Needed, garbage: Sequence[Garbage], at_file: AtFile) -> Counter[str]:
    """But for what a commit named since: none should, as all that is younger than the grace was left out."""
    needed = needed.grown(log.storage, log.commits_after(needed.head))
    left = [one for one in garbage if one.path not in needed.paths]
    counts: Counter[str] = Counter()
    for start in range(0, len(left), _AT_ONCE):
        some = left[start : start + _AT_ONCE]
        at_file(start, len(left))
        log.storage.delete([one.path for one in some])
        counts += counted(some)
    return counts


def counted(garbage: Iterable[Garbage]) -> Counter[str]:
    """By kind, and the bytes of all."""
    counts: Counter[str] = Counter()
    for one in garbage:
        counts[one.kind] += 1
        counts["bytes"] += one.size
    return counts


def _told(log: CommitLog, head: Snapshot, expiry: Expiry, garbage: Sequence[Garbage]) -> JobResult:
    """What a run would do; the largest files as examples."""
    examples = sorted(garbage, key=lambda one: (-one.size, one.path))[:EXAMPLES]
    counts = {"versions": expiry.oldest - head.root.oldest_version, "abandoned": len(expiry.stale)}
    return JobResult(
        operation="retain",
        table=log.storage.uri,
        counts={name: number for name, number in (Counter(counts) + counted(garbage)).items() if number},
        notes=("nothing was deleted: this was a dry run", *_notes(expiry.oldest, head.version)),
        examples=tuple({"path": one.path, "size": one.size, "why": one.why} for one in examples),
    )


def _notes(oldest: int, newest: int) -> tuple[str, ...]:
    return (f"readable are the versions {oldest} to {newest}",)
