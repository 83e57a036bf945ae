"""Small files are put together in passing: the writer whose upsert fills a tier rewrites its files in a commit of their own.

As with the runs of the key store, a row is written again once a tier, and a reader meets few files a tier, however small the upserts are.
It is a minor compaction of what came lately: it moves rows, and conflicts with no upsert. What it does not see, as only the newest part of
the list of files is looked at, waits for the next compaction. No service has to run.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from opal_lake.data.segment import DataFile
from opal_lake.log.claim import claim_number
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance.compaction_plan import Bin, by_place, is_small
from opal_lake.maintenance.rewrite_job import RewriteRun, commit_rewrite
from opal_lake.maintenance.rewrite_task import BinWork, RewriteTask, rewrite_bin, row_bases_of

FOLDED_BYTES = 1 << 20  # larger files wait for a compaction
_LOOKS = 4  # while so many small files come as make a tier full


def fold_if_due(log: CommitLog, base: Snapshot, version: int | None) -> None:
    """After an upsert from a base to a version, which stands, whatever comes of this. Looked at now and then, in what is at hand."""
    fan_in = base.spec.integer("fold_files")
    step = max(1, fan_in // _LOOKS)
    if not fan_in or version is None or base.version // step == version // step:
        return
    with log.derived():
        if plan_folds(base, fan_in):
            _fold(log, fan_in)


def _fold(log: CommitLog, fan_in: int) -> None:
    head = log.head(
        to_commit=True
    )  # of the upsert itself: to list the checkpoints takes longer the more there are
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
    outputs = [
        *map(
            partial(rewrite_bin, task, attempt="0"),
            (
                BinWork(position=index, bin=bin_, row_bases=row_bases_of(head, bin_.files))
                for index, bin_ in enumerate(bins)
            ),
        )
    ]
    commit_rewrite(
        log,
        RewriteRun(operation="compact", number=number, base=head, started_us=started_us),
        outputs,
    )


def plan_folds(head: Snapshot, fan_in: int) -> list[Bin]:
    """Of each folder and group the files of full tiers, and of the tiers below them."""
    pending = head.pending if head.root.pending else frozenset()
    small = [
        file
        for file in head.recent_files().values()
        if file.size < FOLDED_BYTES and is_small(file, FOLDED_BYTES << 1)
    ]
    settled = [file for file in small if pending.isdisjoint(file.segments)]
    return [
        Bin(files=files) for _, members in by_place(settled) for files in _full(members, fan_in)
    ]


def _full(files: Sequence[DataFile], fan_in: int) -> Iterator[tuple[DataFile, ...]]:
    """A tier is by how many ingested files a file stands for."""
    tiers: dict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        tiers[int(math.log(len(file.segments), fan_in) + 1e-9)].append(file)
    chosen: list[DataFile] = []
    below: list[DataFile] = []
    carried = 0
    for tier in sorted(tiers):
        below += tiers[tier]
        is_full = len(tiers[tier]) + carried >= fan_in
        chosen, carried = ([*below], 1) if is_full else (chosen, 0)
    if chosen:
        yield tuple(sorted(chosen, key=lambda file: (file.segments[0], file.path)))
