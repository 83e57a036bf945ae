"""The pipeline ingest -> MetaGen -> consumers, as a DAG or as a group of tasks in another DAG.

Both are made by `pipeline_of` and `add_tasks`.
"""

import inspect
import warnings
from collections import Counter
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
from airflow_provider_opal.operators.ingest import CreateTable, IngestOperator, create_arguments
from airflow_provider_opal.operators.metagen import MetaGenOperator
from airflow_provider_opal.operators.reconcile import (
    ReconcileOperator,
    ReconcileReportOperator,
    ReconcileSpans,
)
from airflow_provider_opal.operators.schema_change import SchemaChangeOperator
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

# By its path: Airflow stores a callback by name, and the triggerer imports it
MISSED = "airflow_provider_opal.deadlines.log_missed"
DEFAULTS = {"retries": 2, "retry_delay": timedelta(minutes=1)}
# Names of the pipeline's own tasks and DAGs, which a consumer cannot have
RESERVED = ("ingest", "metagen", "reconcile", "maintenance", "schema", "wait_for")
RECONCILE = "reconcile_"  # prefix of the arguments of `opal_dag` that go to the reconcile
_OF_MAINTENANCE_DAG = ("tags", "default_args", "is_paused_upon_creation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A function that gets the new rows of the table.

    `own_dag` puts the consumer into a separate DAG that can be paused, cleared and backfilled on
    its own. `wait_for`, a WaitFor or a mapping of its arguments, names another table whose events
    the consumer waits for too. With `lakechime_conn_id` its progress is stored in LakeChime.
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
                f"consumer {self.name!r}: function={self.function!r} is not a text; "
                "write a text such as 'shop_jobs:revenue'"
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
                f"the pipeline itself uses the name {self.name!r}; "
                f"choose another name, such as '{self.name}_rows'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolve:
    """Former names and dropped columns, which the schema of a table cannot show.

    `renamed` has former names of columns and members, such as `{"amount": "total"}`. `dropped`
    names columns that the table should no longer have.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Sequence[str] = ()


def evolve_of(
    evolve: Evolve | Mapping[str, Any] | bool | None, create: Mapping[str, Any] | None
) -> Evolve | None:
    """Return how an existing table follows its schema; None if it does not.

    Raises ValueError if `create` has no schema.
    """
    if evolve is None or evolve is False:
        return None
    if create is None or "schema" not in create:
        raise ValueError(
            "evolve= needs create=CreateTable(..., schema='id BIGINT, ...'), whose columns the "
            "table gets; add the schema"
        )
    if isinstance(evolve, Evolve):
        return evolve
    given = {} if evolve is True else evolve
    return Evolve(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The arguments of a pipeline's tasks.

    `task` holds the arguments of every task: connections, retries, pool, Spark's settings.
    """

    table: str
    ingest: Mapping[str, Any]
    consumers: Sequence[Consumer]
    task: Mapping[str, Any]
    maintenance: Maintenance | None = None
    wait_for: WaitFor | None = None
    lakechime_conn_id: str | None = DEFAULT_LAKECHIME_CONN_ID
    evolve: Evolve | None = None

    @property
    def needs_keys(self) -> bool:
        """True if rows without a partition key would not reach all consumers."""
        return any(consumer.by == "partition" for consumer in self.consumers)

    @property
    def has_business_snapshots(self) -> bool:
        """True if rows of a business snapshot may be held back.

        A later run publishes these rows, whatever their partition key is.
        """
        names = ("business_snapshot", "business_snapshot_column")
        return any(self.ingest.get(name) is not None for name in names)

    def change_schema(self, evolve: Evolve) -> SchemaChangeOperator:
        """Return the task that gives the table the columns of its definition."""
        create = create_arguments(self.ingest["create"])
        return SchemaChangeOperator(
            task_id="schema",
            table=self.table,
            schema=create.pop("schema"),
            renamed=evolve.renamed,
            dropped=list(evolve.dropped),
            create=create,
            **self.task,
        )

    def consume(self, consumer: Consumer, name: str) -> ConsumeOperator:
        """Return a consumer's task, after a sensor if it has a `wait_for`."""
        # By version, two runs at a time would work on the same versions
        one_by_one = {"max_active_tis_per_dag": 1} if consumer.by == "version" else {}
        consume = ConsumeOperator(
            task_id=consumer.name,
            table=self.table,
            function=consumer.function,
            by=consumer.by,
            rows=consumer.rows,
            consumer=name,
            arguments=consumer.arguments,
            lakechime_conn_id=consumer.lakechime_conn_id,
            **one_by_one,
            **self.task,
        )
        wait_for = wait_for_of(consumer.wait_for)
        if wait_for is not None:
            wait_for.sensor(f"{consumer.name}.wait_for", f"{name}.wait_for") >> consume
        return consume


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """The tasks of a pipeline, joined by their dependencies."""

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
    evolve: Evolve | Mapping[str, Any] | bool | None = None,
    **kwargs: Any,
) -> Pipeline:
    """Return the pipeline of the arguments that `opal_dag` and `OpalTaskGroup` share.

    For arguments that are not given, the DAG's `default_args` hold. `kwargs` are arguments of an
    IngestOperator about how rows are ingested.

    `spark` holds arguments of SparkSubmitOperator (conf, packages, executor_memory, ...) for all
    tasks. `maintenance`, a Maintenance or a mapping of its arguments, or True, makes a separate
    DAG `<name>.maintenance`, which maintains the table by its own schedule. `wait_for`, a WaitFor
    or a mapping of its arguments, names a foreign table that a run waits for before it ingests.
    New visible rows are registered in LakeChime through `lakechime_conn_id`; None turns that off.

    `evolve`, True, an Evolve or a mapping of its arguments, adds a task `schema` before the ingest,
    which gives an existing table the columns of `create.schema`.
    """
    _check_consumers(consumers)
    unknown = sorted(kwargs.keys() - IngestRules.fields().keys())
    if unknown:
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
    task = {name: value for name, value in given.items() if value is not None}
    task.update(spark or {})
    return Pipeline(
        table=table,
        ingest=ingest,
        consumers=tuple(consumers),
        task=task,
        maintenance=maintenance_of(maintenance),
        wait_for=wait_for_of(wait_for),
        lakechime_conn_id=lakechime_conn_id,
        evolve=evolve_of(evolve, None if create is None else create_arguments(create)),
    )


