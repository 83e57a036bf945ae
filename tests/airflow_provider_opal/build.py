"""Runs, assets and their events without Airflow's database, for tests of consumers."""

from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider_opal import (
    ConsumeOperator,
    ReconcileOperator,
    opal_asset,
    redelivery_asset,
)
from opal_lake.engine.results import keep_result
from opal_lake.result import JobResult
from opal_lake.table import Table
from tests.airflow_provider_opal.stand_ins import Store, task_instance
from tests.opal_lake.shop import rows


class Events(defaultdict[Any, Any]):
    """A task's outlet events. Of each a DAG run comes, unless Airflow drops it."""

    def __init__(self, is_dropped: Callable[[], bool] = lambda: False) -> None:
        super().__init__(lambda: SimpleNamespace(extra={}, keys=[], runs={}, add_partitions=None))
        self.is_dropped = is_dropped

    def __missing__(self, key: Any) -> Any:
        event = super().__missing__(key)

        def add_partitions(keys: Any) -> None:
            added = [keys] if isinstance(keys, str) else keys
            event.keys.extend(added)
            runs = [] if self.is_dropped() else [SimpleNamespace(run_id="asset_triggered")]
            event.runs.update(dict.fromkeys(added, runs))

        event.add_partitions = add_partitions
        return event


class Registered(list[Any]):
    """The events of an asset, as Airflow lists them to a task."""

    def after(self, _: str) -> "Registered":
        return self


class Unlisted:
    """The answer to a task while Airflow cannot list an asset's events."""

    def after(self, _: str) -> "Unlisted":
        return self

    def __iter__(self) -> Any:
        raise unanswered("500")


def unanswered(why: str) -> AirflowRuntimeError:
    return AirflowRuntimeError(
        ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": why})
    )


def put(table: Table, key: str, at: int) -> int:
    table.ingest(*rows([(key, at, at)]), partition_key=key)
    version = table.metagen(partition_key=key).version
    assert version is not None
    return version


class Lake:
    """The state that outlives a run: assets, their events, DAGs and tasks' reports."""

    def __init__(self) -> None:
        self.assets: defaultdict[Any, Store] = defaultdict(Store)
        self.emitted: list[Events] = []
        self.paused = {"d": False}
        self.drops = self.is_silent = False
        self.reports: dict[str, Any] = {}

    def run(self, task: Any, run_id: str = "r", **more: Any) -> dict[str, Any]:
        ti, run = task_instance(task, run_id=run_id), SimpleNamespace(clear_number=0)
        ti.get_dag, ti.xcom_push = self.dag, self.reports_of(task)
        ti.xcom_pull = lambda task_ids, key: self.reports.get(task_ids)
        stores = {"task_state_store": Store(), "asset_state_store": self.assets}
        events = Events(lambda: self.drops or self.paused["d"])
        inlets = Listing(self)
        self.emitted.append(events)
        return {
            "ti": ti,
            "task": task,
            "dag_run": run,
            "outlet_events": events,
            "inlet_events": inlets,
            "partition_key": None,
            **stores,
            **more,
        }

    def dag(self, dag_id: str) -> Any:
        if dag_id not in self.paused:
            raise unanswered("404")
        return SimpleNamespace(is_paused=self.paused[dag_id])

    def reports_of(self, task: Any) -> Callable[..., None]:
        def push(key: str, value: Any) -> None:
            self.reports[task.task_id] = value

        return push


class Listing:
    """Inlet events: all that was emitted for an asset until it is asked for."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def __getitem__(self, asset: Any) -> Any:
        if self.lake.is_silent:
            return Unlisted()
        return Registered(
            SimpleNamespace(partition_key=key, extra=event.extra, created_dagruns=event.runs[key])
            for events in self.lake.emitted
            if (event := events.get(asset)) is not None
            for key in event.keys
        )


def seen(lake: Lake, task: Any, consumer: str) -> int:
    return int(lake.assets[task.asset][f"seen/{consumer}"]["version"])


def consume(by: str, **more: Any) -> ConsumeOperator:
    return ConsumeOperator(task_id="c", table="shop.users", function="m:f", by=by, **more)


def done(table: Table, task: ConsumeOperator, run_id: str, version: int) -> None:
    """Write the result that the Spark job of a run would have left."""
    token = f"d/{run_id}/{task.task_id}/-1/0" + (f"/{version}" if task.by == "version" else "")
    keep_result(
        table.storage, JobResult(operation="consume", table=table.uri, version=version, token=token)
    )


def event_of(*versions: int, again: bool = False, key: str = "mon") -> dict[str, Any]:
    """Return the events that made a run: of MetaGens, or of a ReconcileOperator."""
    extras = [
        {"versions": {key: version}} if again else {"version": version} for version in versions
    ]
    asset = redelivery_asset("shop.users", "d.c") if again else opal_asset("shop.users")
    events = {
        asset: [SimpleNamespace(extra=extra) for extra in extras],
        opal_asset("shop.other"): [SimpleNamespace(extra={"version": 99})],
    }
    return {"partition_key": key, "triggering_asset_events": events}


def reconcile(**more: Any) -> ReconcileOperator:
    return ReconcileOperator(
        **{"task_id": "k", "table": "shop.users", "consumer": "d.c", "grace": timedelta(0), **more}
    )
