"""The service as Airflow's api-server mounts it: every route asks Airflow."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from airflow_provider_opal.get_provider_info import get_provider_info
from airflow_provider_opal.plugins.lakechime import URL_PREFIX, LakeChimePlugin
from airflow_provider_opal.plugins.lakechime_app import mounted_app, open_store
from lakechime.errors import UnavailableError

ADMIN = {"/v1/expire", "/v1/tokens", "/v1/token"}
WRITES = {("POST", "/v1/events"), ("PUT", "/v1/watermark"), ("DELETE", "/v1/watermark")}
WITHOUT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lakechime" or name == "sqlalchemy.missing":
            raise ModuleNotFoundError(f"no module named {name}", name=name)

sys.meta_path.insert(0, Refuse())
from airflow_provider_opal.plugins.lakechime import LakeChimePlugin
assert LakeChimePlugin().fastapi_apps == []
from airflow.api_fastapi.app import create_app
"""


def rights(dependant: Dependant) -> set[str]:
    """Names of Airflow's own dependencies, however deep."""
    name = getattr(dependant.call, "__qualname__", "").partition(".")[0]
    return {name, *(right for inner in dependant.dependencies for right in rights(inner))}


def test_airflow_finds_the_plugin_by_its_entry_point_alone() -> None:
    [entry_point] = [
        point for point in entry_points(group="airflow.plugins") if point.name == "lakechime"
    ]
    assert entry_point.load() is LakeChimePlugin
    assert "plugins" not in get_provider_info()
    [app] = LakeChimePlugin().fastapi_apps
    assert (app["url_prefix"], app["app"].title) == (URL_PREFIX, "LakeChime")


def test_every_route_asks_airflow_for_the_right_that_it_needs() -> None:
    routes = mounted_app().routes
    assert len(routes) > 15
    for route in routes:
        assert isinstance(route, APIRoute), f"{route} has no dependencies at all"
        wanted = "requires_access_connection" if route.path in ADMIN else "requires_access_asset"
        assert {wanted, "get_user"} <= rights(route.dependant), route.path


def test_writing_needs_more_permissions_than_reading() -> None:
    by_right: dict[object, set[tuple[str, str]]] = {}
    for route in mounted_app().routes:
        assert isinstance(route, APIRoute)
        [right] = [
            inner.call
            for inner in route.dependant.dependencies
            if "requires_access" in getattr(inner.call, "__qualname__", "")
        ]
        by_right.setdefault(right, set()).update((method, route.path) for method in route.methods)
    assert len(by_right) == 3
    assert WRITES in by_right.values()


@pytest.mark.slow
def test_the_api_server_goes_on_where_the_events_are_not_installed() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_database_is_that_of_the_environment_and_never_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKECHIME_URL", f"sqlite:///{tmp_path}/one.db")
    open_store().close()
    assert (tmp_path / "one.db").is_file()
    monkeypatch.setenv("LAKECHIME_URL", "http://airflow:8080/lakechime")
    with pytest.raises(UnavailableError, match="set LAKECHIME_URL to the database"):
        open_store()
    monkeypatch.delenv("LAKECHIME_URL")
    monkeypatch.setenv(
        "AIRFLOW_CONN_LAKECHIME_DEFAULT",
        f'{{"conn_type": "lakechime", "host": "{tmp_path}/two.db"}}',
    )
    open_store().close()
    assert (tmp_path / "two.db").is_file()
