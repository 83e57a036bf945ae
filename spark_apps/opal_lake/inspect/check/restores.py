"""Restores against the versions that they restored (I26)."""

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

_REMEDY = "restore the log from a backup"


def check_restores(
    log: CommitLog, commits: Sequence[Commit], newest: Root | None, findings: Findings
) -> None:
    """Check each restore, as long as its version and the restored one can be read."""
    for commit in commits:
        restored = commit.actions.restored
        if restored is None:
            continue
        path = layout.commit_path(commit.version)
        message = f"it restores version {restored.version}, which is not older"
        findings.expect(restored.version < commit.version, "I26", path, message)
        if newest is None:
            continue
        if is_readable(newest, restored.version) and is_readable(newest, commit.version):
            with findings.going_on("I26", path):
                older = log.at(restored.version)
                _compare_lists(log.at(commit.version), older, path, findings)
                _compare_counts(restored, older.root, path, findings)
                _compare_business(restored, older.root, path, findings)


def _compare_lists(state: Snapshot, older: Snapshot, path: str, findings: Findings) -> None:
    for name in RESTORED_LISTS:
        actual, expected = list_items(state, name), list_items(older, name)
        if name == "partitions":
            # Partition keys of what a restore undoes stay known
            is_same = expected.keys() <= actual.keys()
        else:
            is_same = actual == expected
        message = f"its {name} are not those of version {older.version}; {_REMEDY}"
        findings.expect(is_same, "I26", path, message)


def _compare_counts(restored: Restored, root: Root, path: str, findings: Findings) -> None:
    expected_values = {
        "groups": dict(root.groups),
        "rows": root.rows,
        "pending": root.pending,
        "events": root.events,
        "incomplete_ingests": tuple(sorted(root.incomplete_ingests)),
    }
    for name, expected in expected_values.items():
        actual = getattr(restored, name)
        message = f"its {name} is {actual!r}, of version {root.version} {expected!r}; {_REMEDY}"
        findings.expect(actual == expected, "I26", path, message)


def _compare_business(restored: Restored, root: Root, path: str, findings: Findings) -> None:
    """Compare business snapshots, finished ones as far as their versions remained."""
    business = restored.business
    if business is None:
        return
    is_same = business == replace(root.business, finished=business.finished)
    is_known = {*business.finished} <= {*root.business.finished}
    message = f"its business snapshots are not those of version {root.version}; {_REMEDY}"
    findings.expect(is_same and is_known, "I26", path, message)
