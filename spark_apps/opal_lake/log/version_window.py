"""The readable versions: the oldest kept version, all later ones, and savepoints."""

from collections.abc import Container, Iterable, Mapping

from opal_lake.definition.business_snapshots import finished_text
from opal_lake.duration import Duration, parse_duration
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.snapshot import Root, Snapshot


def is_readable(root: Root, version: int) -> bool:
    """Return whether a version is readable according to the newest root."""
    is_in_window = root.oldest_version <= version <= root.version
    return is_in_window or version in root.savepoints.values()


def readable_text(root: Root) -> str:
    """Describe the readable versions: `7 to 20, and savepoints a (3), b (5)`.

    Business snapshots can be many, so they are described in short.
    """
    oldest = root.oldest_version
    older = {name: version for name, version in root.savepoints.items() if version < oldest}
    business = [name for name in root.business.finished if name in older]
    savepoints = {name: version for name, version in older.items() if name not in business}
    text = f"{oldest} to {root.version}"
    if savepoints:
        text += f", and savepoints {savepoints_text(savepoints)}"
    if business:
        text += f", and business snapshots {finished_text(business)}"
    return text


def savepoints_text(savepoints: Mapping[str, int]) -> str:
    """Describe savepoints by version: `a (3), b (5)`."""
    by_version = sorted(savepoints.items(), key=lambda pair: (pair[1], pair[0]))
    return ", ".join(f"{name} ({version})" for name, version in by_version)


def serving_checkpoint(root: Root, checkpoints: Iterable[int]) -> int | None:
    """Return the newest checkpoint from which the oldest version can be folded.

    `checkpoints` are versions. None if no checkpoint is old enough.
    """
    serving = (version for version in checkpoints if version <= root.oldest_version)
    return max(serving, default=None)


def log_begin(
    root: Root, checkpoints: Iterable[int], logged: Container[int], erased: int
) -> int | None:
    """Return the checkpoint at which the kept log begins, None if there is none.

    `checkpoints` and `logged` are the versions of existing checkpoints and commits. `erased` is the
    last erasure up to the oldest readable version: older checkpoints show erased values (I34).

    The oldest readable version can be folded from the returned checkpoint. If possible it is the
    last but one such checkpoint, because running jobs and readers may have begun with it and still
    read its sections. Checkpoints of savepoints do not count: they may be written long after their
    version, so that nothing has begun with them.
    """
    known = {version for version in checkpoints if version >= erased}
    # The log has all commits after this version, up to the oldest readable one
    log_start = root.oldest_version
    while log_start - 1 in logged:
        log_start -= 1
    foldable = {*range(log_start, root.oldest_version + 1)}
    regular = known - {*root.savepoints.values()}
    candidates = sorted(regular & foldable)
    if not candidates:
        return serving_checkpoint(root, known)
    last_two = candidates[-2:]
    return last_two[0]


def cutoff_us(window: Duration, grace: Duration, now_us: int) -> int:
    """Return the moment up to which versions expire: the longer of both spans ago."""
    window_us = parse_duration(window, name="window")
    grace_us = parse_duration(grace, name="grace")
    return now_us - max(window_us, grace_us)


def oldest_kept(head: Snapshot, cutoff_us: int, times: Mapping[int, int] | None = None) -> int:
    """Return the readable version that was the newest at a moment.

    That version and all later ones stay readable. If all readable versions are later than the
    moment, it is the oldest of them. `times` replaces the commit times of the readable versions.
    """
    low, high = head.root.oldest_version, head.version
    if times is not None:
        for version in range(low + 1, high + 1):
            if times[version] > cutoff_us:
                return version - 1
        return high
    time_of = CommitTimes(head).of
    # Usually nothing has expired, which the time of the second version shows without a search
    if time_of(min(low + 1, high)) > cutoff_us:
        return low
    # I3: times increase strictly, so that a binary search finds the version
    while low < high:
        middle = (low + high + 1) // 2
        if time_of(middle) <= cutoff_us:
            low = middle
        else:
            high = middle - 1
    return low
