"""The files that a compaction rewrites, and the rows that it may leave out.

A rewrite never mixes groups, nor the folders of partitions, and replaces no file with a pending
segment. Rows keep their ids, so that bitmaps, segment logs and the key store stay valid while
upserts go on.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from opal_lake.data.segment import Cluster, DataFile, Segment
from opal_lake.events.bitmap import Bitmaps
from opal_lake.layout import folder_of
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.read import delta_bounds

SMALL_SHARE = 0.75  # of the target size: smaller files are joined
DEAD_SHARE = 0.05  # of a file's rows: a major compaction rewrites it if so many can be dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Files of one folder and group that become one file, or a few.

    `codec` is the codec of the new files, empty for the table's own codec.
    """

    files: tuple[DataFile, ...]
    codec: str = ""

    @property
    def segments(self) -> frozenset[int]:
        """The segments of its files."""
        return frozenset().union(*(file.segments for file in self.files))

    @property
    def group(self) -> int:
        """The group of all its files."""
        return self.files[0].group

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.size for file in self.files)

    @property
    def floor(self) -> int | None:
        """The least floor of its files, None if a file has none."""
        floors = [file.floor for file in self.files if file.floor is not None]
        if len(floors) < len(self.files):
            return None
        return min(floors)

    @property
    def cluster(self) -> Cluster | None:
        """The cluster of a single file, whose rows stay in order; None for several files."""
        if len(self.files) > 1:
            return None
        return self.files[0].cluster


def settled_files(snapshot: Snapshot) -> list[DataFile]:
    """Return the files that a rewrite may replace: none of their segments is pending."""
    pending = snapshot.pending
    return [file for file in snapshot.files.values() if pending.isdisjoint(file.segments)]


def by_group_and_folder(
    files: Iterable[DataFile],
) -> Iterator[tuple[tuple[int, str], list[DataFile]]]:
    """Yield each (group, folder) with its files, oldest rows first.

    Only files of one group and folder may be rewritten together.
    """
    ordered = sorted(files, key=_folder_and_age)
    for group_and_folder, members in groupby(ordered, key=_group_and_folder):
        yield group_and_folder, list(members)


def _group_and_folder(file: DataFile) -> tuple[int, str]:
    return file.group, folder_of(file.path)


def _folder_and_age(file: DataFile) -> tuple[int, str, int, str]:
    """Return group, folder, first segment and path of a file, to sort by."""
    return file.group, folder_of(file.path), file.segments[0], file.path


def plan_minor(snapshot: Snapshot, target_bytes: int) -> list[Bin]:
    """Plan a minor compaction: join small files of neighbouring times."""
    small = [file for file in settled_files(snapshot) if is_small(file, target_bytes)]
    bins: list[Bin] = []
    for _, files in by_group_and_folder(small):
        packed = _packed(files, {}, target_bytes)
        bins += [bin_ for bin_ in packed if len(bin_.files) > 1]
    return bins


def is_small(file: DataFile, target_bytes: int) -> bool:
    """Return whether a file is so small that a compaction joins it with others.

    Archived files are not joined, as they would be decompressed for little gain. Files in Z-order
    are not joined either: the next Z-order merges them.
    """
    is_archived = file.codec != ""
    is_clustered = file.cluster is not None
    return file.size < SMALL_SHARE * target_bytes and not is_archived and not is_clustered


def plan_major(snapshot: Snapshot, target_bytes: int, floor: int, droppable: Bitmaps) -> list[Bin]:
    """Plan a major compaction: small files, and files with droppable rows."""
    shares = dead_shares(snapshot, floor, droppable)
    dead = {path for path, share in shares.items() if share >= DEAD_SHARE}
    chosen = [
        file
        for file in settled_files(snapshot)
        if file.path in dead or is_small(file, target_bytes)
    ]
    bins: list[Bin] = []
    for _, files in by_group_and_folder(chosen):
        packed = _packed(files, shares, target_bytes)
        # A single small file without dead rows would be rewritten as it is
        bins += [bin_ for bin_ in packed if len(bin_.files) > 1 or bin_.files[0].path in dead]
    return bins


