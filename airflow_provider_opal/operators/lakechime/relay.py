"""RelayOperator: turns data-change events of any table into asset events, so that ordinary DAGs can be scheduled by them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_opal.assets import (
    DEFAULT_CLUSTER,
    DEFAULT_LAKECHIME_CONN_ID,
    distinct,
    lakechime_asset,
)
from airflow_provider_opal.events.interest import (
    asset_keys,
    checked_tables,
    checked_tags,
    table_pairs,
)
from airflow_provider_opal.events.runs import Start, checked_start, default_consumer
from airflow_provider_opal.hooks.lakechime import LakeChimeHook
from opal_lake.arguments.values import Span, span_of

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context

    from airflow_provider_opal.events.consumer import EventConsumer
    from lakechime import DataChangeEvent, LakeChime
    from lakechime.event import JsonValue

PENDING = "pending"
SUCCESS = "success"
POKE_INTERVAL_S = 1.0  # one query for all that wait in the triggerer
LONGEST = timedelta(hours=1)


class RelayOperator(BaseOperator):
    """Emits events of `lakechime_asset(table)` with the partition keys, and of `lakechime_asset(table, snapshots=True)` with the snapshots.

    A DAG with `schedule=PartitionedAssetTimetable(assets=lakechime_asset("shop.raw"))` then runs once a key. Airflow emits the events of a
    run when its task has succeeded; so the next run asks for that, and for what the task returned, before it moves the watermark over them.
    What was not emitted for sure is emitted again: at least once, and in order from run to run. A run that was marked success by hand
    emitted nothing. Two Airflows that share one LakeChime need a `consumer` each.

    Waits deferred until there is something; after `longest` it skips, so that a changed DAG gets its turn.
    """

    template_fields: Sequence[str] = ("consumer", "lakechime_conn_id")
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        tables: Sequence[Any],
        tags: Mapping[str, str] | None = None,
        cluster: str = DEFAULT_CLUSTER,
        consumer: str | None = None,
        start: Start = "head",
        max_events: int = 1000,
        poke_interval: float = POKE_INTERVAL_S,
        longest: Span = LONGEST,
        lakechime_conn_id: str = DEFAULT_LAKECHIME_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not self.do_xcom_push:
            raise ValueError(
                "do_xcom_push=False does not work for a relay: its next run reads there what was emitted; leave it out"
            )
        self.tables = table_pairs(checked_tables(tables), cluster)
        self.tags = checked_tags(tags)
        self.consumer = consumer
        self.start = checked_start(start)
        self.max_events = max_events
        self.poke_interval = poke_interval
        self.longest = span_of("longest", longest)
        self.lakechime_conn_id = lakechime_conn_id
        assets = [
            lakechime_asset(table, cluster=owner, snapshots=kind)
            for owner, table in self.tables
            for kind in (False, True)
        ]
        self.outlets = distinct([*assets, *self.outlets])

    def execute(self, context: "Context") -> dict[str, int]:
        """Returns the range that was emitted, as {"from": a, "to": b}, and how many asset events that were."""
        from airflow_provider_opal.events.consumer import EventConsumer, check_expired, seq_of

        consumer = self.consumer or f"relay.{default_consumer(context)}"
        with closing(LakeChimeHook(self.lakechime_conn_id).get_conn()) as client:
            what: Any = {
                "tables": self.tables,
                "tags": self.tags,
                "start": self.start,
                "max_events": self.max_events,
            }
            reader = EventConsumer(context=context, client=client, consumer=consumer, **what)
            self._settle(context, reader)
            seen = seq_of(reader.watermark())
            page = client.events(self.tables, after=seen, tags=self.tags, limit=self.max_events)
            check_expired(reader, seen, page.expired)
            if page.events:
                self._note(context, client, consumer, page.next_after)
            else:  # retention need not keep for the relay what is not its own
                reader.acknowledge(page.next_after)
        if not page.events:
            self._wait(page.next_after)
        given = {"from": seen, "to": page.next_after}
        return {
            **given,
            "emitted": self._emit(context, given, [registered.event for registered in page.events]),
        }

    def resume(self, context: "Context", event: Mapping[str, Any]) -> dict[str, int]:
        """After the trigger has fired."""
        if event["seq"] is None:
            raise AirflowSkipException(
                f"nothing is new; the next run goes on waiting for {', '.join(table for _, table in self.tables)}"
            )
        return self.execute(context)

    def _settle(self, context: "Context", reader: "EventConsumer") -> None:
        """Move the watermark over what an earlier run has emitted, if it has."""
        from airflow_provider_opal.events.consumer import seq_of

        kept = reader.client.watermark(reader.consumer, PENDING)
        pending = kept.value if kept is not None else None
        if not isinstance(pending, dict) or int(pending["to"]) <= seq_of(reader.watermark()):
            return
        ti, name = (
            context["ti"],
            {
                "dag_id": str(pending["dag"]),
                "task_ids": str(pending["task"]),
                "run_id": str(pending["run"]),
            },
        )
        states = ti.get_task_states(
            dag_id=name["dag_id"], task_ids=[name["task_ids"]], run_ids=[name["run_id"]]
        )
        if str(states.get(name["run_id"], {}).get(name["task_ids"])) == SUCCESS:
            returned = ti.xcom_pull(
                dag_id=name["dag_id"], task_ids=name["task_ids"], run_id=name["run_id"]
            )
            if isinstance(returned, dict) and "to" in returned:
                reader.acknowledge(int(returned["to"]))
                return
        if name["run_id"] != ti.run_id:
            self.log.warning(
                "run %s did not succeed by itself: what it may have emitted, up to %s, is emitted again",
                name["run_id"],
                pending["to"],
            )

    def _note(self, context: "Context", client: "LakeChime", consumer: str, seq: int) -> None:
        ti, kept = context["ti"], client.watermark(consumer, PENDING)
        pending: dict[str, JsonValue] = {
            "dag": ti.dag_id,
            "task": ti.task_id,
            "run": ti.run_id,
            "to": seq,
        }
        client.put_watermark(
            consumer, PENDING, pending, expected=None if kept is None else kept.revision
        )

    def _wait(self, after: int) -> None:
        from airflow_provider_opal.triggers.events import EventsTrigger

        trigger = EventsTrigger(
            lakechime_conn_id=self.lakechime_conn_id,
            tables=self.tables,
            after=after,
            poke_interval_s=self.poke_interval,
            tags=self.tags,
            longest_s=self.longest.total_seconds(),
        )
        self.defer(trigger=trigger, method_name="resume")

    def _emit(
        self, context: "Context", given: Mapping[str, int], events: Iterable["DataChangeEvent"]
    ) -> int:
        """An asset without a key in this range has no event: an outlet without one would emit an event without a key."""
        keys: dict[Asset, dict[str, int]] = {}
        without: dict[str, list[int]] = {}
        for event in events:
            partition, snapshot = asset_keys(event)
            for key, snapshots in ((partition, False), (snapshot, True)):
                if key is not None:
                    keys.setdefault(
                        lakechime_asset(event.table, cluster=event.cluster, snapshots=snapshots), {}
                    )[key] = event.seq or 0
            if partition is None:
                without.setdefault(event.table, []).append(event.seq or 0)
        for table, seqs in without.items():
            self.log.info(
                "no DAG by partition hears of %s events of %s, which have no key that Airflow takes: %s",
                len(seqs),
                table,
                seqs,
            )
        own = [
            lakechime_asset(table, cluster=owner, snapshots=kind)
            for owner, table in self.tables
            for kind in (False, True)
        ]
        self.outlets = [*(outlet for outlet in self.outlets if outlet not in own), *keys]
        for asset, seq_of_key in keys.items():
            emitted = context["outlet_events"][asset]
            emitted.add_partitions(list(seq_of_key))
            emitted.extra = {**given}
        return sum(map(len, keys.values()))
