"""The pipeline ingest -> MetaGen -> consumers as a DAG, or as a group of tasks in a DAG of one's own. Both go through one converter."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, TaskGroup
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from airflow_provider_opal.arguments import takes_arguments_of
from airflow_provider_opal.assets import (
    DEFAULT_CONN_ID,
    DEFAULT_LAKECHIME_CONN_ID,
    consumer_schedule,
)
from airflow_provider_opal.operators.consume import BY, ConsumeOperator, check_rows
from airflow_provider_opal.operators.ingest import CreateTable, IngestOperator
from airflow_provider_opal.operators.metagen import MetaGenOperator
from airflow_provider_opal.operators.reconcile import (
    ReconcileOperator,
    ReconcileReportOperator,
    ReconcileSpans,
)
from airflow_provider_opal.operators.spark import is_keyed
from airflow_provider_opal.operators.streaming.ingest import StreamingIngestOperator
from airflow_provider_opal.streaming.source import Kafka
from airflow_provider_opal.templates.maintenance import Maintenance, maintenance_dag, maintenance_of
from airflow_provider_opal.templates.schedule import in_zone, keyed_schedule, run_bounds
from airflow_provider_opal.templates.short_spans import ShortSpanWarning, short_spans
from airflow_provider_opal.templates.stream import scheduled_stream, stream_arguments, stream_task
from airflow_provider_opal.templates.wait_for import WaitFor, wait_for_of
from opal_lake.arguments.values import Span, span_of
from opal_lake.errors import InvalidInputError
from opal_lake.operations.ingest import IngestRules

MISSED = "airflow_provider_opal.deadlines.log_missed"
DEFAULTS = {"retries": 2, "retry_delay": timedelta(minutes=1)}
RESERVED = ("ingest", "metagen", "reconcile", "maintenance", "wait_for")
RECONCILE = "reconcile_"  # the arguments of `opal_dag` that go to the reconcile
_TENDED_ALIKE = ("tags", "default_args", "is_paused_upon_creation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A function that gets what came to the table. `own_dag` puts it into a DAG that can be paused, cleared and backfilled by itself.

    `wait_for` names another table, a WaitFor or a mapping of its arguments, that it waits for as well. With `lakechime_conn_id` what it has
    seen is kept in LakeChime.
    """

    name: str
    function: str
    by: str = "partition"
    own_dag: bool = False
    rows: str = "visible"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    wait_for: WaitFor | Mapping[str, Any] | None = None
    lakechime_conn_id: str | None = None

    def __post_init__(self) -> None:
        wait_for_of(self.wait_for)
        if not isinstance(self.function, str):
            raise ValueError(
                f"consumer {self.name!r}: function={self.function!r}; name it as text, as 'shop_jobs:revenue'"
            )
        if self.by not in BY:
            raise ValueError(
                f"consumer {self.name!r}: by={self.by!r} is unknown; use one of {', '.join(BY)}"
            )
        try:
            check_rows(self.rows, self.by)
        except ValueError as error:
            raise ValueError(f"consumer {self.name!r}: {error}") from None
        if self.name in RESERVED:
            raise ValueError(
                f"the name {self.name!r} is taken by the pipeline itself; choose another, as '{self.name}_rows'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What all of its tasks are made from. `task` are arguments of every one of them: connections, retries, pool, Spark's settings."""

    table: str
    ingest: Mapping[str, Any]
    consumers: Sequence[Consumer]
    task: Mapping[str, Any]
    maintenance: Maintenance | None = None
    wait_for: WaitFor | None = None
    lakechime_conn_id: str | None = DEFAULT_LAKECHIME_CONN_ID

    @property
    def needs_keys(self) -> bool:
        """Whether rows without a partition key would reach nobody."""
        return any(consumer.by == "partition" for consumer in self.consumers)

    @property
    def has_business_snapshots(self) -> bool:
        """Return whether the table holds rows back, until the business snapshot before is over.

        A later run publishes them then, whatever their partition key is.
        """
        names = ("business_snapshot", "business_snapshot_column")
        return any(self.ingest.get(name) is not None for name in names)

    def consume(self, consumer: Consumer, name: str) -> ConsumeOperator:
        """A consumer's task; behind one that waits, if there is something to wait for."""
        consume = ConsumeOperator(
            task_id=consumer.name,
            table=self.table,
            function=consumer.function,
            by=consumer.by,
            rows=consumer.rows,
            consumer=name,
            arguments=consumer.arguments,
            lakechime_conn_id=consumer.lakechime_conn_id,
            **({"max_active_tis_per_dag": 1} if consumer.by == "version" else {}),
            **self.task,
        )
        if (waits := wait_for_of(consumer.wait_for)) is not None:
            waits.sensor(f"{consumer.name}.wait_for", f"{name}.wait_for") >> consume
        return consume


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """What the converter has made, wired."""

    ingest: IngestOperator | StreamingIngestOperator
    metagen: MetaGenOperator | None
    consumers: Mapping[str, ConsumeOperator]

    @property
    def visible(self) -> IngestOperator | StreamingIngestOperator | MetaGenOperator:
        """The task after which rows are visible."""
        return self.metagen or self.ingest


@takes_arguments_of(IngestRules)
def pipeline_of(
    *,
    table: str,
    source: Any,
    create: CreateTable | Mapping[str, Any] | None = None,
    maintenance: Maintenance | Mapping[str, Any] | bool | None = None,
    consumers: Sequence[Consumer] = (),
    opal_conn_id: str | None = None,
    spark_conn_id: str | None = None,
    spark: Mapping[str, Any] | None = None,
    retries: int | None = None,
    retry_delay: timedelta | None = None,
    pool: str | None = None,
    wait_for: WaitFor | Mapping[str, Any] | None = None,
    lakechime_conn_id: str | None = DEFAULT_LAKECHIME_CONN_ID,
    **kwargs: Any,
) -> Pipeline:
    """The arguments that `opal_dag` and `OpalTaskGroup` share. What is not given is left to the DAG's `default_args`.

    `kwargs` say how rows are ingested, as those of an IngestOperator.

    `spark` are arguments of SparkSubmitOperator (conf, packages, executor_memory, ...) for all tasks. `maintenance`, a Maintenance or a
    mapping of its arguments, or True, makes a DAG `<name>.maintenance` beside, that maintains the table by a schedule of its own. `wait_for`,
    a WaitFor or a mapping of its arguments, names a foreign table that a run waits for before it ingests. What becomes visible is
    registered in LakeChime by `lakechime_conn_id`; None: it is not.
    """
    if not isinstance(consumers, list | tuple) or not all(
        isinstance(member, Consumer) for member in consumers
    ):
        raise ValueError(
            f"consumers={consumers!r} is no list of Consumer objects; write "
            "consumers=[Consumer(name='revenue', function='shop_jobs:revenue')]"
        )
    names = [consumer.name for consumer in consumers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"the name {', '.join(twice)} is given to more than one consumer; rename one"
        )
    if unknown := sorted(kwargs.keys() - IngestRules.fields().keys()):
        raise TypeError(f"pipeline_of() got an unexpected keyword argument {unknown[0]!r}")
    rules = {**vars(IngestRules()), **IngestRules.among(kwargs)}
    known_rules = {name: value for name, value in rules.items() if value is not None}
    ingest = {"source": source, "create": create, **known_rules}
    if isinstance(source, Kafka):
        ingest = stream_arguments(source, ingest)
    given = {
        "opal_conn_id": opal_conn_id,
        "spark_conn_id": spark_conn_id,
        "retries": retries,
        "retry_delay": retry_delay,
        "pool": pool,
    }
    task = {**{name: value for name, value in given.items() if value is not None}, **(spark or {})}
    more: Any = {
        "maintenance": maintenance_of(maintenance),
        "wait_for": wait_for_of(wait_for),
        "lakechime_conn_id": lakechime_conn_id,
    }
    return Pipeline(table=table, ingest=ingest, consumers=tuple(consumers), task=task, **more)


def add_tasks(pipeline: Pipeline, name: str) -> Tasks:
    """The pipeline's tasks, in the DAG or group that is open. `name` goes before the names of its consumers."""
    common = {"table": pipeline.table, "keyed": pipeline.needs_keys, **pipeline.task}
    if (
        pipeline.lakechime_conn_id != DEFAULT_LAKECHIME_CONN_ID
    ):  # else default_args may name another one
        common["lakechime_conn_id"] = pipeline.lakechime_conn_id
    ingest: IngestOperator | StreamingIngestOperator
    if isinstance(pipeline.ingest["source"], Kafka):
        ingest = stream_task(pipeline.ingest, common)
    else:
        ingest = IngestOperator(task_id="ingest", **pipeline.ingest, **common)
    metagen = (
        None
        if pipeline.ingest["metadata"] == "inline"
        else MetaGenOperator(task_id="metagen", all=pipeline.has_business_snapshots, **common)
    )
    if metagen is not None:
        ingest >> metagen
    if pipeline.wait_for is not None:
        pipeline.wait_for.sensor("wait_for", f"{name}.wait_for") >> ingest
    made = {}
    for consumer in pipeline.consumers:
        if not consumer.own_dag:
            made[consumer.name] = pipeline.consume(consumer, f"{name}.{consumer.name}")
            (metagen or ingest) >> made[consumer.name]
    return Tasks(ingest=ingest, metagen=metagen, consumers=made)


class OpalTaskGroup(TaskGroup):
    """The pipeline within a DAG of one's own: `.visible` is what to put tasks behind, `.asset` what others can wait for.

    `maintenance` makes a DAG beside that one, `<dag>.<group>.maintenance`; in the group it would run once a key, and fail and wait with it.
    """

    def __init__(self, group_id: str, *, table: str, source: Any, **options: Any) -> None:
        known = {name: options.pop(name) for name in list(options) if name in _SHARED}
        pipeline = pipeline_of(table=table, source=source, **known)
        if own := [consumer.name for consumer in pipeline.consumers if consumer.own_dag]:
            raise ValueError(
                f"consumer {', '.join(own)} has own_dag=True, which only opal_dag supports; write a DAG for it beside this one"
            )
        super().__init__(group_id=group_id, **options)
        name = f"{self.dag.dag_id}.{self.group_id}"
        with self:
            tasks = add_tasks(pipeline, name)
        _add_maintenance_dag(
            pipeline,
            name,
            self.dag.start_date,
            default_args=self.dag.default_args,
            tags=self.dag.tags,
        )
        self.ingest, self.metagen, self.consumers = tasks.ingest, tasks.metagen, tasks.consumers
        self.visible, self.asset = tasks.visible, tasks.visible.asset


_SHARED = {*inspect.signature(pipeline_of).parameters} - {"kwargs"}


@takes_arguments_of(ReconcileSpans, prefix=RECONCILE)
def opal_dag(
    dag_id: str,
    *,
    table: str,
    source: Any,
    schedule: Any,
    start_date: datetime,
    end_date: datetime | None = None,
    timezone: str = "UTC",
    partition_key_format: str | None = None,
    deadline: Span | None = None,
    reconcile: str | None = "@hourly",
    **options: Any,
) -> DAG:
    """The DAG of a pipeline. With it come the DAGs of consumers that have one of their own, a DAG that emits missed events again, and with
    `maintenance` a DAG that maintains the table. That one runs beside the pipeline: neither waits for the other.

    A scheduled run works on the partition that just ended (`{{ partition_key }}`); `start_date` and `end_date` are those of the first and
    the last partition, in `timezone` where they have none. `deadline` counts from when a run was queued. `reconcile` is the schedule of the
    DAG that emits missed events; `reconcile_look_back`, `reconcile_grace` and `reconcile_again` are those of a ReconcileOperator. `options`
    are those of `pipeline_of` and of `DAG`; one run at a time unless `max_active_runs` says otherwise.
    """
    spans = _reconcile_spans(options)
    pipeline = pipeline_of(
        table=table,
        source=source,
        **{name: options.pop(name) for name in list(options) if name in _SHARED},
    )
    if not isinstance(start_date, datetime):
        raise ValueError(
            f"start_date={start_date!r} is not a point in time; write datetime(2026, 11, 1)"
        )
    pipeline, timetable, of_source = _scheduled(pipeline, schedule, timezone, partition_key_format)
    options = {**of_source, **options}
    defaults = {**DEFAULTS, **(options.pop("default_args", None) or {})}
    common = {
        "tags": ["opal"],
        "catchup": False,
        "max_active_runs": 1,
        "default_args": defaults,
        **options,
    }
    first, last = run_bounds(schedule, start_date, end_date, timezone)
    with DAG(
        dag_id,
        schedule=timetable,
        start_date=first,
        end_date=last,
        deadline=deadline_of(dag_id, deadline),
        **common,
    ) as dag:
        made = add_tasks(pipeline, dag_id)
    begin = in_zone(start_date, timezone)
    _add_maintenance_dag(
        pipeline, dag_id, begin, **{name: common[name] for name in _TENDED_ALIKE if name in common}
    )
    own = [consumer for consumer in pipeline.consumers if consumer.own_dag]
    for consumer in own:
        _consumer_dag(
            pipeline, consumer, dag_id, {**common, "start_date": begin}, made.ingest.opal_conn_id
        )
    if own and reconcile is not None:
        _warn_of_short_spans(pipeline, dag_id, spans)
        consumers = {f"{dag_id}.{consumer.name}": consumer.by for consumer in own}
        when: Any = {
            "schedule": reconcile,
            "start_date": begin,
            "opal_conn_id": made.ingest.opal_conn_id,
            **spans.to_arguments(),
        }
        when["lakechime_conn_ids"] = {
            f"{dag_id}.{consumer.name}": consumer.lakechime_conn_id for consumer in own
        }
        reconcile_dag(f"{dag_id}.reconcile", table=table, consumers=consumers, **when)
    return dag


def _scheduled(
    pipeline: Pipeline, schedule: Any, timezone: str, partition_key_format: str | None
) -> tuple[Pipeline, Any, dict[str, Any]]:
    """The pipeline as the schedule has it, the timetable, and arguments of the DAG that its source wants."""
    if isinstance(pipeline.ingest["source"], Kafka):
        by = {consumer.name: consumer.by for consumer in pipeline.consumers}
        ingest, timetable, options = scheduled_stream(
            pipeline.ingest, by, schedule, timezone, partition_key_format
        )
        return replace(pipeline, ingest=ingest), timetable, options
    timetable = keyed_schedule(schedule, timezone, partition_key_format)
    if (
        schedule is not None
        and not is_keyed(timetable)
        and (late := [member.name for member in pipeline.consumers if member.by == "partition"])
    ):
        raise ValueError(
            f"consumer {', '.join(late)} goes by partition, and runs of {timetable!r} have no partition key; use by='version'"
        )
    return pipeline, timetable, {}


def _reconcile_spans(options: dict[str, Any]) -> ReconcileSpans:
    """Take the spans of the reconcile out of the options of a pipeline."""
    try:
        return ReconcileSpans(**ReconcileSpans.taken_from(options, prefix=RECONCILE))
    except InvalidInputError as error:  # its message begins with the name of the argument
        raise InvalidInputError(f"{RECONCILE}{error}") from None


def _warn_of_short_spans(pipeline: Pipeline, dag_id: str, spans: ReconcileSpans) -> None:
    if (maintenance := pipeline.maintenance) is not None:
        given = {"window": maintenance.window, "look_back": maintenance.look_back}
        for name, what in short_spans(given, spans.look_back):
            warnings.warn(f"{dag_id}: maintenance: {name}: {what}", ShortSpanWarning, stacklevel=3)


def _add_maintenance_dag(
    pipeline: Pipeline, name: str, start_date: datetime | None, **dag_kwargs: Any
) -> None:
    if pipeline.maintenance is not None:
        maintenance: dict[str, Any] = {
            "table": pipeline.table,
            "maintenance": pipeline.maintenance,
            "task": pipeline.task,
            **dag_kwargs,
        }
        maintenance_dag(f"{name}.maintenance", start_date=start_date, **maintenance)


def deadline_of(dag_id: str, deadline: Span | None) -> DeadlineAlert | None:
    """Counts from when a run was queued."""
    if deadline is None:
        return None
    interval = span_of("deadline", deadline)
    missed = AsyncCallback(MISSED, kwargs={"dag_id": dag_id, "after": str(interval)})
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=interval, callback=missed
    )


