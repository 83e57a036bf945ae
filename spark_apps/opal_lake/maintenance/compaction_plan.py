"""Which files a compaction writes anew, and which of their rows it may leave out.

A rewrite never mixes groups, nor the folders of partitions, and takes no file with a pending segment. Rows keep their ids, so that bitmaps,
segment logs and the key store stay true while upserts go on.
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

SMALL_SHARE = 0.75  # of the target: files from there on are left alone
DEAD_SHARE = 0.05  # of a file's rows that can go: from there on a major compaction writes it anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Files of one folder and group that become one, or few. `codec` is how their rows are compressed, where not as usual."""

    files: tuple[DataFile, ...]
    codec: str = ""

    @property
    def segments(self) -> frozenset[int]:
        return frozenset(segment for file in self.files for segment in file.segments)

    @property
    def group(self) -> int:
        return self.files[0].group

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def floor(self) -> int | None:
        """The least one of all files, None where one has none."""
        floors = [file.floor for file in self.files]
        known = [floor for floor in floors if floor is not None]
        return min(known) if len(known) == len(floors) else None

    @property
    def cluster(self) -> Cluster | None:
        """Rows of one file stay in order."""
        return self.files[0].cluster if len(self.files) == 1 else None


def settled_files(snapshot: Snapshot) -> list[DataFile]:
    """The files that a rewrite may take: none of their segments is pending."""
    pending = snapshot.pending
    return [file for file in snapshot.files.values() if pending.isdisjoint(file.segments)]


def by_place(files: Iterable[DataFile]) -> Iterator[tuple[tuple[int, str], list[DataFile]]]:
    """Files that may be rewritten together, oldest rows first: by group and folder."""
    ordered = sorted(
        files, key=lambda file: (file.group, folder_of(file.path), file.segments[0], file.path)
    )
    for group_and_folder, members in groupby(
        ordered, key=lambda file: (file.group, folder_of(file.path))
    ):
        yield group_and_folder, list(members)


def plan_minor(snapshot: Snapshot, target_bytes: int) -> list[Bin]:
    """Small files to target size, neighbours in time together."""
    small = [file for file in settled_files(snapshot) if is_small(file, target_bytes)]
    return [
        packed
        for _, files in by_place(small)
        for packed in _packed(files, {}, target_bytes)
        if len(packed.files) > 1
    ]


def is_small(file: DataFile, target_bytes: int) -> bool:
    """Not archived files, which would be decompressed for little gain, and not files in Z-order, which the next Z-order merges."""
    return file.size < SMALL_SHARE * target_bytes and not file.codec and file.cluster is None


def plan_major(snapshot: Snapshot, target_bytes: int, floor: int, droppable: Bitmaps) -> list[Bin]:
    """Also the files that hold rows which can go."""
    shares = dead_shares(snapshot, floor, droppable)
    chosen = [
        file
        for file in settled_files(snapshot)
        if shares[file.path] >= DEAD_SHARE or is_small(file, target_bytes)
    ]
    bins = (
        packed for _, files in by_place(chosen) for packed in _packed(files, shares, target_bytes)
    )
    return [
        packed
        for packed in bins
        if len(packed.files) > 1 or shares[packed.files[0].path] >= DEAD_SHARE
    ]


def plan_archive(snapshot: Snapshot, before: int, codec: str, target_bytes: int) -> list[Bin]:
    """Partitions whose rows are all from before an event time, with a codec that costs time once and saves space for long."""
    bins = []
    for _, files in by_place(settled_files(snapshot)):
        highs = [delta_bounds(file, snapshot.spec)[1] for file in files]
        if all(high is not None and high < before for high in highs):
            left = [file for file in files if file.codec != codec]
            bins += [
                Bin(files=packed.files, codec=codec) for packed in _packed(left, {}, target_bytes)
            ]
    return bins


def dead_shares(snapshot: Snapshot, floor: int, droppable: Bitmaps) -> dict[str, float]:
    """By the path of each settled file.

    What could go at the standing floor does not count in files that were rewritten for it: they have it no more, or must keep it.
    """
    files, standing = settled_files(snapshot), snapshot.root.floor
    done = standing is not None and any(file.floor == standing for file in files)
    before = (
        droppable
        if standing == floor
        else droppable_rows(snapshot, standing)
        if done and standing is not None
        else {}
    )

    def share(file: DataFile) -> float:
        kept = (
            dead_share(file, snapshot.segments, before) if done and file.floor == standing else 0.0
        )
        return dead_share(file, snapshot.segments, droppable) - kept

    return {file.path: share(file) for file in files}


def dead_share(file: DataFile, segments: Mapping[int, Segment], bitmaps: Bitmaps) -> float:
    """Of a file's rows the share that is marked; about that, where its segments lie in other files too."""
    marked = sum(len(bitmaps[segment]) for segment in file.segments if segment in bitmaps)
    rows = sum(segments[segment].rows for segment in file.segments)
    return marked / rows if rows else 0.0


def _packed(files: list[DataFile], shares: Mapping[str, float], target_bytes: int) -> Iterator[Bin]:
    """In order, each bin as full as the next file allows, by what will be left of them; a file in Z-order alone."""
    held: list[DataFile] = []
    size = 0.0
    for file in files:
        if file.cluster is not None:
            yield Bin(files=(file,), codec=file.codec)
            continue
        left = file.size * (1 - shares.get(file.path, 0.0))
        if held and size + left > target_bytes:
            yield Bin(files=tuple(held), codec=_codec(held))
            held, size = [], 0.0
        held.append(file)
        size += left
    if held:
        yield Bin(files=tuple(held), codec=_codec(held))


def _codec(files: list[DataFile]) -> str:
    """That of all of them, if they have one."""
    codecs = {file.codec for file in files}
    return codecs.pop() if len(codecs) == 1 else ""


def droppable_rows(snapshot: Snapshot, floor: int) -> Bitmaps:
    """Rows that are visible at no event time from the floor on: an UNTIL event ends them by then.

    Of deleting rows among them the key store may still name the latest of a key: those stay.
    """
    return invalid_rows(snapshot, floor)
