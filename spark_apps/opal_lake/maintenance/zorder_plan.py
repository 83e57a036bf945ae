"""The files that a Z-order rewrites, and when it is due.

The clustered files of one job form a run: they hardly overlap. A Z-order selects all files that are
not clustered by the requested columns, and every run that is smaller than the selection so far. So
a row is clustered again about as often as its table doubles.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from opal_lake.data.segment import DataFile
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance.compaction_plan import Bin, by_group_and_folder, settled_files

BATCH_BYTES = 32 << 30  # of the files of a commit: a failure loses no more work than that


@dataclass(frozen=True, slots=True, kw_only=True)
class ZOrderPlan:
    """The bins of a Z-order, and the number and size of their unclustered files.

    `settled_bytes` is the size of all files that a Z-order may rewrite.
    """

    bins: tuple[Bin, ...]
    unclustered_files: int
    unclustered_bytes: int
    settled_bytes: int

    @property
    def unclustered_percent(self) -> float:
        """The share of the table's bytes that is not clustered."""
        if not self.settled_bytes:
            return 0.0
        return 100 * self.unclustered_bytes / self.settled_bytes


def plan_zorder(
    snapshot: Snapshot, columns: tuple[int, ...], target_bytes: int, *, whole: bool = False
) -> ZOrderPlan:
    """Plan a Z-order by columns, given as field ids.

    `whole` includes files that are clustered already. A single file of at most the target size is
    left out: no other order of its rows prunes better.
    """
    settled = settled_files(snapshot)
    bins: list[Bin] = []
    unclustered: list[DataFile] = []
    for _, files in by_group_and_folder(settled):
        selected = files if whole else _select(files, columns)
        if len(selected) > 1 or _size(selected) > target_bytes:
            bins.append(Bin(files=tuple(selected), codec=_codec(selected)))
            unclustered += [file for file in selected if not is_clustered(file, columns)]
    return ZOrderPlan(
        bins=tuple(bins),
        unclustered_files=len(unclustered),
        unclustered_bytes=_size(unclustered),
        settled_bytes=_size(settled),
    )


def is_clustered(file: DataFile, columns: tuple[int, ...]) -> bool:
    """Return whether a file is in Z-order by these columns, in this order."""
    return file.cluster is not None and file.cluster.columns == columns


def _select(files: Sequence[DataFile], columns: tuple[int, ...]) -> list[DataFile]:
    """Return the unclustered files, and each run smaller than the selection so far."""
    selected: list[DataFile] = []
    clustered: list[DataFile] = []
    for file in files:
        if is_clustered(file, columns):
            clustered.append(file)
        else:
            selected.append(file)
    size = _size(selected)
    for run in sorted(runs_of(clustered), key=_size):
        if _size(run) >= size:
            break
        selected += run
        size += _size(run)
    return selected


def runs_of(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Return the clustered files of each job that wrote some."""
    runs: dict[int, list[DataFile]] = {}
    for file in files:
        if file.cluster is not None:
            runs.setdefault(file.cluster.number, []).append(file)
    return list(runs.values())


def plan_batches(bins: Iterable[Bin], max_bytes: int = BATCH_BYTES) -> Iterator[tuple[Bin, ...]]:
    """Yield the batches of bins, each committed together."""
    batch: list[Bin] = []
    size = 0
    for bin_ in bins:
        if batch and size + bin_.size > max_bytes:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(bin_)
        size += bin_.size
    if batch:
        yield tuple(batch)


def _size(files: Iterable[DataFile]) -> int:
    return sum(file.size for file in files)


def _codec(files: Sequence[DataFile]) -> str:
    """Return the codec that all files share, otherwise "" for the table's own.

    So archived files lose the codec of the archive if they are clustered with new files.
    """
    codecs = {file.codec for file in files}
    return codecs.pop() if len(codecs) == 1 else ""
