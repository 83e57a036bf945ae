"""Stored files that nothing needs, with the reason for each.

`live_files` finds what is needed, `retention` decides when a version expires.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from opal_lake import layout
from opal_lake.retention.live_files import Needed
from opal_lake.storage.left_overs import find_left_overs
from opal_lake.storage.protocol import Storage, StoredObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """A file that can be deleted; `kind` is the name of its count."""

    path: str
    size: int
    kind: str
    why: str

    @property
    def turn(self) -> int:
        """The turn in which it is deleted; files of one turn are deleted in any order."""
        turn = _TURNS.get(self.kind, 0)
        version = layout.commit_version(self.path)
        if version is not None:
            turn += layout.commit_turn(version)
        return turn


LEFT_OVERS = "left_overs"
_HOUR_US = 3_600_000_000
# Returns why a file is garbage, by what is needed and the cutoff; an empty text if it is needed
_Judge = Callable[[StoredObject, Needed, int], str]


def find_garbage(storage: Storage, needed: Needed, cutoff_us: int) -> list[Garbage]:
    """Return the garbage in an order in which it can be deleted.

    A root comes before the sections that it names, and a claim before the commit that used it.
    Files below a folder with an `_opal/log` of its own belong to another table, and are never
    garbage. `cutoff_us` is in the store's own time: no window keeps older files.
    """
    by_kind: list[list[Garbage]] = [[] for _ in _KINDS]
    inner_tables: set[str] = set()
    for entry in chain(storage.list(layout.DATA), storage.list(layout.META)):
        inner_table = layout.inner_table(entry.path)
        if inner_table is not None:
            inner_tables.add(inner_table)
            continue
        kind_index = _kind_index_of(entry.path)
        if entry.path in needed.paths or kind_index is None:
            continue
        _, kind, judge = _KINDS[kind_index]
        why = judge(entry, needed, cutoff_us)
        if why:
            garbage = Garbage(path=entry.path, size=entry.size, kind=kind, why=why)
            by_kind[kind_index].append(garbage)
    # Inner tables are known only now: a data file may be listed before the log of its table
    foreign_prefixes = tuple(inner_tables)
    own = [item for item in chain(*by_kind) if not item.path.startswith(foreign_prefixes)]
    return sorted(own, key=lambda item: item.turn)


def left_over_garbage(storage: Storage, grace_us: int) -> list[Garbage]:
    """Return the temporary files of killed writers, which no version can name."""
    garbage: list[Garbage] = []
    for entry in find_left_overs(storage, grace_us):
        hours = entry.age_us // _HOUR_US
        why = f"its writer has not finished it for {hours} hours"
        garbage.append(Garbage(path=entry.path, size=entry.size, kind=LEFT_OVERS, why=why))
    return garbage


def _kind_index_of(path: str) -> int | None:
    """Return the index of the kind of a file; None for a file of no kind.

    The kind with the longest prefix counts, as sections lie below the checkpoints.
    """
    fitting = [index for index, (prefix, _, _) in enumerate(_KINDS) if path.startswith(prefix)]
    return max(fitting, key=lambda index: len(_KINDS[index][0]), default=None)


def _of_job(entry: StoredObject, needed: Needed, _: int) -> str:
    """Judge a file of a job: garbage if the job never commits (again)."""
    number = layout.job_number(entry.path)
    if number is None or not needed.numbers.has_ended(number):
        return ""
    return f"no readable version names it, and job {number} has ended"


def _rejected(entry: StoredObject, needed: Needed, cutoff_us: int) -> str:
    """Judge rejected rows, which no version names.

    They are needed as long as the commit that reports them.
    """
    if layout.job_number(entry.path) in needed.numbers.logged:
        return ""
    return _of_job(entry, needed, cutoff_us)


def _rebuild_record(entry: StoredObject, needed: Needed, cutoff_us: int) -> str:
    """Judge a record of a rebuild: garbage once the rebuild's job has ended."""
    parts = layout.rebuild_place(entry.path)
    if parts is None:
        return ""
    number, _, _ = parts
    if not needed.numbers.has_ended(number):
        return ""
    return f"the rebuild of job {number} has ended"


def _gathered(entry: StoredObject, needed: Needed, _: int) -> str:
    """Judge gathered rows, which no version names.

    They are garbage once their application's position has passed them.
    """
    parts = layout.gathered_place(entry.path)
    if parts is None:
        return ""
    folder, begin = parts
    position = needed.gathered.get(folder, 0)
    if begin >= position:
        return ""
    return f"its rows are committed: the position is {position}"


def _claim(entry: StoredObject, needed: Needed, _: int) -> str:
    """Judge a claim: garbage once its job has ended and the job's commit has expired.

    A claim above the greatest number in use stays: otherwise the number would be claimed again.
    """
    number, numbers = layout.claim_number(entry.path), needed.numbers
    if number is None or number > numbers.greatest:
        return ""
    if number in numbers.logged or not numbers.has_ended(number):
        return ""
    return f"job {number} has ended, and its commit has expired"


def _kept_for_window(entry: StoredObject, _: Needed, cutoff_us: int) -> str:
    """Judge a file that is needed only within the window."""
    return "it is older than the window" if entry.modified_us < cutoff_us else ""


def _expired(version: int | None, needed: Needed) -> str:
    """Return why a file of a version is garbage; an empty text if it is needed."""
    if version is None or version >= needed.begin:
        return ""
    return f"version {version} has expired"


def _commit(entry: StoredObject, needed: Needed, _: int) -> str:
    return _expired(layout.commit_version(entry.path), needed)


def _checkpoint(entry: StoredObject, needed: Needed, _: int) -> str:
    version = layout.checkpoint_version(entry.path)
    return "" if version in needed.savepoints else _expired(version, needed)


def _section(entry: StoredObject, needed: Needed, _: int) -> str:
    """Judge a section by its version: a newer one may be of an unfinished checkpoint."""
    return _expired(layout.section_version(entry.path), needed)


def _base(entry: StoredObject, needed: Needed, _: int) -> str:
    return _expired(layout.bitmap_version(entry.path), needed)


# Kinds that are not listed have turn 0. Commits have the turns 1 to 3, by `layout.commit_turn`
_TURNS = {
    "commits": 1,
    "checkpoints": 1,
    "sections": 4,
    "bitmap_bases": 4,
    "side_files": 4,
    LEFT_OVERS: 5,
}
# The prefix of the paths, the name of the kind, and the judge of a file
_KINDS: tuple[tuple[str, str, _Judge], ...] = (
    (layout.DATA, "data_files", _of_job),
    (layout.SEGMENT_LOGS, "segment_logs", _of_job),
    (layout.KEY_STORE, "key_store_runs", _of_job),
    (layout.SIDE, "side_files", _of_job),
    (layout.REJECTED, "rejected_files", _rejected),
    (layout.REBUILD, "rebuild_records", _rebuild_record),
    (layout.GATHERED, "gathered_files", _gathered),
    (layout.RESULTS, "results", _kept_for_window),
    # Running streams write their documents again every hour
    (layout.TRAFFIC, "traffic", _kept_for_window),
    (layout.CLAIMS, "claims", _claim),
    (layout.LOG, "commits", _commit),
    (layout.CHECKPOINTS, "checkpoints", _checkpoint),
    (layout.SECTIONS, "sections", _section),
    (layout.BITMAPS, "bitmap_bases", _base),
)
