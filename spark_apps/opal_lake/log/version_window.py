"""Which versions can be read: those from the oldest kept one on, and savepoints."""

from collections.abc import Container, Iterable, Mapping

from opal_lake.definition.business_snapshots import finished_text
from opal_lake.duration import Duration, parse_duration
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.snapshot import Root, Snapshot


def is_readable(root: Root, version: int) -> bool:
    """As the newest root has it."""
    return root.oldest_version <= version <= root.version or version in root.savepoints.values()


def readable_text(root: Root) -> str:
    """`7 to 20, and savepoints a (3), b (5)`. Business snapshots are many."""
    below = {
        name: version for name, version in root.savepoints.items() if version < root.oldest_version
    }
    days = [name for name in root.business.finished if name in below]
    named = {name: version for name, version in below.items() if name not in days}
    return (
        f"{root.oldest_version} to {root.version}"
        + (f", and savepoints {savepoints_text(named)}" if named else "")
        + (f", and business snapshots {finished_text(days)}" if days else "")
    )


def savepoints_text(savepoints: Mapping[str, int]) -> str:
    return ", ".join(
        f"{name} ({version})"
        for name, version in sorted(savepoints.items(), key=lambda pair: (pair[1], pair[0]))
    )


def serving_checkpoint(root: Root, checkpoints: Iterable[int]) -> int | None:
    """The newest that the oldest version can be folded from; None when there is none."""
    return max((version for version in checkpoints if version <= root.oldest_version), default=None)


def log_begin(root: Root, checkpoints: Iterable[int], logged: Container[int]) -> int | None:
    """The checkpoint from which on the log is kept, so that the oldest version can be read; None when there is none.

    The one below the newest: jobs and readers of today may have begun with it, and read its sections still. One that was written later,
    for a savepoint, was not there for them: an older one counts, if the log reaches down to it.
    """
    known = {*checkpoints}
    low = root.oldest_version
    while low - 1 in logged:
        low -= 1
    standing = sorted(
        (known - {*root.savepoints.values()}) & {*range(low, root.oldest_version + 1)}
    )
    return standing[-2:][0] if standing else serving_checkpoint(root, known)


def cutoff_us(window: Duration, grace: Duration, now_us: int) -> int:
    """Return the moment up to which versions expire: the window ago, never less than the grace."""
    window_us = parse_duration(window, name="window")
    grace_us = parse_duration(grace, name="grace")
    return now_us - max(window_us, grace_us)


def oldest_kept(head: Snapshot, cutoff_us: int, times: Mapping[int, int] | None = None) -> int:
    """The version that was the newest at a moment: what was read then can be read still. Never below what has expired already.

    `times` are those of all readable versions, where the caller knows better than the commits.
    """
    low, high = head.root.oldest_version, head.version
    if times is not None:
        return (
            next(
                (version for version in range(low + 1, high + 1) if times[version] > cutoff_us),
                high + 1,
            )
            - 1
        )
    moment = CommitTimes(head).of
    if moment(low + 1 if low < high else high) > cutoff_us:
        return low
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if moment(middle) <= cutoff_us else (low, middle - 1)
    return low
