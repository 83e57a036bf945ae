"""The files that a compaction rewrites, and the rows that it may leave out.

A rewrite never mixes groups, nor the folders of partitions, and leaves files with a pending segment
alone. Rows keep their ids, so that bitmaps, segment logs and the key store stay true while upserts
go on.
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
DEAD_SHARE = 0.05  # of a file's rows can be dropped: from there on a major compaction rewrites it


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Files of one folder and group that become one file, or a few.

    `codec` is how their rows are compressed, empty for the usual codec.
    """

    files: tuple[DataFile, ...]
    codec: str = ""

    @property
    def segments(self) -> frozenset[int]:
        """The segments of its files."""
        return frozenset(segment for file in self.files for segment in file.segments)

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
        return min(floors) if len(floors) == len(self.files) else None

    @property
    def cluster(self) -> Cluster | None:
        """The cluster of a single file, whose rows stay in order; else None."""
        return self.files[0].cluster if len(self.files) == 1 else None


def settled_files(snapshot: Snapshot) -> list[DataFile]:
    """Return the files that a rewrite may replace: none of their segments is pending."""
    pending = snapshot.pending
    return [file for file in snapshot.files.values() if pending.isdisjoint(file.segments)]


def by_group_and_folder(
    files: Iterable[DataFile],
) -> Iterator[tuple[tuple[int, str], list[DataFile]]]:
    """Yield the files that may be rewritten together, oldest rows first."""
    ordered = sorted(
        files, key=lambda file: (*_group_and_folder(file), file.segments[0], file.path)
    )
    for group_and_folder, members in groupby(ordered, key=_group_and_folder):
        yield group_and_folder, list(members)


def _group_and_folder(file: DataFile) -> tuple[int, str]:
    return file.group, folder_of(file.path)


def plan_minor(snapshot: Snapshot, target_bytes: int) -> list[Bin]:
    """Plan a minor compaction: small files to target size, in the order of time."""
    small = [file for file in settled_files(snapshot) if is_small(file, target_bytes)]
    bins: list[Bin] = []
    for _, files in by_group_and_folder(small):
        bins += [bin_ for bin_ in _packed(files, {}, target_bytes) if len(bin_.files) > 1]
    return bins


def is_small(file: DataFile, target_bytes: int) -> bool:
    """Return whether a file is so small that a compaction joins it with others.

    Archived files stay, as they would be decompressed for little gain, and so do files in Z-order,
    which the next Z-order merges.
    """
    return file.size < SMALL_SHARE * target_bytes and not file.codec and file.cluster is None


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

    Their codec costs time once and saves space for long.
    """
    bins: list[Bin] = []
    for _, files in by_group_and_folder(settled_files(snapshot)):
        highs = [delta_bounds(file, snapshot.spec)[1] for file in files]
        if all(high is not None and high < before for high in highs):
            left = [file for file in files if file.codec != codec]
            packed = _packed(left, {}, target_bytes)
            bins += [Bin(files=bin_.files, codec=codec) for bin_ in packed]
    return bins


def dead_shares(snapshot: Snapshot, floor: int, droppable: Bitmaps) -> dict[str, float]:
    """Return the share of droppable rows of each settled file, by its path.

    Rows that could be dropped at the standing floor do not count in files that were rewritten for
    it: these files no longer have them, or must keep them.
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
    """Return the share of a file's rows that is marked.

    It is an estimate if segments of the file have rows in other files, too.
    """
    marked = sum(len(bitmaps[segment]) for segment in file.segments if segment in bitmaps)
    rows = sum(segments[segment].rows for segment in file.segments)
    return marked / rows if rows else 0.0


def _packed(files: list[DataFile], shares: Mapping[str, float], target_bytes: int) -> Iterator[Bin]:
    """Yield bins of files in their order, each as full as the next file allows.

    A file's size is what remains without its dead rows. A file in Z-order is a bin of its own.
    """
    packed: list[DataFile] = []
    size = 0.0
    for file in files:
        if file.cluster is not None:
            yield Bin(files=(file,), codec=file.codec)
            continue
        left = file.size * (1 - shares.get(file.path, 0.0))
        if packed and size + left > target_bytes:
            yield Bin(files=tuple(packed), codec=_codec(packed))
            packed, size = [], 0.0
        packed.append(file)
        size += left
    if packed:
        yield Bin(files=tuple(packed), codec=_codec(packed))


def _codec(files: list[DataFile]) -> str:
    """Return the codec that all files share, otherwise "" for the table's own."""
    codecs = {file.codec for file in files}
    return codecs.pop() if len(codecs) == 1 else ""


def droppable_rows(snapshot: Snapshot, floor: int) -> Bitmaps:
    """Return the rows that are visible at no event time from the floor on.

    An UNTIL event ends them by then. Of deletes among them, the key store may still name the latest
    of a key: those stay.
    """
    return invalid_rows(snapshot, floor)
