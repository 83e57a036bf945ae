"""The history of a table: all versions that can be read, or an error that names the missing one."""

from itertools import islice

import pytest

from opal_lake import layout
from opal_lake.errors import FormatError
from opal_lake.storage.memory import MemoryStorage
from tests.kit.check import check_table
from tests.opal_lake.retention.build import at_hour, history
from tests.opal_lake.shop import create, reopen, rows


@pytest.mark.parametrize("lost", [2, 5, 9])
def test_history_names_the_version_that_the_log_lacks(lost: int) -> None:
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=3)
    for hour in range(1, 11):
        table.ingest(*rows([("ax", hour, hour)]), metadata="inline")
    storage.delete([layout.commit_path(lost)])
    storage.delete([stored.path for stored in storage.list(layout.LOG_PAGES)])
    listed = []
    with pytest.raises(FormatError, match=rf"{layout.commit_path(lost)} is missing.*from a backup"):
        listed.extend(commit.version for commit in reopen(storage).commits())
    assert listed == list(range(reopen(storage).snapshot_at().version, lost, -1))
    assert len([*islice(reopen(storage).commits(), len(listed))]) == len(listed)


def test_history_reads_a_lost_version_from_a_page_and_check_names_the_version() -> None:
    storage = MemoryStorage()
    history(storage, 10)
    expected = [*at_hour(storage, 12).history()]
    storage.delete([layout.commit_path(5)])
    assert [*at_hour(storage, 12).history()] == expected
    findings = check_table(at_hour(storage, 12))
    paths = {finding.path for finding in findings if finding.invariant == "I1"}
    assert paths == {layout.commit_path(5)}


def test_history_ends_where_versions_have_expired() -> None:
    storage = MemoryStorage()
    history(storage, 12)
    table = at_hour(storage, 12)
    table.retain(window="4h", grace="1h")
    oldest = table.snapshot_at().root.oldest_version
    assert oldest > 4
    versions = [commit.version for commit in table.commits()]
    assert versions[0] - len(versions) + 1 in (oldest, oldest + 1)


def test_history_ends_where_versions_expire_while_it_is_read() -> None:
    storage = MemoryStorage()
    history(storage, 12)
    commits = at_hour(storage, 12).commits()
    first = next(commits).version
    at_hour(storage, 12).retain(window="4h", grace="1h")
    versions = [first, *(commit.version for commit in commits)]
    assert versions == list(range(first, first - len(versions), -1))
    assert len(versions) >= 4
