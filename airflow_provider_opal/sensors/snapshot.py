"""SnapshotTriggerSensor, which waits for unseen versions of a table, or events of tables.

Only versions that changed the view count: `OpalHook.versions_after`. Deferred, it waits in
`triggers.snapshot` for versions, in `triggers.events` for events, and goes on in `resume`.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue
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
from airflow_provider_opal.sensors.pacing import PacedSensor, Pacing, defer_within, is_deferrable
from airflow_provider_opal.templated import is_templated

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context
    from airflow.triggers.base import BaseTrigger

    from airflow_provider_opal.events.consumer import EventConsumer
    from airflow_provider_opal.events.state import State
    from airflow_provider_opal.watermark import Watermark
    from lakechime import DataChangeEvent, LakeChime

Range = dict[str, Any]  # "from" and "to"


class SnapshotTriggerSensor(PacedSensor):
    """A sensor that waits for something new, and returns {"from": a, "to": b}.

    The range begins after a and includes b, so that nothing is left out between two runs. With only
    `table` the numbers are versions of an Opal table, from the table's log. With `tables` or `tags`
    they are seqs of LakeChime's events, of tables of any format. The events have all of the `tags`.
    With `mode="any"` one of the `tables` needs a new event, with `mode="all"` each. XCom has the
    events under the key `events`, and as variables for tasks under `environment`.

    The watermark of a `consumer` (default: DAG and task) moves when the sensor succeeds. With
    `acknowledge=False` an AcknowledgeOperator at the end of the flow moves it, for events only. A
    cleared run gets the same range again, and fails if a part of the range has expired. A run that
    is killed before it owns its events leaves them to the next one. A new consumer starts at the
    newest version or event (`start="head"`: existing ones count as seen), at the first one
    (`start="all"`), or after a number. `max_versions` and `max_events` split a long backlog into
    several runs.

    The watermark of versions is stored with the table's asset in Airflow. With `lakechime_conn_id`
    it is in LakeChime, which several Airflows can share. The watermark of events is always in
    LakeChime. `skip_when_empty` looks once, and skips if nothing is new.

    The sensor looks at each `poke_interval`. With `start_timestamp`, `frequency` and
    `frequency_unit` it looks only when the task begins and at start_timestamp + n * frequency, in
    every mode. Before `start_timestamp` it does not look. A new consumer starts at the newest
    versions or events of the moment when the task begins.

    `mode` may also be Airflow's "poke" or "reschedule". Then one of the tables is enough.

    The sensor waits for a missing Opal table, and then everything in the table is new.
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
                "SnapshotTriggerSensor waits either for versions of table=, or for events of "
                "tables=; give one of the two"
            )
        self.of_events = tables is not None or tags is not None
        if not (acknowledge or self.of_events):
            raise ValueError(
                "acknowledge=False does not apply to versions of table=; "
                "give tables=[...] instead of table=, or leave out acknowledge="
            )
        self.table = table
        self.tables = tables
        if tables is not None and not is_templated(tables):
            self.tables = checked_tables(tables)
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
        self.deferrable = is_deferrable(deferrable)
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
        """Return Airflow's partial sensor, with the inlets of tables that are known."""
        given_inlets = given.pop("inlets", None) or ()
        inlets = distinct([*given_inlets, *_inlets(given)])
        return super().partial(**given, inlets=inlets)

    @property
    def asset(self) -> "Asset":
        """The asset of the table. Raises ValueError while the table is a template."""
        return opal_asset(str(self.table), opal_conn_id=self.opal_conn_id)

    def execute(self, context: "Context", deadline_s: float | None = None) -> Range:
        """Return the next range; if there is none yet, wait, defer or skip.

        The task looks once before it defers: a trigger cannot reach the task's state.
        """
        if self.ticks is not None:
            self._begin(context)
        if not self.deferrable and not self.skip_when_empty:
            return self._finish(context, super().execute(context))
        poked = self.poke(context)
        if poked.is_done:
            return self._finish(context, poked.xcom_value or {})
        if self.skip_when_empty:
            raise AirflowSkipException(f"{self.table or self.tables} has nothing new")
        defer_within(self, self._trigger(context), deadline_s)

    def resume(
        self, context: "Context", event: Mapping[str, int], deadline_s: float | None = None
    ) -> Range:
        """Return the range for which the trigger has fired."""
        if not self.of_events:
            return self._finish(context, event)
        # Events may have been claimed by another run meanwhile
        self.look_again(context)
        return self.execute(context, deadline_s)

    def poke(self, context: "Context") -> PokeReturnValue:
        if not self.is_due(context):
            return PokeReturnValue(is_done=False)
        look = self._events if self.of_events else self._versions
        new = look(context)
        return PokeReturnValue(is_done=new is not None, xcom_value=new)

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
        """Store where a new consumer starts.

        Its first look may be later, and in a trigger, which cannot store it.
        """
        if self.of_events:
            with closing(self._client()) as client:
                self._event_consumer(context, client).watermark()
        elif self._table_exists(context):
            self._seen(context)

    def _finish(self, context: "Context", new: Mapping[str, int]) -> Range:
        """Store a range of versions as the run's own, and move the watermark.

        A range of events is already the run's own: the run has claimed it.
        """
        if self.of_events:
            return dict(new)
        watermark = self._watermark(context)
        given = watermark.give({"from": int(new["from"]), "to": int(new["to"])})
        watermark.advance(given["to"])
        return given

    def _events(self, context: "Context") -> Range | None:
        with closing(self._client()) as client:
            return self._event_consumer(context, client).take(partial(self._hand_over, context))

    def _hand_over(self, context: "Context", events: Sequence["DataChangeEvent"]) -> None:
        context["ti"].xcom_push(key=EVENTS_KEY, value=hand_over(context, events, tags=self.tags))

    def _client(self) -> "LakeChime":
        from airflow_provider_opal.hooks.lakechime import LakeChimeHook

        return LakeChimeHook(self.lakechime_conn_id or DEFAULT_LAKECHIME_CONN_ID).get_conn()

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        tables = [self.table] if self.tables is None else checked_tables(self.tables)
        return table_pairs(tables, self.cluster)

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

    def _table_exists(self, context: "Context") -> bool:
        """Return whether the table exists; if not, store that the consumer waits for it."""
        from airflow_provider_opal.watermark import wait_for_table

        if OpalHook(self.opal_conn_id).exists(str(self.table)):
            return True
        if wait_for_table(self._state(context)):
            self.log.info("%s does not exist yet; waiting for it", self.table)
        return False

    def _versions(self, context: "Context") -> Range | None:
        """Return the versions for this run, None if there are none.

        If an earlier try stored versions, this try works on the same ones.
        """
        if not self._table_exists(context):
            return None
        given = self._watermark(context).given()
        if given is not None:
            return given
        seen = self._seen(context)
        hook = OpalHook(self.opal_conn_id)
        versions = hook.versions_after(str(self.table), seen, self.max_versions)
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
        """Return the last version that the consumer has seen."""
        from airflow_provider_opal.watermark import first_version, was_waited_for

        start = self.start
        if was_waited_for(self._state(context)) and start == "head":
            # Everything in a table that the consumer has waited for is new
            start = "all"
        first = partial(first_version, start, self.opal_conn_id, str(self.table))
        if not OpalHook(self.opal_conn_id).exists(str(self.table)):
            return first()
        return self._watermark(context).seen(first)


def _inlets(given: Mapping[str, Any]) -> list["Asset"]:
    """Return the assets that show a consumer's progress; none for templates."""
    if given.get("tables") is None and given.get("tags") is None:
        return known_assets(given)
    if is_templated(given.get("tables")) or is_templated(given.get("table")):
        return []
    tables = given.get("tables") or [given.get("table")]
    return foreign_assets(table_pairs(tables, given.get("cluster", DEFAULT_CLUSTER)))
