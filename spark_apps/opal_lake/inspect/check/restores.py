"""What a restore says against the version that it restored (I26)."""

from collections.abc import Sequence
from dataclasses import replace

from opal_lake import layout
from opal_lake.inspect.check.finding import Findings
from opal_lake.log.checkpoint import list_items
from opal_lake.log.commit import Commit, Restored
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.lists import RESTORED_LISTS
from opal_lake.log.snapshot import Root, Snapshot
from opal_lake.log.version_window import is_readable


def check_restores(
    log: CommitLog, commits: Sequence[Commit], kept: Root | None, findings: Findings
) -> None:
    """As long as both versions can be read."""
    for commit in commits:
        restored, path = commit.actions.restored, layout.commit_path(commit.version)
        if restored is None:
            continue
        findings.expect(
            restored.version < commit.version,
            "I26",
            path,
            f"it restores version {restored.version}, which is not older",
        )
        if kept and is_readable(kept, restored.version) and is_readable(kept, commit.version):
            with findings.going_on("I26", path):
                older = log.at(restored.version)
                _compare_lists(log.at(commit.version), older, path, findings)
                _compare_sums(restored, older.root, path, findings)
                _compare_business(restored, older.root, path, findings)


def _compare_lists(state: Snapshot, older: Snapshot, path: str, findings: Findings) -> None:
    for name in RESTORED_LISTS:
        here, there = list_items(state, name), list_items(older, name)
        # Partition keys of what a restore undoes stay known
        same = there.keys() <= here.keys() if name == "partitions" else here == there
        findings.expect(
            same,
            "I26",
            path,
            f"its {name} are not those of version {older.version}; restore the log from a backup",
        )


def _compare_sums(restored: Restored, root: Root, path: str, findings: Findings) -> None:
    sums = {
        "groups": dict(root.groups),
        "rows": root.rows,
        "pending": root.pending,
        "events": root.events,
    }
    for name, there in (
        sums | {"incomplete_ingests": tuple(sorted(root.incomplete_ingests))}
    ).items():
        here = getattr(restored, name)
        message = f"its {name} is {here!r}, of version {root.version} {there!r}; restore the log from a backup"
        findings.expect(here == there, "I26", path, message)


def _compare_business(restored: Restored, root: Root, path: str, findings: Findings) -> None:
    """Finished ones may be fewer: those whose version could be read no longer."""
    if (business := restored.business) is not None:
        right = business == replace(root.business, finished=business.finished) and {
            *business.finished
        } <= {*root.business.finished}
        message = f"its business snapshots are not those of version {root.version}; restore the log from a backup"
        findings.expect(right, "I26", path, message)
