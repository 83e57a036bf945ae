"""A check by any number of tasks finds what the check of one process finds."""

from dataclasses import replace

import pytest

from opal_lake.engine.in_process import InProcess
from opal_lake.inspect.check.check import check
from opal_lake.operations.look import Check
from opal_lake.storage import open_storage
from opal_lake.table import table_on
from tests.opal_lake.inspect.build import FORGERIES, Forger, forger, shown_findings

__all__ = ["forger"]


@pytest.mark.parametrize("what", ["nothing", *FORGERIES])
@pytest.mark.parametrize("slots", [1, 3])
def test_forgeries_are_found_as_the_local_check_finds_them(
    what: str, slots: int, forger: Forger, request: pytest.FixtureRequest
) -> None:
    if what in FORGERIES:
        FORGERIES[what][1](forger)
    storage = open_storage(f"memory://{request.node.name}")
    for path, data in forger.files.items():
        storage.put_if_absent(path, data)
    table = table_on(storage)
    here = check(table, Check())
    by_tasks = check(replace(table, executor=InProcess(tasks=slots)), Check())
    assert shown_findings([*by_tasks.findings]) == shown_findings([*here.findings])
    assert bool(here.findings) == (what in FORGERIES)
