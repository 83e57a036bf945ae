"""What must hold within one pipeline beyond its parts: columns that are there, templates that a keyed run can fill."""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_provider_opal.assets import cluster_of
from airflow_provider_opal.partition_keys import check_keys, cron_of
from airflow_provider_opal.secrets import secret_arguments
from airflow_provider_opal.sensors.pacing import Pacing
from airflow_provider_opal.streaming.source import stream_faults
from airflow_provider_opal.templates.short_spans import short_spans
from airflow_provider_opal.templates.yaml.models.mutation import MutationModel
from airflow_provider_opal.templates.yaml.models.run_options import RunOptions
from airflow_provider_opal.templates.yaml.models.version_1 import (
    DagModel,
    MaintenanceModel,
    TableModel,
    WaitForModel,
)
from airflow_provider_opal.templates.yaml.text.problem import Keys, advice, listed, shown
from opal_folder.properties import arguments_of
from opal_lake.arguments.declared import nothing_open
from opal_lake.errors import InvalidInputError
from opal_lake.operations.create import COLUMN_ROLES

if TYPE_CHECKING:
    import jinja2
    import jinja2.nodes

Finding = tuple[Keys, str]

# What a run with a partition key has not, or has empty
UNKEYED = frozenset({
    "data_interval_end", "data_interval_start", "ds", "ds_nodash", "execution_date", "logical_date", "next_ds", "next_execution_date",
    "prev_ds", "prev_execution_date", "prev_data_interval_end_success", "prev_data_interval_start_success",
    "tomorrow_ds", "ts", "ts_nodash",
    "ts_nodash_with_tz", "yesterday_ds",
})  # fmt: skip
_TYPE = r"[A-Za-z]+"


def findings(dag: DagModel) -> Iterator[Finding]:
    """All of them, each with the keys below the pipeline."""
    yield from _of_runs(dag, dag.schedule)
    yield from _of_ingest(dag)
    yield from _of_stream(dag)
    if isinstance(dag.table, TableModel):
        yield from _columns(dag.table)
        yield from _clustered(dag, dag.table)
    yield from _templates(dag)
    if dag.wait_for is not None and (dag.wait_for.table, dag.wait_for.cluster) == (
        dag.table_name,
        cluster_of(dag.opal_conn_id),
    ):
        yield (
            ("wait_for", "table"),
            f"{shown(dag.table_name)!r} is the pipeline's own table, so it would wait for itself; name another",
        )
    yield from _paced(dag.wait_for, ("wait_for",))
    for name, consumer in dag.consumers.items():
        yield from _paced(consumer.wait_for, ("consumers", name, "wait_for"))
        if consumer.rows == "changes" and consumer.by != "version":
            yield (
                ("consumers", name, "rows"),
                "are changes, which need a consumer by version; add 'by: version'",
            )
        for argument in secret_arguments(consumer.arguments):
            yield (
                ("consumers", name, "arguments"),
                f"{shown(argument)!r} has the name of a secret, and would be shown; name a connection instead",
            )


def _paced(waits: WaitForModel | None, way: Keys) -> Iterator[Finding]:
    """One of the pacing arguments without the others."""
    if waits is not None:
        given = {name: getattr(waits, name) for name in Pacing.fields()}
        try:
            Pacing.check_together(given, nothing_open)
        except InvalidInputError as error:
            [first, *_] = [name for name, value in given.items() if value is not None]
            yield (*way, first), f"is not enough: {error}"


def mutation_findings(mutation: MutationModel) -> Iterator[Finding]:
    """Those of a mutation of a folder."""
    yield from _of_runs(mutation, mutation.schedule)
    if mutation.properties is None and not mutation.ids:
        yield (
            ("ids",),
            "is missing; add 'ids: [id]', the fields of a record's id, or 'properties' with id.field.ordinals",
        )
    try:
        arguments_of(mutation.properties or {"id.field.ordinals": "0"})
    except InvalidInputError as error:
        yield ("properties",), str(error)
    for way, text in _texts(mutation.to_arguments(), ()):
        yield from (
            (way, what) for what in template_faults(text, keyed=mutation.schedule is not None)
        )