def _check_consumers(consumers: Any) -> None:
    is_list = isinstance(consumers, list | tuple)
    if not is_list or not all(isinstance(member, Consumer) for member in consumers):
        raise ValueError(
            f"consumers={consumers!r} is not a list of Consumer objects; write "
            "consumers=[Consumer(name='revenue', function='shop_jobs:revenue')]"
        )
    counts = Counter(consumer.name for consumer in consumers)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise ValueError(
            f"more than one consumer has the name {', '.join(repeated)}; give each its own name"
        )


def add_tasks(pipeline: Pipeline, name: str) -> Tasks:
    """Add the pipeline's tasks to the current DAG or group.

    `name` is the prefix of its consumers' names.
    """
    common = {"table": pipeline.table, "keyed": pipeline.needs_keys, **pipeline.task}
    if pipeline.lakechime_conn_id != DEFAULT_LAKECHIME_CONN_ID:
        # The default is left out, so that default_args may name another connection
        common["lakechime_conn_id"] = pipeline.lakechime_conn_id
    ingest: IngestOperator | StreamingIngestOperator
    if isinstance(pipeline.ingest["source"], Kafka):
        ingest = stream_task(pipeline.ingest, common)
    else:
        ingest = IngestOperator(task_id="ingest", **pipeline.ingest, **common)
    metagen: MetaGenOperator | None = None
    if pipeline.ingest["metadata"] != "inline":
        metagen = MetaGenOperator(task_id="metagen", all=pipeline.has_business_snapshots, **common)
        ingest >> metagen
    if pipeline.evolve is not None:
        pipeline.change_schema(pipeline.evolve) >> ingest
    if pipeline.wait_for is not None:
        pipeline.wait_for.sensor("wait_for", f"{name}.wait_for") >> ingest
    consumers = {}
    for consumer in pipeline.consumers:
        if not consumer.own_dag:
            consume = pipeline.consume(consumer, f"{name}.{consumer.name}")
            (metagen or ingest) >> consume
            consumers[consumer.name] = consume
    return Tasks(ingest=ingest, metagen=metagen, consumers=consumers)


