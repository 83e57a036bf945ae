"""RelayOperator: data-change events of any table become asset events.

Ordinary DAGs can then be scheduled by them.
"""

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
# Short, because all relays that wait in a triggerer share one query
POKE_INTERVAL_S = 1.0
# After this time without events a run skips, so that the next one has the newest code of the DAG
MAX_WAIT = timedelta(hours=1)


class RelayOperator(BaseOperator):
    """A task that emits asset events for the data-change events of tables.

    The events of `lakechime_asset(table)` carry partition keys, those of
    `lakechime_asset(table, snapshots=True)` carry snapshots. A DAG with
    `schedule=PartitionedAssetTimetable(assets=lakechime_asset("shop.raw"))` then runs once a key.

    Airflow emits the events of a task after the task has succeeded. So the next run asks Airflow
    for the state and the result of the task before it moves the watermark over these events. If it
    is uncertain whether events were emitted, they are emitted again: at least once, and in order
    from run to run. A run that was marked success by hand emitted nothing. Two Airflows that share
    one LakeChime need a `consumer` each.

    The task waits deferred for events. After `longest` without events it skips, so that a change
    of the DAG takes effect.
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
        longest: Span = MAX_WAIT,
        lakechime_conn_id: str = DEFAULT_LAKECHIME_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not self.do_xcom_push:
            raise ValueError(
                "do_xcom_push=False does not work for a relay, because the next run reads from "
                "XCom which events were emitted; leave out do_xcom_push"
            )
        self.tables = table_pairs(checked_tables(tables), cluster)
        self.tags = checked_tags(tags)
        self.consumer = consumer
        self.start = checked_start(start)
        self.max_events = max_events
        self.poke_interval = poke_interval
        self.longest = span_of("longest", longest)
        self.lakechime_conn_id = lakechime_conn_id
        self.outlets = distinct([*self._own_outlets(), *self.outlets])

    def execute(self, context: "Context") -> dict[str, int]:
        """Emit the new events, and return their range and the number of asset events.

        The result is {"from": a, "to": b, "emitted": n}.
        """
        from airflow_provider_opal.events.consumer import EventConsumer, check_expired, seq_of

        consumer = self.consumer or f"relay.{default_consumer(context)}"
        with closing(LakeChimeHook(self.lakechime_conn_id).get_conn()) as client:
            reader = EventConsumer(
                context=context,
                client=client,
                consumer=consumer,
                tables=self.tables,
                tags=self.tags,
                start=self.start,
                max_events=self.max_events,
            )
            self._settle(context, reader)
            seen = seq_of(reader.watermark())
            page = client.events(self.tables, after=seen, tags=self.tags, limit=self.max_events)
            check_expired(reader, seen, page.expired)
            if page.events:
                self._note(context, client, consumer, page.next_after)
            else:
                # So retention of other tables' events does not wait for the relay
                reader.acknowledge(page.next_after)
        if not page.events:
            self._wait(page.next_after)
        emitted_range = {"from": seen, "to": page.next_after}
        events = [registered.event for registered in page.events]
        emitted = self._emit(context, emitted_range, events)
        return {**emitted_range, "emitted": emitted}

    def resume(self, context: "Context", event: Mapping[str, Any]) -> dict[str, int]:
        """Emit the events for which the trigger has fired."""
        if event["seq"] is None:
            tables = ", ".join(table for _, table in self.tables)
            raise AirflowSkipException(
                f"no new events of {tables}; the next run goes on waiting for them"
            )
        return self.execute(context)

    def _settle(self, context: "Context", reader: "EventConsumer") -> None:
        """Move the watermark over the events that an earlier run has certainly emitted."""
        from airflow_provider_opal.events.consumer import seq_of

        stored = reader.client.watermark(reader.consumer, PENDING)
        pending = stored.value if stored is not None else None
        if not isinstance(pending, dict) or int(pending["to"]) <= seq_of(reader.watermark()):
            return
        ti = context["ti"]
        dag_id, task_id, run_id = (str(pending[name]) for name in ("dag", "task", "run"))
        states = ti.get_task_states(dag_id=dag_id, task_ids=[task_id], run_ids=[run_id])
        if str(states.get(run_id, {}).get(task_id)) == SUCCESS:
            # A task that was marked success by hand has no result, and emitted nothing
            returned = ti.xcom_pull(dag_id=dag_id, task_ids=task_id, run_id=run_id)
            if isinstance(returned, dict) and "to" in returned:
                reader.acknowledge(int(returned["to"]))
                return
        if run_id != ti.run_id:
            self.log.warning(
                "it is unknown whether run %s emitted its events, because it has no result: "
                "the events up to seq %s are emitted again, and consumers may get them twice",
                run_id,
                pending["to"],
            )

    def _note(self, context: "Context", client: "LakeChime", consumer: str, seq: int) -> None:
        """Store that this run is about to emit the events up to `seq`."""
        ti, stored = context["ti"], client.watermark(consumer, PENDING)
        pending: dict[str, JsonValue] = {
            "dag": ti.dag_id,
            "task": ti.task_id,
            "run": ti.run_id,
            "to": seq,
        }
        revision = None if stored is None else stored.revision
        client.put_watermark(consumer, PENDING, pending, expected=revision)

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

    def _own_outlets(self) -> list["Asset"]:
        outlets = []
        for cluster, table in self.tables:
            outlets.append(lakechime_asset(table, cluster=cluster))
            outlets.append(lakechime_asset(table, cluster=cluster, snapshots=True))
        return outlets

    def _emit(
        self,
        context: "Context",
        emitted_range: Mapping[str, int],
        events: Iterable["DataChangeEvent"],
    ) -> int:
        """Emit an asset event for each key of the events, and return their number."""
        seqs_of_keys: dict[Asset, dict[str, int]] = {}
        without_partition: dict[str, list[int]] = {}
        for event in events:
            partition, snapshot = asset_keys(event)
            seq = event.seq or 0
            for key, is_snapshot in ((partition, False), (snapshot, True)):
                if key is not None:
                    asset = lakechime_asset(
                        event.table, cluster=event.cluster, snapshots=is_snapshot
                    )
                    seqs_of_keys.setdefault(asset, {})[key] = seq
            if partition is None:
                without_partition.setdefault(event.table, []).append(seq)
        for table, seqs in without_partition.items():
            self.log.info(
                "%s events of %s start no DAG by partition: "
                "Airflow accepts no partition key of theirs. Their seqs are %s",
                len(seqs),
                table,
                seqs,
            )
        # Remove outlets without a key in this range: they would emit an event without a key
        own = self._own_outlets()
        others = [outlet for outlet in self.outlets if outlet not in own]
        self.outlets = [*others, *seqs_of_keys]
        for asset, seq_of_key in seqs_of_keys.items():
            asset_event = context["outlet_events"][asset]
            asset_event.add_partitions(list(seq_of_key))
            asset_event.extra = {**emitted_range}
        return sum(map(len, seqs_of_keys.values()))
