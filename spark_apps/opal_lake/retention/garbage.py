"""Which stored files nothing needs any more, and why. What is needed: `live_files`; when a version expires: `retention`."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from opal_lake import layout
from opal_lake.retention.live_files import Needed
from opal_lake.storage.left_overs import find_left_overs
from opal_lake.storage.protocol import Storage, StoredObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """A file that can go. `kind` is what it is counted as; those of one turn may go in any order."""

    path: str
    size: int
    kind: str
    why: str

    @property
    def turn(self) -> int:
        version = layout.commit_version(self.path)
        return _TURNS.get(self.kind, 0) + (0 if version is None else layout.commit_turn(version))


LEFT_OVERS = "left_overs"
_HOUR_US = 3_600_000_000
_Judge = Callable[[StoredObject, Needed, int], str]


def find_garbage(storage: Storage, needed: Needed, cutoff_us: int) -> list[Garbage]:
    """In an order in which it can be deleted: a root goes before the sections that it names, claims before the commits that used them.

    Files below a folder with an `_opal/log` of its own belong to another table, and are never garbage.
    The cutoff is in the store's own time: no window keeps anything older.
    """
    by_kind: list[list[Garbage]] = [[] for _ in _KINDS]
    inner_tables: set[str] = set()
    for entry in chain(storage.list(layout.DATA), storage.list(layout.META)):
        if (inner := layout.inner_table(entry.path)) is not None:
            inner_tables.add(inner)
            continue
        if (
            entry.path not in needed.paths
            and (kind_index := _kind_index_of(entry.path)) is not None
        ):
            _, kind, judge = _KINDS[kind_index]
            if why := judge(entry, needed, cutoff_us):
                by_kind[kind_index].append(
                    Garbage(path=entry.path, size=entry.size, kind=kind, why=why)
                )
    # Only now: a data file of another table may be listed before its log
    others = tuple(inner_tables)
    own = [item for item in chain(*by_kind) if not item.path.startswith(others)]
    return sorted(own, key=lambda item: item.turn)


def left_over_garbage(storage: Storage, grace_us: int) -> list[Garbage]:
    """Temporary files of killed writers; no version can name them."""
    return [
        Garbage(
            path=entry.path,
            size=entry.size,
            kind=LEFT_OVERS,
            why=f"its writer has not finished it for {entry.age_us // _HOUR_US} hours",
        )
        for entry in find_left_overs(storage, grace_us)
    ]


def _kind_index_of(path: str) -> int | None:
    """The index of the kind; the longest prefix counts, as sections lie below the checkpoints."""
    fits = [index for index, (prefix, _, _) in enumerate(_KINDS) if path.startswith(prefix)]
    return max(fits, key=lambda index: len(_KINDS[index][0]), default=None)


def _of_job(entry: StoredObject, needed: Needed, _: int) -> str:
    """Files of a job that will not commit (again), and that no readable version names."""
    number = layout.job_number(entry.path)
    if number is None or not needed.numbers.has_ended(number):
        return ""
    return f"no readable version names it, and job {number} has ended"


def _rejected(entry: StoredObject, needed: Needed, cutoff_us: int) -> str:
    """No version names rejected rows: they are kept as long as the commit that reports them."""
    number = layout.job_number(entry.path)
    return "" if number in needed.numbers.logged else _of_job(entry, needed, cutoff_us)


def _rebuild_record(entry: StoredObject, needed: Needed, cutoff_us: int) -> str:
    number = (layout.rebuild_place(entry.path) or (None,))[0]
    return (
        f"the rebuild of job {number} has ended"
        if number is not None and needed.numbers.has_ended(number)
        else ""
    )


def _gathered(entry: StoredObject, needed: Needed, _: int) -> str:
    """No version names gathered rows: they are kept until the position of their application has passed them."""
    folder, begin = layout.gathered_place(entry.path) or ("", 0)
    position = needed.gathered.get(folder, 0)
    return f"its rows are committed: the position is {position}" if begin < position else ""


def _claim(entry: StoredObject, needed: Needed, _: int) -> str:
    """A number above the greatest one in use stays claimed: otherwise it would be claimed again."""
    number, numbers = layout.claim_number(entry.path), needed.numbers
    if (
        number is None
        or number > numbers.greatest
        or number in numbers.logged
        or not numbers.has_ended(number)
    ):
        return ""
    return f"job {number} has ended, and its commit has expired"


def _kept_apart(entry: StoredObject, _: Needed, cutoff_us: int) -> str:
    return "it was kept for the window" if entry.modified_us < cutoff_us else ""


def _expired(version: int | None, needed: Needed) -> str:
    return (
        f"version {version} has expired" if version is not None and version < needed.begin else ""
    )


def _commit(entry: StoredObject, needed: Needed, _: int) -> str:
    return _expired(layout.commit_version(entry.path), needed)


def _checkpoint(entry: StoredObject, needed: Needed, _: int) -> str:
    version = layout.checkpoint_version(entry.path)
    return "" if version in needed.savepoints else _expired(version, needed)


def _section(entry: StoredObject, needed: Needed, _: int) -> str:
    """A newer section may belong to a checkpoint that is being written."""
    return _expired(layout.section_version(entry.path), needed)


def _base(entry: StoredObject, needed: Needed, _: int) -> str:
    return _expired(layout.bitmap_version(entry.path), needed)


_TURNS = {
    "commits": 1,
    "checkpoints": 1,
    "sections": 4,
    "bitmap_bases": 4,
    "side_files": 4,
    LEFT_OVERS: 5,
}  # commits have three turns
_KINDS: tuple[tuple[str, str, _Judge], ...] = (
    (layout.DATA, "data_files", _of_job),
    (layout.SEGMENT_LOGS, "segment_logs", _of_job),
    (layout.KEY_STORE, "key_store_runs", _of_job),
    (layout.SIDE, "side_files", _of_job),
    (layout.REJECTED, "rejected_files", _rejected),
    (layout.REBUILD, "rebuild_records", _rebuild_record),
    (layout.GATHERED, "gathered_files", _gathered),
    (layout.RESULTS, "results", _kept_apart),
    (layout.TRAFFIC, "traffic", _kept_apart),  # streams that run write it again every hour
    (layout.CLAIMS, "claims", _claim),
    (layout.LOG, "commits", _commit),
    (layout.CHECKPOINTS, "checkpoints", _checkpoint),
    (layout.SECTIONS, "sections", _section),
    (layout.BITMAPS, "bitmap_bases", _base),
)
