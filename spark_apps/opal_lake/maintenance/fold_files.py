"""A fold: small files that the writer of an upsert joins after its commit.

Files are in tiers by the number of ingested files that they hold. The writer whose upsert fills a
tier rewrites the files of that tier in a commit of its own. As with the runs of the key store, a
row is written again once per tier, and a reader opens few files per tier, however small the upserts
are. A fold is a minor compaction of recent files: it moves rows, and conflicts with no upsert. It
reads only the newest part of the list of files; older files wait for the next compaction. No
service has to run.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

from opal_lake.data.segment import DataFile
from opal_lake.log.claim import claim_number
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance.compaction_plan import Bin, by_group_and_folder, is_small
from opal_lake.maintenance.rewrite_job import RewriteRun, commit_rewrite
from opal_lake.maintenance.rewrite_task import (
    BinWork,
    RewriteTask,
    Rewritten,
    rewrite_bin,
    row_bases_of,
)

FOLDED_BYTES = 1 << 20  # larger files wait for a compaction
_LOOKS = 4  # how often writers look for full tiers while as many files are added as fill a tier


def fold_if_due(log: CommitLog, base: Snapshot, version: int | None) -> None:
    """Join small files after an upsert from a base to a version, if a tier is full.

    The upsert's commit stands, whether the fold succeeds or not. To spare upserts, the writer looks
    for full tiers only once every few versions, and only in lists that are in memory.
    """
    fan_in = base.spec.integer("fold_files")
    if not fan_in or version is None:
        return
    step = max(1, fan_in // _LOOKS)
    if base.version // step == version // step:
        return
    with log.derived():
        if plan_folds(base, fan_in):
            _fold(log, fan_in)


def _fold(log: CommitLog, fan_in: int) -> None:
    # The head that the upsert has read: to list the checkpoints again would take time
    head = log.head(to_commit=True)
    bins = plan_folds(head, fan_in)
    if not bins:
        return
    started_us = log.clock.now_us()
    number = claim_number(log.storage, head.root, "compact", log.clock)
    task = RewriteTask(
        storage=log.storage,
        spec=head.spec,
        number=number,
        target_bytes=head.spec.integer("target_mb") << 20,
    )
    outputs: list[Rewritten] = []
    for index, bin_ in enumerate(bins):
        work = BinWork(position=index, bin=bin_, row_bases=row_bases_of(head, bin_.files))
        outputs.append(rewrite_bin(task, work, attempt="0"))
    run = RewriteRun(operation="compact", number=number, base=head, started_us=started_us)
    commit_rewrite(log, run, outputs)


def plan_folds(head: Snapshot, fan_in: int) -> list[Bin]:
    """Plan which files to join: those of full tiers and of the tiers below them.

    Each folder and group has tiers of its own.
    """
    # The list of pending segments is opened only if there are any
    pending = head.pending if head.root.pending else frozenset()
    foldable: list[DataFile] = []
    for file in head.recent_files().values():
        is_foldable = file.size < FOLDED_BYTES and is_small(file, 2 * FOLDED_BYTES)
        if is_foldable and pending.isdisjoint(file.segments):
            foldable.append(file)
    bins: list[Bin] = []
    for _, members in by_group_and_folder(foldable):
        full = _files_of_full_tiers(members, fan_in)
        if full:
            bins.append(Bin(files=full))
    return bins


def _files_of_full_tiers(files: Sequence[DataFile], fan_in: int) -> tuple[DataFile, ...]:
    """Return the files of full tiers and of the tiers below, oldest rows first.

    The tier of a file is the logarithm of the number of ingested files that it holds.
    """
    tiers: dict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        # The logarithm of a power of `fan_in` may come out just below a whole number
        tier = int(math.log(len(file.segments), fan_in) + 1e-9)
        tiers[tier].append(file)
    chosen: list[DataFile] = []
    below: list[DataFile] = []
    carried = 0
    for tier in sorted(tiers):
        below += tiers[tier]
        is_full = len(tiers[tier]) + carried >= fan_in
        if is_full:
            chosen = [*below]
        # The files of a full tier become one file of the next tier
        carried = 1 if is_full else 0
    return tuple(sorted(chosen, key=lambda file: (file.segments[0], file.path)))