def _of_runs(dag: RunOptions, schedule: Any) -> Iterator[Finding]:
    if dag.start_date is None:
        yield ("start_date",), "is missing; add 'start_date: 2026-11-01' here or under 'defaults'"
    elif dag.end_date is not None and dag.end_date.replace(tzinfo=None) < dag.start_date.replace(
        tzinfo=None
    ):
        yield ("end_date",), "is before 'start_date'; write a later day, or take it out"
    if isinstance(schedule, str) and dag.partition_key_format is not None:
        try:
            check_keys(cron_of(schedule), dag.partition_key_format, dag.timezone)
        except ValueError as error:
            yield ("partition_key_format",), str(error)


def _of_ingest(dag: DagModel) -> Iterator[Finding]:
    if dag.reject_threshold is not None and dag.on_bad_rows != "quarantine":
        yield (
            ("reject_threshold",),
            "has no effect without quarantine; add 'on_bad_rows: quarantine'",
        )
    if dag.business_snapshot is not None and dag.business_snapshot_column is not None:
        yield (
            ("business_snapshot_column",),
            "and 'business_snapshot' exclude each other; take one out",
        )


def _of_stream(dag: DagModel) -> Iterator[Finding]:
    """Of a source of Kafka, what does not go with its pipeline."""
    if dag.source.kafka is None:
        return
    is_made = isinstance(dag.table, TableModel) and bool(dag.table.keys)
    has_schema = not is_made or (
        isinstance(dag.table, TableModel) and dag.table.schema_ is not None
    )
    by = {name: consumer.by for name, consumer in dag.consumers.items()}
    yield from stream_faults(dag.source.kafka.to_source(), dag.schedule, by, has_schema=has_schema)
    for name in ("reject_threshold", "business_snapshot", "business_snapshot_column"):
        if getattr(dag, name) is not None:
            yield (name,), "has no meaning for a stream of Kafka; take it out"
    if dag.on_empty not in (None, "fail"):
        yield ("on_empty",), "has no meaning for a stream of Kafka; take it out"


def doubts(dag: DagModel) -> Iterator[Finding]:
    """What works, and may surprise: spans in which consumers lose what they missed."""
    if (
        dag.maintenance
        and any(consumer.own_dag for consumer in dag.consumers.values())
        and dag.reconcile is not None
    ):
        assert isinstance(dag.maintenance, MaintenanceModel)
        properties = (dag.table.properties if isinstance(dag.table, TableModel) else None) or {}
        for name in ("window", "look_back"):
            here = getattr(dag.maintenance, name) is not None
            value = getattr(dag.maintenance, name) if here else properties.get(name)
            yield from (
                (("maintenance", name) if here else ("table", "properties", name), what)
                for _, what in short_spans({name: value}, dag.reconcile_look_back)
            )


def _columns(table: TableModel) -> Iterator[Finding]:
    if table.keys and table.delta in table.keys:
        yield (
            ("table", "delta"),
            f"column {table.delta!r} is also a key, so no row could ever replace another; name the column that says when a row changed",
        )
    if table.schema_ is None:
        return
    try:
        known = schema_columns(table.schema_)
    except ValueError as error:
        yield ("table", "schema"), str(error)
        return
    for role in COLUMN_ROLES:
        given = getattr(table, role) or []
        for number, column in enumerate([given] if isinstance(given, str) else given):
            if column not in known:
                way: Keys = ("table", role) if isinstance(given, str) else ("table", role, number)
                yield way, f"the schema has no column {shown(column)!r}; {advice(column, known)}"


def _clustered(dag: DagModel, table: TableModel) -> Iterator[Finding]:
    """Columns of the Z-order that the schema does not have; errors in the schema itself are reported for the table."""
    if table.schema_ is None or not isinstance(dag.maintenance, MaintenanceModel):
        return
    with suppress(ValueError):
        known = schema_columns(table.schema_)
        for number, column in enumerate(dag.maintenance.zorder or []):
            if column not in known:
                yield (
                    ("maintenance", "zorder", number),
                    f"the schema has no column {shown(column)!r}; {advice(column, known)}",
                )


def schema_columns(schema: str) -> list[str]:
    """The names of columns in `id BIGINT, at TIMESTAMP, s STRUCT<a: INT, b: INT>`; Spark reads the types."""
    names = []
    for part in schema_parts(schema):
        named = re.fullmatch(
            r"\s*(?:`((?:[^`]|``)+)`|([^\s`:]+))\s*[\s:]\s*(\S.*)", part.strip(), re.DOTALL
        )
        if named is None or not re.match(_TYPE, named[3]):
            raise ValueError(
                f"{shown(part.strip())!r} is no column with a type; write it as 'id BIGINT, at TIMESTAMP'"
            )
        names.append(named[1].replace("``", "`") if named[1] else named[2])
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the schema names {listed(twice)} twice; take one out")
    return names


