"""The Airflow and the lake of the tests of pipelines; the other files here have their own."""

import json
from collections.abc import Iterator

import pytest

from tests.airflow_provider_opal.cluster.lake import EXAMPLES, HEADS, Lake, pause
from tests.demo.shop.local_airflow import LocalAirflow, local_airflow


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, lake: Lake) -> Iterator[LocalAirflow]:
    settings = {
        "AIRFLOW_CONN_OPAL_DEFAULT": json.dumps({"conn_type": "opal", "host": str(lake.root)}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW_VAR_LAKE_SOURCE": str(lake.source),
        "AIRFLOW_VAR_LAKE_OUT": str(lake.out),
        "AIRFLOW_VAR_PRODUCT_FOLDER": str(lake.source / "product"),
        "AIRFLOW_VAR_SHOP_SOURCE": str(lake.source / "users"),
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    }
    with local_airflow(tmp_path_factory.mktemp("airflow"), lake.dags, settings) as airflow:
        airflow.wait_until(
            lambda: (
                {*HEADS, *EXAMPLES}
                <= {dag["dag_id"] for dag in airflow.api("GET", "/dags?limit=100")["dags"]}
            )
        )
        assert airflow.api("GET", "/importErrors")["import_errors"] == []
        for dag_id in HEADS:
            pause(airflow, dag_id, paused=False)
        yield airflow
