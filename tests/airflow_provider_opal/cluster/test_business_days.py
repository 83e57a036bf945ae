"""Business snapshots with a drift time under a real Airflow.

Days are partition keys, and the next one waits until the last is complete.

The tests share one Airflow and go on from what those before left.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from opal_lake.inspect.describe import describe
from opal_lake.table import Table
from tests.airflow_provider_opal.cluster.lake import ended, keyed, log_of, pause, trigger
from tests.demo.shop.local_airflow import LocalAirflow, local_airflow
from tests.kit.check import check_table

pytestmark = [pytest.mark.slow, pytest.mark.chained]

DAGS = ("homes", "take_up")
FRIDAY, SATURDAY, SUNDAY, STRAY = "2026-11-06", "2026-11-07", "2026-11-08", "2999-01-01"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("homes")
    for name in ("lake", "source"):
        (folder / name).mkdir()
    shutil.copytree(Path(__file__).parent / "day_dags", folder / "dags")
    return folder


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[LocalAirflow]:
    settings = {
        "AIRFLOW_CONN_OPAL_DEFAULT": json.dumps(
            {"conn_type": "opal", "host": str(folder / "lake")}
        ),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW_VAR_LAKE_SOURCE": str(folder / "source"),
    }
    with local_airflow(tmp_path_factory.mktemp("airflow"), folder / "dags", settings) as airflow:
        airflow.wait_until(
            lambda: (
                {*DAGS} <= {dag["dag_id"] for dag in airflow.api("GET", "/dags?limit=100")["dags"]}
            )
        )
        for dag_id in DAGS:
            pause(airflow, dag_id, paused=False)
        yield airflow


def put(folder: Path, day: str, *rows: tuple[str, int, str]) -> None:
    """More rows of a day: (user, at, city)."""
    (folder / "source" / day).mkdir(exist_ok=True)
    lines = [json.dumps(dict(zip(("user", "at", "city"), row, strict=True))) for row in rows]
    (folder / "source" / day / f"{rows[0][1]}.json").write_text("\n".join(lines) + "\n")


def table(folder: Path) -> Table:
    return Table.open(str(folder / "lake" / "lake" / "homes"))


def cities(folder: Path, business_snapshot: str | None = None) -> dict[str, str]:
    return {
        row["user"]: row["city"]
        for row in table(folder).read(business_snapshot=business_snapshot).to_pylist()
    }


def of_days(folder: Path) -> dict[str, object]:
    return dict(describe(table(folder))["business_snapshots"])


def run(airflow: LocalAirflow, day: str) -> str:
    return ended(airflow, "homes", trigger(airflow, "homes", partition_key=day))


def run_again(airflow: LocalAirflow, day: str) -> str:
    before = [run["state"] for run in airflow.runs("homes")]
    airflow.cli("dags", "clear", "homes", "--partition-key", day, "--yes")
    airflow.wait_until(lambda: [run["state"] for run in airflow.runs("homes")] != before)
    airflow.wait_until(lambda: dict(keyed(airflow, "homes"))[day] in ("success", "failed"))
    return dict(keyed(airflow, "homes"))[day]


def test_the_next_day_is_held_back_and_the_open_one_takes_late_rows(
    airflow: LocalAirflow, folder: Path
) -> None:
    put(folder, FRIDAY, ("A", 1, "Beijing"), ("B", 1, "Xian"))
    put(folder, SATURDAY, ("A", 20, "Wuhan"))
    assert run(airflow, FRIDAY) == "success"
    assert run(airflow, SATURDAY) == "success"
    assert of_days(folder) == {"finished": [], "open": FRIDAY, "held": [SATURDAY]}
    assert cities(folder) == {"A": "Beijing", "B": "Xian"}
    put(folder, FRIDAY, ("A", 9, "Hangzhou"))
    assert run_again(airflow, FRIDAY) == "success"
    assert cities(folder) == {"A": "Hangzhou", "B": "Xian"}
    assert of_days(folder) == {"finished": [], "open": FRIDAY, "held": [SATURDAY]}


def test_once_the_drift_time_is_over_the_next_metagen_finishes_the_day(
    airflow: LocalAirflow, folder: Path
) -> None:
    table(folder).set_properties({"drift": "1s"})
    assert ended(airflow, "take_up", trigger(airflow, "take_up")) == "success"
    assert of_days(folder) == {"finished": [FRIDAY], "open": SATURDAY, "held": []}
    assert cities(folder, FRIDAY) == {"A": "Hangzhou", "B": "Xian"}
    assert cities(folder) == {"A": "Wuhan", "B": "Xian"}
    assert run_again(airflow, FRIDAY) == "failed"
    assert f"{FRIDAY} is not after {FRIDAY}, which is finished" in log_of(
        airflow, "homes", "ingest"
    )
    assert of_days(folder) == {"finished": [FRIDAY], "open": SATURDAY, "held": []}


def test_a_stray_day_is_taken_back_and_the_days_go_on(airflow: LocalAirflow, folder: Path) -> None:
    before = table(folder).snapshot_at().version
    put(folder, STRAY, ("B", 90, "Nowhere"))
    put(folder, SUNDAY, ("B", 30, "Chengdu"))
    assert run(airflow, STRAY) == "success"
    assert ended(airflow, "take_up", trigger(airflow, "take_up")) == "success"
    assert of_days(folder) == {"finished": [FRIDAY, SATURDAY], "open": STRAY, "held": []}
    assert run(airflow, SUNDAY) == "failed"
    table(folder).restore(version=before, business_snapshots=True)
    assert run_again(airflow, SUNDAY) == "success"
    assert ended(airflow, "take_up", trigger(airflow, "take_up")) == "success"
    assert of_days(folder) == {"finished": [FRIDAY, SATURDAY], "open": SUNDAY, "held": []}
    assert cities(folder, SATURDAY) == {"A": "Wuhan", "B": "Xian"}
    assert cities(folder) == {"A": "Wuhan", "B": "Chengdu"}
    assert check_table(table(folder)) == []