def _consumer_dag(
    pipeline: Pipeline,
    consumer: Consumer,
    dag_id: str,
    common: Mapping[str, Any],
    opal_conn_id: str,
) -> None:
    """By version it runs once for every version, one at a time; a run does nothing if an earlier run has consumed its versions."""
    name = f"{dag_id}.{consumer.name}"
    schedule = consumer_schedule(
        pipeline.table, consumer=name, by=consumer.by, opal_conn_id=opal_conn_id
    )
    one_by_one = {"max_active_runs": 1} if consumer.by == "version" else {}
    with DAG(name, schedule=schedule, **{**common, **one_by_one}):
        pipeline.consume(consumer, name)


@takes_arguments_of(ReconcileSpans)
def reconcile_dag(
    dag_id: str,
    *,
    table: str,
    consumers: Mapping[str, str],
    start_date: datetime | None,
    schedule: str | None = "@hourly",
    opal_conn_id: str = DEFAULT_CONN_ID,
    lakechime_conn_ids: Mapping[str, str | None] | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """A DAG that emits missed events again: Airflow drops those of paused DAGs.

    `consumers` says by what each goes, 'partition' or 'version'. A ConsumeOperator's name is its `consumer=`, by default `<dag>.<task>`;
    its DAG has to listen by `consumer_schedule`. `lakechime_conn_ids` names the connection of those that keep what they have seen in
    LakeChime. `look_back`, `grace` and `again` are those of a ReconcileOperator.
    """
    spans = ReconcileSpans(**ReconcileSpans.taken_from(dag_kwargs)).to_arguments()
    if unknown := sorted(set(consumers.values()) - set(BY)):
        raise ValueError(
            f"consumers go by {', '.join(map(repr, unknown))}; use one of {', '.join(BY)}"
        )
    common = {"tags": ["opal"], "catchup": False, "max_active_runs": 1, **dag_kwargs}
    with DAG(dag_id, schedule=schedule, start_date=start_date, **common) as dag:
        looks = []
        for name, by in consumers.items():
            where: Any = {
                "opal_conn_id": opal_conn_id,
                "lakechime_conn_id": (lakechime_conn_ids or {}).get(name),
            }
            looks.append(
                ReconcileOperator(task_id=name, table=table, consumer=name, by=by, **where, **spans)
            )
        looks >> ReconcileReportOperator(task_id="report")
    return dag