def schema_parts(schema: str) -> Iterator[str]:
    """Yield the columns of a schema: what lies between commas outside of brackets and quotes."""
    depth, quote, begun = 0, "", 0
    for index, character in enumerate(schema):
        if quote:
            quote = "" if character == quote else quote
        elif character in "`'\"":
            quote = character
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and depth == 0:
            yield schema[begun:index]
            begun = index + 1
        if depth < 0:
            raise ValueError(
                f"a bracket closes after {shown(schema[:index])!r} that was not opened; take it out"
            )
    if depth or quote:
        raise ValueError(
            f"{'a quote' if quote else 'a bracket'} in the schema is not closed; close it"
        )
    yield schema[begun:]


def _templates(dag: DagModel) -> Iterator[Finding]:
    for way, text in _texts(dag.source.model_dump(exclude_none=True), ("source",)):
        yield from ((way, what) for what in template_faults(text, keyed=dag.schedule is not None))
    for way, text in _texts(dag.wait_for.model_dump() if dag.wait_for else None, ("wait_for",)):
        yield from ((way, what) for what in template_faults(text, keyed=dag.schedule is not None))
    for way, text in _texts(dag.business_snapshot, ("business_snapshot",)):
        yield from ((way, what) for what in template_faults(text, keyed=dag.schedule is not None))
    yield from _of_consumers(dag)
    if dag.spark is not None:
        for way, text in _texts(dag.spark.model_dump(exclude_none=True), ("spark",)):
            yield from (
                (way, what) for what in template_faults(text, keyed=dag.schedule is not None)
            )


def _of_consumers(dag: DagModel) -> Iterator[Finding]:
    for name, consumer in dag.consumers.items():
        keyed = dag.schedule is not None or consumer.own_dag
        waits = consumer.wait_for.model_dump() if consumer.wait_for else None
        given = [
            *_texts(consumer.arguments, ("consumers", name, "arguments")),
            *_texts(waits, ("consumers", name, "wait_for")),
        ]
        for way, text in given:
            yield from ((way, what) for what in template_faults(text, keyed=keyed))


def _texts(value: Any, way: Keys) -> Iterator[tuple[Keys, str]]:
    if isinstance(value, str) and re.search(r"\{[{%#]|[}%#]\}", value):
        yield way, value
    elif isinstance(value, dict | list | tuple):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(inner, (*way, key))


def _names(template: "jinja2.nodes.Template") -> set[str]:
    """What a template takes from outside. Jinja's own answer would compute `{{ 9**9**9 }}` on the way."""
    from jinja2.nodes import Name

    variables = list(template.find_all(Name))
    return {node.name for node in variables if node.ctx == "load"} - {
        node.name for node in variables if node.ctx != "load"
    }


@cache
def _environment() -> "jinja2.Environment":
    """Airflow's own, for its filters."""
    from airflow.sdk import DAG

    return DAG("templates").get_template_env(force_sandboxed=True)


def template_faults(text: str, *, keyed: bool) -> Iterator[str]:
    """What Airflow could not fill in."""
    from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS
    from jinja2 import TemplateError

    try:
        names = _names(_environment().parse(text))
    except (TemplateError, RecursionError) as error:
        yield f"{shown(text)!r} is no template ({shown(str(getattr(error, 'message', error)))}); write it as '{{{{ partition_key }}}}'"
        return
    if re.search(r"(?<!\{)\{ *partition_key *\}(?!\})", text):
        yield "'{partition_key}' has single braces and is not rendered; write '{{ partition_key }}'"
    for name in sorted(names):
        if name in UNKEYED and keyed:
            yield f"a run with a partition key has no '{{{{ {name} }}}}'; write '{{{{ partition_key }}}}'"
        elif name not in KNOWN_CONTEXT_KEYS | UNKEYED:
            near = advice(name, sorted(KNOWN_CONTEXT_KEYS - UNKEYED))
            hint = (
                near
                if near.startswith("did you mean")
                else "write '{{ partition_key }}', or a Variable as '{{ var.value.shop_source }}'"
            )
            yield f"Airflow knows no '{{{{ {shown(name)} }}}}'; {hint}"
