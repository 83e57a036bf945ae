"""Every surface of a maintenance policy takes and refuses the same values."""

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_opal.operators.maintenance import MaintenanceOperator
from airflow_provider_opal.templates.maintenance import Maintenance
from airflow_provider_opal.templates.yaml.models import version_1
from opal_lake.definition.properties import check_properties, plain_properties
from opal_lake.operations.maintain import Maintain, MaintenancePolicy

GOOD: dict[str, list[Any]] = {
    "zorder": [["a"], list("abcdefgh")],
    "window": ["30d", "2w", "1h30m", "0s"],
    "grace": ["45m"],
    "look_back": ["90d", 0, 400],
    "target_mb": [1, 256],
    "small_files": [1, 16],
    "dead_share": [1, 100],
    "unclustered_share": [1, 100],
    "archive_after": ["365d", 5],
    "archive_codec": ["zstd", "zstd:1", "zstd:22"],
}
BAD: dict[str, list[Any]] = {
    "zorder": ["a", [""], ["a", "a"], list("abcdefghi"), 5],
    "window": ["30", "30 days", "1y", 30, ""],
    "grace": ["-1d", 5],
    "look_back": ["90 days", -1, "a"],
    "target_mb": [0, -1, 1.5, "64", True],
    "small_files": [0, 2.5],
    "dead_share": [0, 101, 1.5, "20"],
    "unclustered_share": [0, 101, True],
    "archive_after": ["1y", -1],
    "archive_codec": ["gzip", "zstd:0", "zstd:23", 5],
}


def takes(make: Any, name: str, value: Any) -> bool:
    try:
        make(**{name: value})
    except ValueError:  # pydantic's errors are some, too
        return False
    return True


def is_property(**given: Any) -> None:
    check_properties(plain_properties(given))


POLICIES: Mapping[str, Any] = {
    "declaration": Maintain,
    "operator": lambda **given: MaintenanceOperator(task_id="t", table="t", **given),
    "template": Maintenance,
    "yaml": version_1.MaintenanceModel,
}


@pytest.mark.parametrize("name", MaintenancePolicy.fields())
def test_every_surface_of_a_policy_takes_and_refuses_the_same_values(name: str) -> None:
    surfaces = dict(POLICIES)
    if name in ("window", "look_back", "archive_after", "archive_codec"):
        surfaces["property"] = is_property
    for surface, make in surfaces.items():
        assert [value for value in GOOD[name] if not takes(make, name, value)] == [], surface
        assert [value for value in BAD[name] if takes(make, name, value)] == [], surface
