"""LakeChime for tests of Airflow: the embedded one, and the context of a task."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakechime import DataChangeEvent, LakeChime, TableFormat
from tests.airflow_provider_opal.stand_ins import Store, task_instance


class Run:
    """A run of a task: its state, XCom and outlet events, the same once it is cleared."""

    def __init__(
        self, task: Any, run_id: str = "r", assets: Mapping[Any, Any] | None = None
    ) -> None:
        self.pulled: dict[str, Any] = {}
        self.pushed: dict[str, Any] = {}
        self.store = Store()
        ti = task_instance(task, run_id=run_id)
        ti.xcom_push = lambda **pushed: self.pushed.update({pushed["key"]: pushed["value"]})
        ti.xcom_pull = lambda task_ids, **_: self.pulled.get(task_ids)
        self.context: dict[str, Any] = {
            "ti": ti,
            "task": task,
            "dag_run": SimpleNamespace(clear_number=0),
            "task_state_store": self.store,
            "asset_state_store": assets if assets is not None else {},
            "partition_key": None,
        }


def event(
    table: str = "shop.raw",
    snapshot: int = 1,
    partition: tuple[Any, ...] | None = None,
    **more: Any,
) -> DataChangeEvent:
    before = None if snapshot == 1 else str(snapshot - 1)
    what = {
        "table_format": TableFormat.ICEBERG,
        "snapshot_id": str(snapshot),
        "prev_snapshot_id": before,
        **more,
    }
    return DataChangeEvent(table=table, partition=partition, **what)


def put(client: LakeChime, *events: DataChangeEvent) -> int:
    """Register events; return the seq of the last one."""
    seq = client.register(events)[-1].event.seq
    assert seq is not None
    return seq


@pytest.fixture
def chime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    with LakeChime.open(f"sqlite:///{tmp_path}/lakechime.db") as client:
        yield client
