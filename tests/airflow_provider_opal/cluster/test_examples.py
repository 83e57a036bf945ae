"""The examples and the guide's pipelines under a real Airflow, and a burst of commits.

The tests share one Airflow and go on from what those before left.
"""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from opal_lake.table import Table
from tests.airflow_provider_opal.cluster.lake import (
    Lake,
    backfill,
    days,
    ended,
    keyed,
    log_of,
    pause,
    settle,
    succeeded,
    trigger,
)
from tests.demo.shop.local_airflow import LocalAirflow
from tests.kit.check import check_table

pytestmark = [pytest.mark.slow, pytest.mark.chained]


def test_a_burst_of_commits_reaches_a_consumer_that_runs_one_at_a_time_without_a_gap(
    airflow: LocalAirflow, lake: Lake
) -> None:
    (lake.source / "ticks").mkdir()
    (lake.source / "ticks" / "first.json").write_text('{"id": 1, "at": 1}\n')
    assert ended(airflow, "ticks", trigger(airflow, "ticks")) == "success"
    assert ended(airflow, "burst", trigger(airflow, "burst")) == "success"
    settle(airflow, "ticks.follow")
    lake.expect_no_gap("follow-ticks", "ticks")
    ids = [number for note in lake.notes("follow-ticks") for number in note["ids"]]
    assert sorted(ids) == [1, *range(100, 120)]


def test_a_broken_yaml_file_is_an_import_error_of_its_own_until_it_is_corrected(
    airflow: LocalAirflow, lake: Lake
) -> None:
    good = (lake.dags / "guide.opal.yaml").read_text()
    broken = lake.dags / "broken.opal.yaml"
    broken.write_text(good.replace("guide_yaml", "broken_one").replace("keys:", "key:"))

    def errors() -> list[tuple[str, str]]:
        return [
            (error["filename"], error["stack_trace"])
            for error in airflow.api("GET", "/importErrors")["import_errors"]
        ]

    airflow.wait_until(lambda: [name for name, _ in errors()] == ["broken.opal.yaml"])
    [(_, said)] = errors()
    assert "broken.opal.yaml:7:" in said
    assert "did you mean 'keys'?" in said
    assert not [
        dag["dag_id"]
        for dag in airflow.api("GET", "/dags?limit=100&exclude_stale=false")["dags"]
        if dag["is_stale"]
    ]
    broken.write_text(good.replace("guide_yaml", "broken_one").replace("guide.yaml", "guide.other"))
    airflow.wait_until(
        lambda: errors() == [] and airflow.api("GET", "/dags/broken_one")["is_paused"]
    )


def test_the_examples_run(airflow: LocalAirflow, lake: Lake) -> None:
    """Run dags/shop.py, and the Airflow guide's pipeline in Python and in YAML.

    `make demo` runs dags/shop.opal.yaml.
    """
    users, orders = lake.source / "users", lake.source / "guide" / "2026-11-02"
    users.mkdir()
    orders.mkdir(parents=True)
    (users / "a.json").write_text('{"id": 1, "at": 1, "name": "Ann", "op": "I"}\n')
    (orders / "a.json").write_text(
        '{"order_id": 1, "updated_at": 1, "country": "NL", "total": 5, "op": "I"}\n'
    )
    for dag_id in ("shop_users", "shop_report", "guide_python.revenue", "guide_yaml.revenue"):
        pause(airflow, dag_id, paused=False)
    assert ended(airflow, "shop_users", trigger(airflow, "shop_users")) == "success"
    for name in ("guide_python", "guide_yaml"):
        backfill(airflow, "2026-11-02", "2026-11-02", name)
        pause(airflow, name, paused=False)
    airflow.wait_until(lambda: [run["state"] for run in airflow.runs("shop_report")] == ["success"])
    for dag_id in ("shop_maintenance", "guide_python.maintenance"):
        pause(airflow, dag_id, paused=False)
        airflow.wait_until(
            lambda dag_id=dag_id: [run["state"] for run in airflow.runs(dag_id)] == ["success"]
        )
    for name in ("guide_python", "guide_yaml"):
        airflow.wait_until(
            lambda name=name: keyed(airflow, f"{name}.revenue") == [("2026-11-02", "success")]
        )
        assert [
            row["country"]
            for row in lake.table(name.removeprefix("guide_"), "guide").read().to_pylist()
        ] == ["NL"]
    reports = [
        json.loads(path.read_text())
        for path in (lake.out / "reports" / "2026-11-02").glob("*.json")
    ]
    assert {"country": "NL", "sum(total)": 5} in reports


