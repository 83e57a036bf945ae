"""The example of a shop under a real Airflow: real scheduler, real spark-submit."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opal_lake.table import Table
from tests.airflow_provider_opal.cluster import Cluster, running_airflow

DAGS = Path(__file__).parents[2] / "dags"
ANN, ANNA = '{"id": 1, "at": 1, "name": "Ann", "op": "I"}\n', '{"id": 1, "at": 1, "name": "Anna", "op": "I"}\n'
BOB, NO_BOB = '{"id": 2, "at": 1, "name": "Bob", "op": "I"}\n', '{"id": 2, "at": 2, "name": "Bob", "op": "D"}\n'


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "users.json").write_text(ANN + BOB)
    return folder


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, source: Path, lake: Path) -> Iterator[Cluster]:
    connections = {"opal_default": {"conn_type": "opal", "host": str(lake)}, "spark_default": {"conn_type": "spark", "host": "local[2]"}}
    with running_airflow(tmp_path_factory.mktemp("airflow"), DAGS, connections, {"shop_source": str(source)}) as cluster:
        wanted = {"shop_users", "shop_report"}
        wait_until(lambda: wanted <= {dag["dag_id"] for dag in cluster.listed("dags", "list")}, cluster)
        for dag_id in wanted:
            cluster.airflow("dags", "unpause", dag_id)
        yield cluster


def wait_until(holds: Callable[[], bool], cluster: Cluster, most_s: float = 300) -> None:
    end = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < end, cluster.logs()
        time.sleep(2)


def table(lake: Path) -> Table:
    return Table.open(str(lake / "shop" / "users"))


def names(lake: Path) -> dict[int, str]:
    return {row["id"]: row["name"] for row in table(lake).read().to_pylist()}


def metagens(lake: Path) -> int:
    return [commit.operation for commit in table(lake).history()].count("metagen")


@pytest.mark.slow
def test_a_run_a_cascade_and_a_clear_after_the_source_was_corrected(cluster: Cluster, source: Path, lake: Path) -> None:
    cluster.airflow("dags", "trigger", "shop_users", "--run-id", "first")
    assert cluster.wait_for_run("shop_users", "first") == "success", cluster.logs()
    assert names(lake) == {1: "Ann", 2: "Bob"}
    assert [commit.operation for commit in table(lake).history()] == ["metagen", "ingest", "create"]
    wait_until(lambda: any(run["state"] == "success" for run in cluster.runs("shop_report")), cluster)

    for number, (text, expected) in enumerate([(ANN + BOB, {1: "Ann", 2: "Bob"}), (ANNA + NO_BOB, {1: "Anna"})], start=2):
        (source / "users.json").write_text(text)
        cluster.airflow("tasks", "clear", "shop_users", "--yes")
        wait_until(lambda number=number: metagens(lake) == number, cluster)  # a clear really ingests again
        assert cluster.wait_for_run("shop_users", "first") == "success", cluster.logs()
        assert names(lake) == expected
