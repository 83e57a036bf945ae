"""Files that may show erased values after an erasure has deleted all that it may delete."""

from collections.abc import Mapping
from dataclasses import dataclass

from opal_lake import layout
from opal_lake.errors import count_text
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.lists import rewritten_files
from opal_lake.log.snapshot import Snapshot
from opal_lake.retention.live_files import Needed

_FOLDERS_OF_JOBS = (
    layout.DATA,
    layout.SEGMENT_LOGS,
    layout.KEY_STORE,
    layout.SIDE,
    layout.REJECTED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierFiles:
    """The number of files from before an erasure that remain after it, by kind.

    - `gathered` are rows of streams that are not committed.
    - `of_jobs` are files of jobs that began before the erasure committed, and may still run.
    - `naming` are the files of the erasure's own commit, if it names folders of partitions that
      have no file any more: these names hold values of their rows.
    """

    version: int
    gathered: int
    of_jobs: int
    naming: int

    @property
    def number(self) -> int:
        """The number of all files."""
        return self.gathered + self.of_jobs + self.naming

    @property
    def notes(self) -> list[str]:
        """Notes of what the files hold, and when they go."""
        notes: list[str] = []
        if self.gathered:
            notes.append(
                f"{count_text(self.gathered, 'gathered file')} of streams from before the erasure "
                "may hold rows of the keys: the stream's next commit brings them; erase again "
                "after it"
            )
        if self.of_jobs:
            notes.append(
                f"{count_text(self.of_jobs, 'file')} of jobs that began before the erasure may "
                "hold rows of the keys; run the same erase again once the jobs have ended"
            )
        if self.naming:
            notes.append(
                f"the commit of version {self.version} names folders of partitions without rows; "
                "`opal retain` deletes it when later versions have left the window"
            )
        return notes


def find_earlier_files(
    log: CommitLog,
    head: Snapshot,
    needed: Needed,
    claims: Mapping[int, int],
    erased: tuple[int, int],
) -> EarlierFiles:
    """Find the files that may show erased values and have to stay.

    `claims` has the store's time of each job's number, `erased` the version and the time of the
    erasure.
    """
    version, erased_us = erased
    gathered = 0
    for entry in log.storage.list(layout.GATHERED):
        is_earlier = entry.modified_us <= erased_us
        gathered += is_earlier and layout.gathered_place(entry.path) is not None
    running = {number for number in needed.numbers.in_flight if claims[number] <= erased_us}
    files_by_job = dict.fromkeys(running, 0)
    for folder in _FOLDERS_OF_JOBS if running else ():
        for entry in log.storage.list(folder):
            number = layout.job_number(entry.path)
            if number in running:
                files_by_job[number] += 1
    # A job without a file may still write its first one
    of_jobs = sum(max(1, files) for files in files_by_job.values())
    return EarlierFiles(
        version=version,
        gathered=gathered,
        of_jobs=of_jobs,
        naming=_files_that_name_partitions(log, head, needed, version),
    )


def _files_that_name_partitions(
    log: CommitLog, head: Snapshot, needed: Needed, version: int
) -> int:
    """Return how many files of an erasure's commit name folders without a file.

    They are the commit and its side file, unless a retention deleted them.
    """
    if version < needed.begin:
        return 0
    rewrite = rewritten_files(log.storage, log.read_commit(version))
    folders = {_folder(path) for path in head.files}
    if all(_folder(path) in folders for path in rewrite.remove):
        return 0
    return 1 if rewrite.side is None else 2


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
