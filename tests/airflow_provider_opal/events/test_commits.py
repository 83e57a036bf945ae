"""Jobs of Opal tables register commits; an unreachable LakeChime does no harm."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_opal import IngestOperator, MetaGenOperator, OpalHook, RestoreOperator
from airflow_provider_opal.events.commits import register_commits
from lakechime import LakeChime
from opal_lake.result import JobResult
from opal_lake.storage.open import open_storage
from opal_lake.table import Table
from tests.airflow_provider_opal.build import put
from tests.airflow_provider_opal.chime import chime
from tests.airflow_provider_opal.stand_ins import context
from tests.opal_lake.shop import create

__all__ = ["chime"]

LOG = logging.getLogger("test")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT", json.dumps({"conn_type": "opal", "host": str(tmp_path)})
    )
    monkeypatch.setenv(
        "AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "opal", "host": str(tmp_path)})
    )
    return create(open_storage(str(tmp_path / "shop" / "users")))


def registered(client: LakeChime, cluster: str = "default") -> list[tuple[str | None, Any]]:
    return [
        (stored.event.snapshot_id, stored.event.partition)
        for stored in client.events([(cluster, "shop.users")]).events
    ]


def test_the_next_job_registers_missing_commits_once_and_in_order(
    chime: LakeChime, table: Table
) -> None:
    first, second = put(table, "mon", 1), put(table, "tue", 2)
    for _ in range(2):
        register_commits(OpalHook(), "shop.users", "lakechime_default", LOG)
    keyed = [event for event in registered(chime) if event[1] is not None]
    assert keyed == [(str(first), ("mon",)), (str(second), ("tue",))]
    register_commits(OpalHook("other"), "shop.users", "lakechime_default", LOG)
    assert len(registered(chime, "other")) == len(registered(chime)), (
        "another connection is another cluster"
    )


def test_a_lakechime_that_is_away_is_a_warning(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for where in (
        "postgresql://127.0.0.1:1/chime",
        "/proc/nowhere/lakechime.db",
        "mysql://db/x",
        "",
    ):
        caplog.clear()
        fields = {
            "conn_type": "lakechime",
            "host": where,
            "login": "me",
            "password": "s3cr3t-s3cr3t",
        }
        monkeypatch.setenv("AIRFLOW_CONN_AWAY", json.dumps(fields))
        register_commits(OpalHook(), "shop.users", "away", LOG)
        [warning] = [record.getMessage() for record in caplog.records if record.name == "test"]
        assert "are not registered in LakeChime away" in warning
        assert "s3cr3t" not in warning
    register_commits(OpalHook(), "shop.users", "there_is_none", LOG)
    assert "the LakeChime connection 'there_is_none' does not exist" in caplog.text


def test_a_lakechime_that_never_answers_holds_up_nobody(
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    chime: LakeChime,
) -> None:
    monkeypatch.setattr(LakeChime, "open", lambda *_, **__: time.sleep(5))
    begun = time.monotonic()
    register_commits(OpalHook(), "shop.users", "lakechime_default", LOG, patience_s=0.2)
    assert time.monotonic() - begun < 3
    assert "no answer within" in caplog.text


@pytest.mark.parametrize(
    "operator, registers",
    [
        (lambda **more: MetaGenOperator(task_id="t", table="shop.users", **more), True),
        (
            lambda **more: IngestOperator(
                task_id="t", table="shop.users", source="/in", metadata="inline", **more
            ),
            True,
        ),
        (
            lambda **more: IngestOperator(task_id="t", table="shop.users", source="/in", **more),
            False,
        ),
        (lambda **more: RestoreOperator(task_id="t", table="shop.users", version=1, **more), True),
    ],
)
def test_a_job_that_may_change_what_is_read_registers(
    operator: Any, registers: bool, chime: LakeChime, table: Table
) -> None:
    version = put(table, "mon", 1)
    counts = {"rows": 1, "segments": 1}
    for lakechime_conn_id, expected in ((None, False), ("lakechime_default", registers)):
        task = operator(lakechime_conn_id=lakechime_conn_id)
        run = context(task)
        run["outlet_events"] = _Events()
        done = JobResult(operation=task.operation, table=table.uri, version=version, counts=counts)
        task.finish(run, done)
        assert bool(registered(chime)) == expected


class _Events(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        return type("Event", (), {"add_partitions": lambda *_: None, "extra": {}})()
