"""DAGs that a user tries with `dag.test()`, in a real Airflow."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.demo.shop.local_airflow import clean_environment

DAGS = Path(__file__).parent / "tried_dags"


@dataclass(frozen=True)
class Tried:
    """The results and logs of the script `tried_dags/tried.py`."""

    outcome: dict[str, Any]
    log: str


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    """All DAGs in one process: to start Airflow is what takes long."""
    home = tmp_path_factory.mktemp("tried")
    environment = {
        **clean_environment(),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_OPAL_DEFAULT": json.dumps({"conn_type": "opal", "host": str(home)}),
    }
    outcome = home / "outcome.json"
    for command in (
        [sys.executable, "-m", "airflow", "db", "migrate"],
        [sys.executable, str(DAGS / "tried.py"), str(outcome)],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    return Tried(json.loads(outcome.read_text()), done.stdout + done.stderr)


def test_a_flow_is_acknowledged_by_what_its_sensor_says(tried: Tried) -> None:
    assert (tried.outcome["flow"], tried.outcome["seen"]) == ("success", 2)


@pytest.mark.parametrize("mode", ["here", "deferred"])
def test_a_paced_sensor_looks_at_its_first_moment_in_every_mode(tried: Tried, mode: str) -> None:
    state, seen, late_s = tried.outcome[mode]
    assert (state, seen) == ("success", 2)
    assert late_s >= 0


def test_a_task_without_a_page_of_spark_logs_no_missing_xcom(tried: Tried) -> None:
    assert tried.outcome["no_spark"] == "failed"
    assert "shop/none is not an Opal table" in tried.log
    assert "XCom not found" not in tried.log
