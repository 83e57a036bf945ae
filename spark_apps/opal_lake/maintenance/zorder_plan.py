"""Which files a Z-order takes, and when it is due.

The files of one job are one run: they hardly overlap. All files that are not clustered by the requested columns are selected, and with
them every run that is smaller than the selection so far, so that a row is clustered again about as often as its table doubles.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from opal_lake.data.segment import DataFile
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance.compaction_plan import Bin, by_place, settled_files

BATCH_BYTES = 32 << 30  # of a commit: how much work is lost at most


@dataclass(frozen=True, slots=True, kw_only=True)
class ZOrderPlan:
    """The bins, and how much of the table is worth clustering and is not."""

    bins: tuple[Bin, ...]
    unclustered_files: int
    unclustered_bytes: int
    settled_bytes: int

    @property
    def unclustered_percent(self) -> float:
        return 100 * self.unclustered_bytes / self.settled_bytes if self.settled_bytes else 0.0


def plan_zorder(
    snapshot: Snapshot, columns: tuple[int, ...], target_bytes: int, *, whole: bool = False
) -> ZOrderPlan:
    """Plan a Z-order by columns, given as field ids; `whole` takes what is clustered already, too.

    A file alone that is no larger than the target is not worth it: no other order of its rows
    prunes better.
    """
    settled = settled_files(snapshot)
    places = [
        (files, list(files) if whole else _select(files, columns)) for _, files in by_place(settled)
    ]
    worth = [
        (files, selected)
        for files, selected in places
        if len(selected) > 1 or _size(selected) > target_bytes
    ]
    waiting = [
        file for _, selected in worth for file in selected if not is_clustered(file, columns)
    ]
    return ZOrderPlan(
        bins=tuple(Bin(files=tuple(selected), codec=_codec(selected)) for _, selected in worth),
        unclustered_files=len(waiting),
        unclustered_bytes=_size(waiting),
        settled_bytes=_size(settled),
    )


def is_clustered(file: DataFile, columns: tuple[int, ...]) -> bool:
    return file.cluster is not None and file.cluster.columns == columns


def _select(files: Sequence[DataFile], columns: tuple[int, ...]) -> list[DataFile]:
    selected = [file for file in files if not is_clustered(file, columns)]
    size = _size(selected)
    for run in sorted(runs_of(file for file in files if is_clustered(file, columns)), key=_size):
        if _size(run) >= size:
            break
        selected += run
        size += _size(run)
    return selected


def runs_of(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Clustered files by the job that wrote them."""
    runs: dict[int, list[DataFile]] = {}
    for file in files:
        if file.cluster is not None:
            runs.setdefault(file.cluster.number, []).append(file)
    return list(runs.values())


def plan_batches(bins: Iterable[Bin], most_bytes: int = BATCH_BYTES) -> Iterator[tuple[Bin, ...]]:
    """Bins that are committed together."""
    held: list[Bin] = []
    for bin_ in bins:
        if held and sum(other.size for other in held) + bin_.size > most_bytes:
            yield tuple(held)
            held = []
        held.append(bin_)
    if held:
        yield tuple(held)


def _size(files: Iterable[DataFile]) -> int:
    return sum(file.size for file in files)


def _codec(files: Sequence[DataFile]) -> str:
    """That of all of them; archived files that are clustered with new ones are archived no more."""
    codecs = {file.codec for file in files}
    return codecs.pop() if len(codecs) == 1 else ""
