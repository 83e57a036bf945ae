"""The sizes at which the log writes its files otherwise: tests set them small."""

from dataclasses import dataclass

from opal_lake.log.commit import MAX_FILES_IN_COMMIT
from opal_lake.log.sections import MERGE_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Sizes by which commits, checkpoints, bitmap bases and log pages are split and merged.

    They move costs, not content: a reader understands files that were written with any others.
    """

    # Files that a commit lists itself: an ingest its new files, a rewrite also the removed ones.
    # Longer lists are in a side file.
    ingest_max_files: int = MAX_FILES_IN_COMMIT
    rewrite_max_files: int = MAX_FILES_IN_COMMIT
    # Bytes. Smaller parts are within the root itself: the checkpoint of a small table is one file.
    inline_bytes: int = 16 << 10
    # Logs or events since the last fold. A reader takes that many from the logs themselves.
    fold_at_logs: int = 4
    fold_at_events: int = 1_000_000
    # Bytes. Smaller bases are always merged into the next one: a request costs more than they do.
    small_base_bytes: int = 16 << 10
    # A base that stands has more than so many times the bytes of the next one
    base_merge_ratio: float = MERGE_RATIO
    # Pages of a size that are merged into one
    page_fan_in: int = 16
    # Versions of a range, from which on a reader asks for a page
    page_least_versions: int = 3
    # Commits that a writer reads because an earlier page lacks them
    page_max_filled: int = 64
    # Bytes. Cost of a small commit, its log and two requests: a page may cost as much a version.
    page_commit_bytes: int = 8 << 10


DEFAULT_TUNING = Tuning()
