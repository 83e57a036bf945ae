"""The sizes that decide when the log splits and merges its files."""

from dataclasses import dataclass

from opal_lake.log.commit import MAX_FILES_IN_COMMIT
from opal_lake.log.sections import MERGE_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Sizes by which commits, checkpoints, bases and log pages are split and merged.

    They change only costs: a reader understands files that were written with other sizes. Tests set
    them small.
    """

    # Files that a commit lists at most, the new ones of an ingest, or the new and removed ones of a
    # rewrite. Longer lists are in a side file.
    ingest_max_files: int = MAX_FILES_IN_COMMIT
    rewrite_max_files: int = MAX_FILES_IN_COMMIT
    # Bytes of a part up to which it is stored within the root: a small table's checkpoint is then
    # a single file
    inline_bytes: int = 16 << 10
    # Bases are folded once so many logs, or events, came after the last fold. Until then readers
    # read these logs one by one.
    fold_at_logs: int = 4
    fold_at_events: int = 1_000_000
    # Bytes of a base up to which it is always merged into the next one: to read it in a request of
    # its own costs more
    small_base_bytes: int = 16 << 10
    # A larger base is merged if it has at most so many times the bytes of the next one
    base_merge_ratio: float = MERGE_RATIO
    # So many pages of one span are merged into a page of the next larger span
    page_fan_in: int = 16
    # Versions that a reader must need of a page to read the page instead of the commits
    page_least_versions: int = 3
    # Commits at most that a writer reads to fill the gaps of pages that it merges
    page_max_filled: int = 64
    # Bytes of a page for each version that a reader needs of it. A larger page is not read: two
    # requests for a small commit and its log cost less.
    page_commit_bytes: int = 8 << 10


DEFAULT_TUNING = Tuning()
