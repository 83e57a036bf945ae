"""An Airflow home of the tests' own, and chains of tests, which end at a failure."""

import os
import tempfile

import pytest

HOME = tempfile.TemporaryDirectory(prefix="opal-airflow-")  # goes with the process
os.environ["AIRFLOW_HOME"] = HOME.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

_broken: dict[str, str] = {}


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if (
        item.get_closest_marker("chained")
        and call.excinfo
        and not call.excinfo.errisinstance(pytest.skip.Exception)
    ):
        _broken.setdefault(str(item.path), item.name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests after a failure in the Airflow that all of them share."""
    if item.get_closest_marker("chained") and str(item.path) in _broken:
        pytest.fail(
            f"not run: it goes on from {_broken[str(item.path)]}, which failed", pytrace=False
        )
