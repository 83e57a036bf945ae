"""SnapshotTriggerSensor: waits until a table has versions that a consumer has not seen, or tables have events, and says which.

Only versions that changed the view count: `OpalHook.versions_after`. Deferred, it waits in `triggers.snapshot` for versions, in
`triggers.events` for events, and goes on in `resume`.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_opal.arguments import takes_arguments_of
from airflow_provider_opal.assets import (
    DEFAULT_CLUSTER,
    DEFAULT_CONN_ID,
    DEFAULT_LAKECHIME_CONN_ID,
    distinct,
    known_assets,
    opal_asset,
)
from airflow_provider_opal.events.handover import EVENTS_KEY, hand_over
from airflow_provider_opal.events.interest import (
    checked_mode,
    checked_tables,
    checked_tags,
    foreign_assets,
    table_pairs,
)
from airflow_provider_opal.events.runs import Start, checked_start, default_consumer
from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.sensors.pacing import PacedSensor, Pacing, defer_within
from airflow_provider_opal.templated import is_templated

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context
    from airflow.triggers.base import BaseTrigger

    from airflow_provider_opal.events.consumer import EventConsumer
    from airflow_provider_opal.events.state import State
    from airflow_provider_opal.watermark import Watermark
    from lakechime import DataChangeEvent, LakeChime

Found = dict[str, Any]


class SnapshotTriggerSensor(PacedSensor):
    """Returns {"from": a, "to": b}: all after a, up to and with b, and nothing is left out between two runs.

    With `table` alone these are versions of an Opal table, read from its own log. With `tables` or `tags` they are places in the order of
    LakeChime's events, of tables of any format: of one of the `tables` (`mode="any"`), or of each (`mode="all"`), with all of the `tags`;
    the events themselves are in XCom as `events`, and as variables for tasks in `environment`.

    The watermark of a `consumer` (default: DAG and task) moves when the sensor succeeds; that of events with `acknowledge=False` moves by
    an AcknowledgeOperator at the end of the flow. What a run has got stays its own: cleared, it gets the same range again, and fails if
    some of it has expired. A run that is killed before its events are its own leaves them to the next one. A new consumer
    starts at the newest version or event (`start="head"`: what is there counts as seen), at the first one (`start="all"`), or after a
    number. `max_versions` and `max_events` cut a long backlog into several runs.

    The watermark of versions is kept with the table's asset in Airflow, or with `lakechime_conn_id` in LakeChime, which holds across
    Airflow databases. That of events always is there. `skip_when_empty` looks once, and skips if nothing is new.

    It looks at each `poke_interval`; or, with `start_timestamp`, `frequency` and `frequency_unit`, when the task begins and at
    start_timestamp + n * frequency alone, in every mode. Before `start_timestamp` it does not look. A new consumer starts where the tables
    are when the task begins.

    `mode` may also be Airflow's, "poke" or "reschedule": then one of the tables is enough.

    An Opal table that is not there yet is waited for; all that it has then is new.
    """

    template_fields: Sequence[str] = (
        "table",
        "tables",
        "tags",
        "cluster",
        "consumer",
        "opal_conn_id",
        "lakechime_conn_id",
        *PacedSensor.template_fields,
    )
    ui_color = "#d8ecf3"

    @takes_arguments_of(Pacing)
    def __init__(
        self,
        *,
        table: str | None = None,
        tables: Sequence[Any] | None = None,
        tags: Mapping[str, str] | None = None,
        mode: str = "any",
        cluster: str = DEFAULT_CLUSTER,
        consumer: str | None = None,
        start: Start = "head",
        max_versions: int | None = None,
        max_events: int = 1000,
        acknowledge: bool = True,
        skip_when_empty: bool = False,
        opal_conn_id: str = DEFAULT_CONN_ID,
        lakechime_conn_id: str | None = None,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        is_airflows = mode in ("poke", "reschedule")
        super().__init__(mode=mode if is_airflows else "poke", **kwargs)
        if (table is None) == (tables is None):
            raise ValueError(
                "a sensor waits for versions of a table=, or for events of tables=; give one of the two"
            )
        self.of_events = tables is not None or tags is not None
        if not (acknowledge or self.of_events):
            raise ValueError("acknowledge=False is for events: give tables=[...] instead of table=")
        self.table = table
        self.tables = tables if tables is None or is_templated(tables) else checked_tables(tables)
        self.tags: Any = tags if is_templated(tags) else checked_tags(tags)
        self.tables_mode: Any = checked_mode("any" if is_airflows else mode)
        self.cluster = cluster
        self.consumer = consumer
        self.start = checked_start(start)
        self.max_versions = max_versions
        self.max_events = max_events
        self.acknowledge = acknowledge
        self.skip_when_empty = skip_when_empty
        self.opal_conn_id = opal_conn_id
        self.lakechime_conn_id = lakechime_conn_id
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False)
            if deferrable is None
            else deferrable
        )
        given = {
            "table": table,
            "tables": tables,
            "tags": tags,
            "cluster": cluster,
            "opal_conn_id": opal_conn_id,
        }
        self.inlets = distinct([*self.inlets, *_inlets(given)])

    @classmethod
    def partial(cls, **given: Any) -> Any:
        """As Airflow's, with the inlets that the sensor gives itself, if its tables are known by now."""
        return super().partial(
            **{**given, "inlets": distinct([*(given.get("inlets") or ()), *_inlets(given)])}
        )

    @property
    def asset(self) -> "Asset":
        """The asset of the table. ValueError while the table is a template."""
        return opal_asset(str(self.table), opal_conn_id=self.opal_conn_id)

    def execute(self, context: "Context", deadline_s: float | None = None) -> Found:
        """Looks once before it defers: only a running task can reach its state."""
        if self.ticks is not None:
            self._begin(context)
        if not self.deferrable and not self.skip_when_empty:
            return self._finish(context, super().execute(context))
        poked = self.poke(context)
        if poked.is_done:
            return self._finish(context, poked.xcom_value or {})
        if self.skip_when_empty:
            raise AirflowSkipException(f"nothing is new of {self.table or self.tables}")
        defer_within(self, self._trigger(context), deadline_s)

    def resume(
        self, context: "Context", event: Mapping[str, int], deadline_s: float | None = None
    ) -> Found:
        """After the trigger has fired. Of events it only says that there are some: another run may have taken them meanwhile."""
        if not self.of_events:
            return self._finish(context, event)
        self.look_again(context)
        return self.execute(context, deadline_s)

    def poke(self, context: "Context") -> PokeReturnValue:
        if not self.is_due(context):
            return PokeReturnValue(is_done=False)
        found = self._events(context) if self.of_events else self._versions(context)
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def _trigger(self, context: "Context") -> "BaseTrigger":
        from airflow_provider_opal.triggers.events import EventsTrigger
        from airflow_provider_opal.triggers.snapshot import SnapshotTrigger

        if not self.of_events:
            return SnapshotTrigger(
                table=str(self.table),
                opal_conn_id=self.opal_conn_id,
                after=self._seen(context),
                poke_interval_s=self.poke_interval,
                max_versions=self.max_versions,
                ticks=self.ticks,
            )
        with closing(self._client()) as client:
            after = self._event_consumer(context, client).watermark().value
        assert isinstance(after, int)
        return EventsTrigger(
            lakechime_conn_id=self.lakechime_conn_id or DEFAULT_LAKECHIME_CONN_ID,
            tables=self._pairs,
            after=after,
            poke_interval_s=self.poke_interval,
            tags=self.tags,
            mode=self.tables_mode,
            ticks=self.ticks,
        )

    def _begin(self, context: "Context") -> None:
        """Store where a new consumer starts: its first look may be later, and deferred it is in a trigger."""
        if self.of_events:
            with closing(self._client()) as client:
                self._event_consumer(context, client).watermark()
        elif self._is_there(context):
            self._seen(context)

    def _finish(self, context: "Context", found: Mapping[str, int]) -> Found:
        """The range of versions is acknowledged, once it is the run's own; that of events was when it was taken."""
        if self.of_events:
            return dict(found)
        watermark = self._watermark(context)
        given = watermark.give({"from": int(found["from"]), "to": int(found["to"])})
        watermark.advance(given["to"])
        return given

    def _events(self, context: "Context") -> Found | None:
        with closing(self._client()) as client:
            return self._event_consumer(context, client).take(partial(self._hand_over, context))

    def _hand_over(self, context: "Context", events: Sequence["DataChangeEvent"]) -> None:
        context["ti"].xcom_push(key=EVENTS_KEY, value=hand_over(context, events, tags=self.tags))

    def _client(self) -> "LakeChime":
        from airflow_provider_opal.hooks.lakechime import LakeChimeHook

        return LakeChimeHook(self.lakechime_conn_id or DEFAULT_LAKECHIME_CONN_ID).get_conn()

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        return table_pairs(
            [self.table] if self.tables is None else checked_tables(self.tables), self.cluster
        )

    def _event_consumer(self, context: "Context", client: "LakeChime") -> "EventConsumer":
        from airflow_provider_opal.events.consumer import EventConsumer
        from airflow_provider_opal.events.state import AssetState

        name = self._consumer(context)
        return EventConsumer(
            context=context,
            client=client,
            consumer=name,
            tables=self._pairs,
            tags=self.tags,
            mode=self.tables_mode,
            start=self.start,
            max_events=self.max_events,
            acknowledges=self.acknowledge,
            mirrors=[AssetState.of(context, asset, name) for asset in foreign_assets(self._pairs)],
        )

    def _is_there(self, context: "Context") -> bool:
        """Return whether the table exists; store that it was waited for if it does not."""
        from airflow_provider_opal.watermark import wait_for_table

        if OpalHook(self.opal_conn_id).exists(str(self.table)):
            return True
        if wait_for_table(self._state(context)):
            self.log.info("%s is not there yet; waiting for it", self.table)
        return False

    def _versions(self, context: "Context") -> Found | None:
        if not self._is_there(context):
            return None
        if (kept := self._watermark(context).given()) is not None:
            return kept
        versions = OpalHook(self.opal_conn_id).versions_after(
            str(self.table), self._seen(context), self.max_versions
        )
        return None if versions is None else {"from": versions[0], "to": versions[1]}

    def _consumer(self, context: "Context") -> str:
        return self.consumer or default_consumer(context)

    def _state(self, context: "Context") -> "State":
        from airflow_provider_opal.events.state import state_of

        return state_of(context, self.asset, self._consumer(context), self.lakechime_conn_id)

    def _watermark(self, context: "Context") -> "Watermark":
        from airflow_provider_opal.watermark import Watermark

        return Watermark.of(
            context, str(self.table), self.opal_conn_id, self.consumer, self.lakechime_conn_id
        )

    def _seen(self, context: "Context") -> int:
        """Of a table that was waited for everything is new, unless the start is a number."""
        from airflow_provider_opal.watermark import first_version, was_waited_for

        waited = was_waited_for(self._state(context))
        start: Start = "all" if waited and self.start == "head" else self.start
        first = partial(first_version, start, self.opal_conn_id, str(self.table))
        return (
            self._watermark(context).seen(first)
            if OpalHook(self.opal_conn_id).exists(str(self.table))
            else first()
        )


def _inlets(given: Mapping[str, Any]) -> list["Asset"]:
    """Where progress is shown, as far as tables are known without a run."""
    if given.get("tables") is None and given.get("tags") is None:
        return known_assets(given)
    if is_templated(given.get("tables")) or is_templated(given.get("table")):
        return []
    return foreign_assets(
        table_pairs(
            given.get("tables") or [given.get("table")], given.get("cluster", DEFAULT_CLUSTER)
        )
    )
