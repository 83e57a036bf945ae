"""The demo's story in a running Airflow: the same one on this machine and in containers."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from opal_lake.cli.progress import ProgressLine, Step
from opal_lake.cli.render import Column, Style, duration_text, text_table
from opal_lake.table import Table
from tests.demo.shop.pageviews import VIEWS, register_pageviews, write_pageviews
from tests.demo.shop.rest import AirflowApi
from tests.demo.shop.shop import DAYS

SHOWN = ("shop_orders", "shop_orders.revenue")
MAINTENANCE = "shop_orders.maintenance"
RELAY, WOKEN = "pageviews_relay", "pageviews_report"
ENDED = ("success", "failed", "upstream_failed")
END_OF_DAY = "T23:59:59Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The URIs of the lake, the foreign table and the events."""

    root: str
    foreign: str
    events: str
    token: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Demo:
    """The story, with the state of its tasks and the style of its output."""

    airflow: AirflowApi
    places: Places
    style: Style
    states: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Run the whole story in an Airflow that knows the DAGs."""
        self.say(
            "Another system writes the table pageviews. "
            f"The DAG {RELAY} waits for its changes, and starts {WOKEN} for each changed day."
        )
        self.write_foreign()
        self.say(
            f"Backfill shop_orders from {DAYS[0]} to {DAYS[-1]}; "
            "each day's run starts a run of shop_orders.revenue."
        )
        self.backfill()
        self.say(
            f"Meanwhile {WOKEN} ran once for each changed day of pageviews. "
            "Its results are views by page:"
        )
        self.show_foreign()
        self.say(
            f"Maintain the table: {MAINTENANCE} runs the operations that are due. "
            "It has its own schedule, and no pipeline waits for it."
        )
        self.maintain()
        self.show_orders()

    def say(self, line: str) -> None:
        print(f"\n{self.style.strong('>')} {self.style.strong(line)}\n", flush=True)

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        names = list(rows[0])
        columns = []
        for name in names:
            is_number = all(isinstance(row[name], int | Decimal) for row in rows)
            columns.append(Column(key=name, title=name, right=is_number))
        for line in text_table(columns, rows, self.style):
            print(f"    {line}", flush=True)

    @property
    def orders(self) -> Table:
        return Table.open(f"{self.places.root}/shop/orders", self.places.options)

    def backfill(self) -> None:
        """Backfill three days, one after the other, and print each task that has ended."""
        airflow = self.airflow
        for dag_id in SHOWN:
            airflow.api("PATCH", f"/dags/{dag_id}", {"is_paused": False})
        window = {"from_date": f"{DAYS[0]}T00:00:00Z", "to_date": f"{DAYS[-1]}T00:00:00Z"}
        airflow.api("POST", "/backfills", {"dag_id": "shop_orders", **window, "max_active_runs": 1})
        expected = len(DAYS) * 3
        with ProgressLine(
            "backfill",
            lambda: Step(name="waiting for the scheduler", done=len(self.states), total=expected),
        ) as line:
            airflow.wait_until(lambda: self._follow(line) >= expected or bool(self.failed), 900)
        if self.failed:
            raise RuntimeError(
                f"{', '.join(self.failed)} failed; read the logs in {self.airflow.logs}"
            )

    def _follow(self, line: ProgressLine) -> int:
        for dag_id in SHOWN:
            for run in self.airflow.runs(dag_id):
                for task in self.airflow.tasks(dag_id, run["dag_run_id"]):
                    if task["state"] in ENDED and task["id"] not in self.states:
                        self.states[task["id"]] = task["state"]
                        self._print_task(run["partition_key"], task, line)
        return len(self.states)

    def _print_task(self, key: str, task: Mapping[str, Any], line: ProgressLine) -> None:
        if line.painted:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        name = task["task_display_name"]
        if task["state"] == "success":
            state = self.style.good("done")
        else:
            state = self.style.bad(task["state"])
            self.failed.append(f"{name} of {key}")
        passed = self.style.faint(duration_text(time.monotonic() - self.began_s))
        duration_s = task["duration"] or 0
        print(f"    {passed}  {key}  {name:<8}  {state}  {duration_s:.0f} s", flush=True)

    def write_foreign(self) -> None:
        """Write a Delta table as another system does; a relay starts a DAG for each day."""
        for dag_id in (RELAY, WOKEN):
            self.airflow.api("PATCH", f"/dags/{dag_id}", {"is_paused": False})
        path = self.places.foreign
        write_pageviews(path)
        events = register_pageviews(path, self.places.events, self.places.token)
        print(
            f"    {path} has {len(VIEWS)} commits, and LakeChime has {events} events of it. "
            "The DAGs run while the demo continues.",
            flush=True,
        )

    def show_foreign(self) -> None:
        """Show the results of the DAG runs that events started."""
        self.airflow.wait_until(lambda: {key for key, _ in self._woken()} >= VIEWS.keys(), 300)
        results = {
            key: self.airflow.result(WOKEN, run_id, "report")
            for key, run_id in sorted(self._woken())
        }
        rows = []
        for key, views in results.items():
            # PostgreSQL has the fields of a result in an order of its own
            pages = {page: views[page] for page in VIEWS[key]}
            rows.append({"partition key": key, **pages})
        self.show(rows)

    def _woken(self) -> list[tuple[str, str]]:
        return [
            (run["partition_key"], run["dag_run_id"])
            for run in self.airflow.runs(WOKEN)
            if run["state"] == "success"
        ]

    def maintain(self) -> None:
        """Run the maintenance DAG, which otherwise runs once a day."""
        files = len(self.orders.snapshot_at().files)
        self.airflow.api("PATCH", f"/dags/{MAINTENANCE}", {"is_paused": False})
        run = self.airflow.api("POST", f"/dags/{MAINTENANCE}/dagRuns", {"logical_date": None})
        run_id = run["dag_run_id"]
        with ProgressLine("maintenance", lambda: Step(name="due operations", done=0, total=1)):
            self.airflow.wait_until(lambda: self._states(MAINTENANCE).get(run_id) in ENDED, 300)
        results = [
            self.airflow.result(MAINTENANCE, ended_run, "maintain")
            for ended_run, state in self._states(MAINTENANCE).items()
            if state == "success"
        ]
        if len(results) < len(self._states(MAINTENANCE)):
            raise RuntimeError(f"{MAINTENANCE} failed; the logs are in {self.airflow.logs}")
        # The schedule may have been faster than this run
        done = max(results, key=lambda result: int(result["counts"]["due"]))
        for note in done["notes"]:
            print(f"    {note}", flush=True)
        head = self.orders.snapshot_at()
        print(
            f"    {files} data files became {len(head.files)}, as version {head.version}; "
            "the demo now reads from them",
            flush=True,
        )

    def _states(self, dag_id: str) -> dict[str, str]:
        return {run["dag_run_id"]: run["state"] for run in self.airflow.runs(dag_id)}

    def show_orders(self) -> None:
        """Show the table now, and as of the end of each day."""
        orders = self.orders
        self.say(
            'Read the table now: OpalTable.for_path(spark, ".../shop/orders").read(). '
            "The orders 1 to 4:"
        )
        self.show(followed(orders, None))
        for day in DAYS[:-1]:
            self.say(
                f'Read it as of the end of {day}: read(event_time="{day}{END_OF_DAY}"). '
                "The late change of order 3 is visible from its event time on."
            )
            self.show(followed(orders, f"{day}{END_OF_DAY}"))
        self.say("All orders, as of the end of each day:")
        self.show([totals(orders, day) for day in DAYS])
        self.say(
            "The log: each partition key has an ingest, and a MetaGen that made its rows visible. "
            "The last commits are of the maintenance."
        )
        self.show([logged(commit) for commit in reversed([*orders.commits()])])


def followed(orders: Table, event_time: str | None) -> list[dict[str, Any]]:
    """Return the orders that the demo follows."""
    visible = [
        row for row in orders.read(event_time=event_time).to_pylist() if row["order_id"] < 1_000
    ]
    names = ("order_id", "country", "status", "total")
    shown = []
    for row in sorted(visible, key=_number):
        shown_row = {name: row[name] for name in names}
        shown.append(shown_row | {"updated_at": f"{row['updated_at']:%d %b %H:%M}"})
    return shown


def _number(row: Mapping[str, Any]) -> int:
    return int(row["order_id"])


def totals(orders: Table, day: str) -> dict[str, Any]:
    """Return the counts of orders and the revenue, as of the end of a day."""
    visible = orders.read(event_time=f"{day}{END_OF_DAY}", columns=["status", "total"])
    rows = visible.to_pylist()
    paid = [row["total"] for row in rows if row["status"] == "paid"]
    revenue = sum(paid, Decimal(0))
    return {"as of": day, "orders": len(rows), "paid": len(paid), "revenue": revenue}


def logged(commit: Any) -> dict[str, Any]:
    counts = commit.result["counts"]
    row = {
        "version": commit.version,
        "operation": commit.operation,
        "partition key": commit.partition_key or "",
    }
    return row | {name: counts.get(name, "") for name in ("rows", "updates", "deletes", "late")}


def wait_for_dags(airflow: AirflowApi) -> None:
    """Wait until the DAGs that the demo runs are parsed."""
    needed = {*SHOWN, MAINTENANCE, RELAY, WOKEN}

    def are_parsed() -> bool:
        dags = airflow.api("GET", "/dags?limit=100")["dags"]
        return needed <= {dag["dag_id"] for dag in dags}

    airflow.wait_until(are_parsed)