def test_a_folder_is_mutated_and_a_clear_after_a_correction_merges_what_was_refused(
    airflow: LocalAirflow, lake: Lake
) -> None:
    """Run dags/products.py, whose first file is bad, and dags/stock.opal.yaml."""
    folder = lake.source / "product"
    files = {
        "master/part-r-00000": (
            "VR8NCNE7DV,wearables,fitbit,112,88,1427766458\n"
            "6QD0BAVS7I,laptop,asus,502,54,1427764070\n"
        ),
        "incr/products": "VR8NCNE7DV,wearables,fitbit,112,82,yesterday\n",
        "incr/del_products": "6QD0BAVS7I\n",
        "stock/a.csv": "id,stock,at\n1,88,1\n2,54,1\n",
        "stock_incr/a.csv": "id,stock,at\n1,82,2\n3,five,x\n",
        "stock_incr/del_a.csv": "id\n2\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for dag_id in ("products", "stock"):
        pause(airflow, dag_id, paused=False)
    run, other = trigger(airflow, "products"), trigger(airflow, "stock")
    airflow.wait_until(
        lambda: (
            "failed"
            in {
                attempt["state"]
                for attempt in airflow.runs("products")
                if attempt["dag_run_id"] == run
            }
        )
    )
    assert "products, line 1: field '_c5', the order, is not a valid number" in log_of(
        airflow, "products", "count", run
    )
    assert (folder / "incr" / "products").exists()
    (folder / "incr" / "products").write_text("VR8NCNE7DV,wearables,fitbit,112,82,1428415316\n")
    airflow.cli("tasks", "clear", "products", "--yes")
    airflow.wait_until(
        lambda: [attempt["state"] for attempt in airflow.runs("products")] == ["success"]
    )
    assert written(folder / "master") == ["VR8NCNE7DV,wearables,fitbit,112,82,1428415316"]
    assert ended(airflow, "stock", other) == "success"
    assert written(folder / "stock") == ["1,82,2", "id,stock,at"]
    assert len(list((folder / "stock.mutate" / "rejected").glob("*/*.json"))) == 1


def written(master: Path) -> list[str]:
    return sorted({line for path in master.glob("*.csv") for line in path.read_text().splitlines()})


def test_a_day_s_report_is_the_same_many_at_once_backwards_and_after_a_clear(
    airflow: LocalAirflow, lake: Lake
) -> None:
    """Run the guide's `revenue` over ten days at once, then one by one backwards.

    At once, the first MetaGen takes the rows of all days; one by one, all days come late.
    """
    files = {key: revenue_files(number) for number, key in enumerate(days(3, 8))}
    for key, rows in files.items():
        folder = lake.source / "guide" / key
        folder.mkdir(parents=True)
        (folder / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("guide_python", "guide_yaml"):
        pause(airflow, f"{name}.revenue", paused=False)
    backfill(airflow, "2026-11-03", "2026-11-05", "guide_python")
    backfill(
        airflow,
        "2026-11-06",
        "2026-11-08",
        "guide_yaml",
        "--run-backwards",
        "--max-active-runs",
        "1",
    )
    for name in ("guide_python", "guide_yaml"):
        pause(airflow, name, paused=False)
    for name, keys in (("guide_python", days(3, 5)), ("guide_yaml", days(6, 8))):
        airflow.wait_until(
            lambda name=name, keys=keys: {*keys} <= succeeded(airflow, f"{name}.revenue")
        )
    assert {key: lake.report(key) for key in files} == {
        key: revenue_of(rows) for key, rows in files.items()
    }
    shutil.rmtree(lake.out / "reports" / "2026-11-03")
    airflow.cli("dags", "clear", "guide_python", "--partition-key", "2026-11-03", "--yes")
    airflow.wait_until(lambda: lake.report("2026-11-03") != {})
    assert lake.report("2026-11-03") == revenue_of(files["2026-11-03"])


def revenue_files(day: int) -> list[dict[str, Any]]:
    """Every day all orders change, twice; each day one of them goes."""
    rows = [
        {
            "order_id": order,
            "updated_at": 10 * day + change,
            "country": "DE" if order % 2 else "NL",
            "total": order + day + change,
            "op": "U",
        }
        for order in range(9)
        for change in (1, 2)
    ]
    return [*rows, {**rows[2 * day], "updated_at": 10 * day + 3, "op": "D"}]


def revenue_of(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return what the report of such a file has to say."""
    last = {row["order_id"]: row for row in sorted(rows, key=lambda row: row["updated_at"])}
    revenue: Counter[str] = Counter()
    for row in last.values():
        if row["op"] != "D":
            revenue[row["country"]] += row["total"]
    return dict(revenue)


def test_opal_check_finds_nothing_after_all_runs(lake: Lake) -> None:
    for path in lake.root.glob("*/*"):
        assert check_table(Table.open(str(path))) == []
