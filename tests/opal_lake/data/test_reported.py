"""Checks on the files that tasks report, before a commit names them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from opal_lake.data.segment import DataFile, LogFile, RunFile, run_from_json, run_to_json
from opal_lake.engine.in_process import InProcess
from opal_lake.errors import ReportError
from opal_lake.exit_codes import BUG, exit_code
from opal_lake.ids import segment_id
from opal_lake.log.commit import MAX_FILES_IN_COMMIT, Actions, Rewrite
from opal_lake.storage.open import open_storage
from tests.opal_lake.shop import create, rows

STEM, OTHER = "0000000007-00000000-0", "0000000007-00000001-0"
DATA = DataFile(
    path=f"data/a=b/{STEM}.parquet",
    size=900,
    crc32=1,
    footer_bytes=100,
    footer_crc32=1,
    rows=3,
    group=0,
    segments=(segment_id(7, 0),),
)
LOG = LogFile(
    path=f"_opal/segment_logs/{STEM}.parquet",
    size=90,
    crc32=1,
    events=2,
    groups=(0,),
    least_until=-5,
    greatest_until=5,
)
RUN = RunFile(
    path=f"_opal/key_store/{STEM}.run",
    size=90,
    crc32=1,
    entries=2,
    hash_low=0,
    hash_high=9,
    greatest_delta=5,
)


@pytest.mark.parametrize("greatest", [-(1 << 63), 0, (1 << 63) - 1])
def test_run_is_recorded_with_its_greatest_delta(greatest: int) -> None:
    run = replace(RUN, greatest_delta=greatest)
    assert run_from_json(json.loads(json.dumps(run_to_json(run)))) == run


@dataclass(frozen=True, slots=True, kw_only=True)
class Misreporting(InProcess):
    """Does the work, and says something else of its files."""

    change: Callable[[DataFile], DataFile]

    def by_partition(self, *given: Any) -> list[Any]:
        outputs: list[Any] = InProcess.by_partition(self, *given)
        return [replace(output, files=tuple(map(self.change, output.files))) for output in outputs]

    def run(self, *given: Any) -> list[Any]:
        outputs: list[Any] = InProcess.run(self, *given)
        return [replace(output, files=tuple(map(self.change, output.files))) for output in outputs]


def test_valid_reports_of_tasks_are_accepted() -> None:
    Actions(ingested=(DATA,), add_logs=(LOG,), add_runs=(RUN,)).check_reported(7)
    Actions(rewrite=Rewrite(add=(DATA,))).check_reported(8)


@pytest.mark.parametrize(
    "entry, change, said",
    [
        (DATA, {"path": f"data/../{STEM}.parquet"}, "not a path of a data file"),
        (DATA, {"path": f"_opal/log/{STEM}.json"}, "not a path of a data file"),
        (DATA, {"path": f"/data/{STEM}.parquet"}, "not a path of a data file"),
        (DATA, {"size": 0, "footer_bytes": 0, "rows": 0}, "it has 0 bytes"),
        (DATA, {"size": -900}, "-900 is not a whole number from 0 to"),
        (DATA, {"rows": -3}, "-3 is not a whole number from 0 to"),
        (DATA, {"rows": 1 << 30}, "a file of 900 bytes cannot hold"),
        (DATA, {"rows": "3"}, "'3' is not a whole number from 0 to"),
        (DATA, {"footer_bytes": 901}, "its footer has 901 of its 900 bytes"),
        (DATA, {"segments": ()}, "it has no segment"),
        (LOG, {"path": f"data/{STEM}.parquet"}, "not a path of a log file"),
        (LOG, {"events": -1}, "-1 is not a whole number from 0 to"),
        (LOG, {"size": 0, "events": 0}, "it has 0 bytes"),
        (RUN, {"path": f"_opal/key_store/../{STEM}.run"}, "not a path of a run file"),
        (RUN, {"entries": -1}, "-1 is not a whole number from 0 to"),
        (RUN, {"entries": 12}, "90 bytes cannot hold its 12 entries"),
        (RUN, {"size": 0, "entries": 0}, "0 bytes cannot hold its 0 entries"),
    ],
)
def test_impossible_entry_is_refused(entry: Any, change: dict[str, Any], said: str) -> None:
    wrong: Any = replace(entry, **change)
    for actions in {
        DataFile: (Actions(ingested=(wrong,)), Actions(rewrite=Rewrite(add=(wrong,)))),
        LogFile: (Actions(add_logs=(wrong,)),),
        RunFile: (Actions(add_runs=(wrong,)),),
    }[type(entry)]:
        with pytest.raises(ReportError, match=rf"a task reported .*{said}.*Nothing was committed"):
            actions.check_reported(7)


def test_segment_of_another_job_or_reported_twice_is_refused() -> None:
    with pytest.raises(ReportError, match=r"its segment \d+ does not belong to job 8"):
        Actions(ingested=(DATA,)).check_reported(8)
    with pytest.raises(ReportError, match="it was reported twice"):
        Actions(ingested=(DATA, DATA)).check_reported(7)
    with pytest.raises(ReportError, match=r"its segment \d+ was reported twice"):
        Actions(ingested=(DATA, replace(DATA, path=DATA.path.replace(STEM, OTHER)))).check_reported(
            7
        )
    with pytest.raises(ReportError, match="it has 2 segments"):
        Actions(
            ingested=(replace(DATA, segments=(*DATA.segments, *DATA.segments)),)
        ).check_reported(7)
    assert exit_code(ReportError("x")) == BUG


@pytest.mark.parametrize("files", [1, MAX_FILES_IN_COMMIT + 1])
@pytest.mark.parametrize(
    "change", [{"segments": (segment_id(99, 0),)}, {"path": "data/x.parquet"}, {"rows": -1}]
)
def test_ingest_with_a_wrong_report_commits_nothing(
    tmp_path: Path, files: int, change: dict[str, Any]
) -> None:
    table = create(open_storage(str(tmp_path / "t")))
    wrong = replace(
        table, executor=Misreporting(tasks=files, change=lambda file: replace(file, **change))
    )
    with pytest.raises(ReportError, match="a task reported"):
        wrong.ingest(*rows([(f"key {number}", 1, 1) for number in range(files)]))
    assert table.snapshot_at().version == 0
    assert not list((tmp_path / "t" / "_opal" / "side").glob("*"))


def test_rewrite_with_a_wrong_report_commits_nothing(tmp_path: Path) -> None:
    table = create(open_storage(str(tmp_path / "t")))
    for key in "abcd":
        table.ingest(*rows([(key, 1, 1)]), metadata="inline")
    before = table.snapshot_at()
    wrong = replace(table, executor=Misreporting(change=lambda file: replace(file, size=0)))
    with pytest.raises(ReportError, match="a task reported"):
        wrong.compact()
    assert table.snapshot_at().files == before.files