class OpalTaskGroup(TaskGroup):
    """The pipeline as a group of tasks within your own DAG.

    Rows are visible after the task `.visible`; other DAGs can wait for the asset `.asset`.
    `maintenance` makes a separate DAG, `<dag>.<group>.maintenance`. In the group, maintenance would
    run once for each key, and a failure of one would fail the other.
    """

    def __init__(self, group_id: str, *, table: str, source: Any, **options: Any) -> None:
        known = {name: options.pop(name) for name in _SHARED & options.keys()}
        pipeline = pipeline_of(table=table, source=source, **known)
        own = [consumer.name for consumer in pipeline.consumers if consumer.own_dag]
        if own:
            raise ValueError(
                f"consumer {', '.join(own)} has own_dag=True, which only opal_dag supports; "
                "write a separate DAG for it"
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


# The options of both `opal_dag` and `OpalTaskGroup`. Other options go to the DAG or the group
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
    """Return the DAG of a pipeline, and make its further DAGs.

    The further DAGs are one for each consumer with `own_dag`, one that emits missed events again,
    and with `maintenance` one that maintains the table. The pipeline and its maintenance do not
    wait for each other.

    A scheduled run works on the partition that just ended (`{{ partition_key }}`). `start_date`
    and `end_date` are the dates of the first and the last partition, in `timezone` if they have no
    zone. `deadline` counts from the time at which a run was queued. `reconcile` is the schedule of
    the DAG that emits missed events. `reconcile_look_back`, `reconcile_grace` and
    `reconcile_again` are the arguments `look_back`, `grace` and `again` of a ReconcileOperator.
    `options` are further arguments of the pipeline and of `DAG`. The default of `max_active_runs`
    is 1.
    """
    spans = _reconcile_spans(options)
    known = {name: options.pop(name) for name in _SHARED & options.keys()}
    pipeline = pipeline_of(table=table, source=source, **known)
    if not isinstance(start_date, datetime):
        raise ValueError(
            f"start_date={start_date!r} is not a datetime; write datetime(2026, 11, 1)"
        )
    pipeline, timetable, source_options = _scheduled(
        pipeline, schedule, timezone, partition_key_format
    )
    options = {**source_options, **options}
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
        tasks = add_tasks(pipeline, dag_id)
    begin = in_zone(start_date, timezone)
    maintenance_options = {}
    for name in _OF_MAINTENANCE_DAG:
        if name in common:
            maintenance_options[name] = common[name]
    _add_maintenance_dag(pipeline, dag_id, begin, **maintenance_options)
    own = [consumer for consumer in pipeline.consumers if consumer.own_dag]
    # From a task, because default_args of the DAG may set it
    opal_conn_id = tasks.ingest.opal_conn_id
    for consumer in own:
        _consumer_dag(pipeline, consumer, dag_id, {**common, "start_date": begin}, opal_conn_id)
    if own and reconcile is not None:
        _warn_of_short_spans(pipeline, dag_id, spans)
        by, conn_ids = {}, {}
        for consumer in own:
            by[f"{dag_id}.{consumer.name}"] = consumer.by
            conn_ids[f"{dag_id}.{consumer.name}"] = consumer.lakechime_conn_id
        reconcile_dag(
            f"{dag_id}.reconcile",
            table=table,
            consumers=by,
            start_date=begin,
            schedule=reconcile,
            opal_conn_id=opal_conn_id,
            lakechime_conn_ids=conn_ids,
            **spans.to_arguments(),
        )
    return dag


def _scheduled(
    pipeline: Pipeline, schedule: Any, timezone: str, partition_key_format: str | None
) -> tuple[Pipeline, Any, dict[str, Any]]:
    """Return a scheduled pipeline, its timetable, and further options of the DAG."""
    if isinstance(pipeline.ingest["source"], Kafka):
        by = {consumer.name: consumer.by for consumer in pipeline.consumers}
        ingest, timetable, options = scheduled_stream(
            pipeline.ingest, by, schedule, timezone, partition_key_format
        )
        return replace(pipeline, ingest=ingest), timetable, options
    timetable = keyed_schedule(schedule, timezone, partition_key_format)
    by_partition = [member.name for member in pipeline.consumers if member.by == "partition"]
    if by_partition and schedule is not None and not is_keyed(timetable):
        raise ValueError(
            f"consumer {', '.join(by_partition)} consumes by partition, but runs of {timetable!r} "
            "have no partition key; give the consumer by='version'"
        )
    return pipeline, timetable, {}


def _reconcile_spans(options: dict[str, Any]) -> ReconcileSpans:
    """Remove the spans of the reconcile from a pipeline's options, and return them."""
    try:
        return ReconcileSpans(**ReconcileSpans.taken_from(options, prefix=RECONCILE))
    except InvalidInputError as error:  # its message begins with the name of the argument
        raise InvalidInputError(f"{RECONCILE}{error}") from None


def _warn_of_short_spans(pipeline: Pipeline, dag_id: str, spans: ReconcileSpans) -> None:
    maintenance = pipeline.maintenance
    if maintenance is None:
        return
    given = {"window": maintenance.window, "look_back": maintenance.look_back}
    for name, message in short_spans(given, spans.look_back):
        warnings.warn(f"{dag_id}: maintenance: {name}: {message}", ShortSpanWarning, stacklevel=3)


def _add_maintenance_dag(
    pipeline: Pipeline, name: str, start_date: datetime | None, **dag_kwargs: Any
) -> None:
    if pipeline.maintenance is None:
        return
    maintenance_dag(
        f"{name}.maintenance",
        table=pipeline.table,
        start_date=start_date,
        maintenance=pipeline.maintenance,
        task=pipeline.task,
        **dag_kwargs,
    )


def deadline_of(dag_id: str, deadline: Span | None) -> DeadlineAlert | None:
    """Return the alert of a deadline, which counts from when a run was queued."""
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
    """Make the DAG of a consumer with `own_dag`.

    By version the DAG runs once for each version, one run at a time. A run does nothing if an
    earlier run has consumed its version.
    """
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
    """Return a DAG that emits the events again that consumers missed.

    A consumer misses events while its DAG is paused, because Airflow drops them. `consumers` maps
    the name of each consumer to 'partition' or 'version'. The name is the `consumer=` of its
    ConsumeOperator, by default `<dag>.<task>`. The consumer's DAG must have the schedule
    `consumer_schedule`. If LakeChime stores the progress of consumers, `lakechime_conn_ids` maps
    their names to their connections. `look_back`, `grace` and `again` are arguments of a
    ReconcileOperator.
    """
    spans = ReconcileSpans(**ReconcileSpans.taken_from(dag_kwargs)).to_arguments()
    unknown = sorted(set(consumers.values()) - set(BY))
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise ValueError(
            f"consumers={consumers!r} names {names} instead of 'partition' or 'version'; "
            "write {'report.send': 'partition'}"
        )
    conn_ids = lakechime_conn_ids or {}
    common = {"tags": ["opal"], "catchup": False, "max_active_runs": 1, **dag_kwargs}
    with DAG(dag_id, schedule=schedule, start_date=start_date, **common) as dag:
        reconciles = []
        for name, by in consumers.items():
            reconcile = ReconcileOperator(
                task_id=name,
                table=table,
                consumer=name,
                by=by,
                opal_conn_id=opal_conn_id,
                lakechime_conn_id=conn_ids.get(name),
                **spans,
            )
            reconciles.append(reconcile)
        reconciles >> ReconcileReportOperator(task_id="report")
    return dag