def plan_archive(snapshot: Snapshot, before: int, codec: str, target_bytes: int) -> list[Bin]:
    """Plan which partitions to archive: those with all rows from before an event time.

    The codec of an archive costs time once and saves space for long.
    """
    bins: list[Bin] = []
    for _, files in by_group_and_folder(settled_files(snapshot)):
        if not all(_ends_before(file, before, snapshot) for file in files):
            continue
        unarchived = [file for file in files if file.codec != codec]
        packed = _packed(unarchived, {}, target_bytes)
        bins += [Bin(files=bin_.files, codec=codec) for bin_ in packed]
    return bins


def _ends_before(file: DataFile, before: int, snapshot: Snapshot) -> bool:
    """Return whether the greatest delta of a file is known to be before an event time."""
    _, high = delta_bounds(file, snapshot.spec)
    return high is not None and high < before


def dead_shares(snapshot: Snapshot, floor: int, droppable: Bitmaps) -> dict[str, float]:
    """Return the share of droppable rows of each settled file, by its path.

    A file that was rewritten for the standing floor counts only rows that were not droppable there:
    it no longer has the other rows, or must keep them.
    """
    files, standing = settled_files(snapshot), snapshot.root.floor
    is_any_rewritten = standing is not None and any(file.floor == standing for file in files)
    at_standing_floor: Bitmaps = {}
    if standing == floor:
        at_standing_floor = droppable
    elif is_any_rewritten and standing is not None:
        at_standing_floor = droppable_rows(snapshot, standing)
    shares: dict[str, float] = {}
    for file in files:
        share = dead_share(file, snapshot.segments, droppable)
        if is_any_rewritten and file.floor == standing:
            share -= dead_share(file, snapshot.segments, at_standing_floor)
        shares[file.path] = share
    return shares


def dead_share(file: DataFile, segments: Mapping[int, Segment], bitmaps: Bitmaps) -> float:
    """Return the share of the rows of a file's segments that the bitmaps mark.

    It is an estimate of the file's share if its segments have rows in other files, too.
    """
    rows = 0
    marked_rows = 0
    for number in file.segments:
        rows += segments[number].rows
        if number in bitmaps:
            marked_rows += len(bitmaps[number])
    return marked_rows / rows if rows else 0.0


def _packed(files: list[DataFile], shares: Mapping[str, float], target_bytes: int) -> Iterator[Bin]:
    """Yield bins of files in their order, each filled up to the target size.

    A file counts with its size without dead rows; `shares` has the share of these by path. A file
    in Z-order is a bin of its own.
    """
    packed: list[DataFile] = []
    packed_bytes = 0.0
    for file in files:
        if file.cluster is not None:
            yield Bin(files=(file,), codec=file.codec)
            continue
        live_bytes = file.size * (1 - shares.get(file.path, 0.0))
        if packed and packed_bytes + live_bytes > target_bytes:
            yield Bin(files=tuple(packed), codec=_codec(packed))
            packed, packed_bytes = [], 0.0
        packed.append(file)
        packed_bytes += live_bytes
    if packed:
        yield Bin(files=tuple(packed), codec=_codec(packed))


def _codec(files: list[DataFile]) -> str:
    """Return the codec that all files share, otherwise "" for the table's own."""
    codecs = {file.codec for file in files}
    return codecs.pop() if len(codecs) == 1 else ""


def droppable_rows(snapshot: Snapshot, floor: int) -> Bitmaps:
    """Return the rows that are visible at no event time from the floor on.

    An UNTIL event ends each of these rows at the floor or earlier. A rewrite still keeps the latest
    delete of a key, because late rows need it.
    """
    return invalid_rows(snapshot, floor)
