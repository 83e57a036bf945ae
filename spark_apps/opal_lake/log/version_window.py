"""The versions that can be read: those from the oldest kept one on, and savepoints."""

from collections.abc import Container, Iterable, Mapping

from opal_lake.definition.business_snapshots import finished_text
from opal_lake.duration import Duration, parse_duration
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.snapshot import Root, Snapshot


def is_readable(root: Root, version: int) -> bool:
    """Return whether a version can be read, as the newest root has it."""
    return root.oldest_version <= version <= root.version or version in root.savepoints.values()


def readable_text(root: Root) -> str:
    """Describe the readable versions: `7 to 20, and savepoints a (3), b (5)`.

    Business snapshots are many, so they are named in short.
    """
    oldest = root.oldest_version
    below = {name: version for name, version in root.savepoints.items() if version < oldest}
    days = [name for name in root.business.finished if name in below]
    named = {name: version for name, version in below.items() if name not in days}
    text = f"{oldest} to {root.version}"
    if named:
        text += f", and savepoints {savepoints_text(named)}"
    if days:
        text += f", and business snapshots {finished_text(days)}"
    return text


def savepoints_text(savepoints: Mapping[str, int]) -> str:
    """Describe savepoints by version: `a (3), b (5)`."""
    by_version = sorted(savepoints.items(), key=lambda pair: (pair[1], pair[0]))
    return ", ".join(f"{name} ({version})" for name, version in by_version)


def serving_checkpoint(root: Root, checkpoints: Iterable[int]) -> int | None:
    """Return the newest checkpoint that the oldest version can be folded from.

    None if there is none.
    """
    serving = (version for version in checkpoints if version <= root.oldest_version)
    return max(serving, default=None)


def log_begin(root: Root, checkpoints: Iterable[int], logged: Container[int]) -> int | None:
    """Return the checkpoint from which on the log is kept.

    None if there is none. The oldest version can be read from it. It is the one before the newest:
    jobs and readers of today may have begun with it, and still read its sections. They cannot have
    begun with one that was written later, for a savepoint. Instead of that one an older one counts,
    if the log reaches down to it.
    """
    known = {*checkpoints}
    low = root.oldest_version
    while low - 1 in logged:
        low -= 1
    reached = {*range(low, root.oldest_version + 1)}
    regular = known - {*root.savepoints.values()}
    standing = sorted(regular & reached)
    if not standing:
        return serving_checkpoint(root, known)
    return standing[-2:][0]


def cutoff_us(window: Duration, grace: Duration, now_us: int) -> int:
    """Return the moment up to which versions expire: at least the grace ago."""
    window_us = parse_duration(window, name="window")
    grace_us = parse_duration(grace, name="grace")
    return now_us - max(window_us, grace_us)


def oldest_kept(head: Snapshot, cutoff_us: int, times: Mapping[int, int] | None = None) -> int:
    """Return the version that was the newest at a moment.

    It stays readable, and all versions after it. It is never a version below the oldest readable
    one. `times` are those of all readable versions, for callers that know better than the commits.
    """
    low, high = head.root.oldest_version, head.version
    if times is not None:
        for version in range(low + 1, high + 1):
            if times[version] > cutoff_us:
                return version - 1
        return high
    moment = CommitTimes(head).of
    # Mostly nothing has expired: the second version shows it without a search
    if moment(min(low + 1, high)) > cutoff_us:
        return low
    while low < high:
        middle = (low + high + 1) // 2
        if moment(middle) <= cutoff_us:
            low = middle
        else:
            high = middle - 1
    return low
