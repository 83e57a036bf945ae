"""The rules between the values of one pipeline.

Columns must exist in the schema, and templates must be ones that a keyed run can fill in.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_opal.assets import cluster_of
from airflow_provider_opal.partition_keys import check_keys, cron_of
from airflow_provider_opal.secrets import secret_arguments
from airflow_provider_opal.sensors.pacing import Pacing
from airflow_provider_opal.streaming.source import stream_faults
from airflow_provider_opal.templated import is_templated
from airflow_provider_opal.templates.short_spans import short_spans
from airflow_provider_opal.templates.yaml.models.mutation import MutationModel
from airflow_provider_opal.templates.yaml.models.run_options import RunOptions
from airflow_provider_opal.templates.yaml.models.script import ScriptModel
from airflow_provider_opal.templates.yaml.models.version_1 import (
    DagModel,
    MaintenanceModel,
    TableModel,
    WaitForModel,
)
from airflow_provider_opal.templates.yaml.text.problem import (
    Keys,
    advice,
    listed,
    near_name,
    shown,
)
from opal_folder.properties import arguments_of
from opal_lake.arguments.declared import nothing_open
from opal_lake.errors import InvalidInputError
from opal_lake.operations.create import BUILT_IN_DELTA, COLUMN_ROLES
from opal_lake.sql.script import read_script

if TYPE_CHECKING:
    import jinja2
    import jinja2.nodes

Finding = tuple[Keys, str]

# Variables that are missing or empty in a run with a partition key
UNKEYED = frozenset(
    {
        "data_interval_end",
        "data_interval_start",
        "ds",
        "ds_nodash",
        "execution_date",
        "logical_date",
        "next_ds",
        "next_execution_date",
        "prev_data_interval_end_success",
        "prev_data_interval_start_success",
        "prev_ds",
        "prev_execution_date",
        "tomorrow_ds",
        "ts",
        "ts_nodash",
        "ts_nodash_with_tz",
        "yesterday_ds",
    }
)
_HAS_BRACES = re.compile(r"\{[{%#]|[}%#]\}")
# A name, between backticks if it has other characters, and a type
_COLUMN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[^\s`:]+))\s*[\s:]\s*[A-Za-z].*", re.DOTALL
)


def findings(dag: DagModel) -> Iterator[Finding]:
    """Yield all findings of a pipeline, each with the keys below it."""
    yield from _of_runs(dag, dag.schedule)
    yield from _of_ingest(dag)
    yield from _of_stream(dag)
    if isinstance(dag.table, TableModel):
        yield from _columns(dag.table)
        yield from _clustered(dag, dag.table)
    yield from _templates(dag)
    yield from _waits_for_itself(dag)
    yield from _paced(dag.wait_for, ("wait_for",))
    for name, consumer in dag.consumers.items():
        yield from _paced(consumer.wait_for, ("consumers", name, "wait_for"))
        if consumer.rows == "changes" and consumer.by != "version":
            yield (
                ("consumers", name, "rows"),
                "is changes, which needs a consumer by version; add 'by: version'",
            )
        for argument in secret_arguments(consumer.arguments):
            yield (
                ("consumers", name, "arguments"),
                (
                    f"{shown(argument)!r} has the name of a secret, and Airflow would show it; "
                    "name a connection instead"
                ),
            )


def _waits_for_itself(dag: DagModel) -> Iterator[Finding]:
    if dag.wait_for is None:
        return
    own = (dag.table_name, cluster_of(dag.opal_conn_id))
    if (dag.wait_for.table, dag.wait_for.cluster) == own:
        name = shown(dag.table_name)
        what = (
            f"{name!r} is the pipeline's own table, so the pipeline would wait for itself; "
            "name another table"
        )
        yield ("wait_for", "table"), what


def _paced(wait_for: WaitForModel | None, keys: Keys) -> Iterator[Finding]:
    """Yield the first pacing argument if not all of them are given."""
    if wait_for is None:
        return
    arguments = {name: getattr(wait_for, name) for name in Pacing.fields()}
    try:
        Pacing.check_together(arguments, nothing_open)
    except InvalidInputError as error:
        given = [name for name, value in arguments.items() if value is not None]
        yield (*keys, given[0]), f"is not enough: {error}"


def mutation_findings(mutation: MutationModel) -> Iterator[Finding]:
    """Yield all findings of a mutation of a folder."""
    yield from _of_runs(mutation, mutation.schedule)
    if mutation.properties is None and not mutation.ids:
        yield (
            ("ids",),
            (
                "is missing; add 'ids: [id]', the fields of a record's id, "
                "or 'properties' with id.field.ordinals"
            ),
        )
    try:
        # Other keys may give the ids. Missing ids are reported above
        arguments_of(mutation.properties or {"id.field.ordinals": "0"})
    except InvalidInputError as error:
        yield ("properties",), str(error)
    keyed = mutation.schedule is not None
    yield from _template_findings(mutation.to_arguments(), (), keyed=keyed)


def script_findings(script: ScriptModel, folder: Path) -> Iterator[Finding]:
    """Yield all findings of a script, whose files lie below the folder."""
    yield from _of_runs(script, script.schedule)
    keyed = script.schedule is not None
    yield from _template_findings(script.to_arguments(), (), keyed=keyed)
    texts = [script.sql] if isinstance(script.sql, str) else script.sql
    for number, text in enumerate(texts):
        keys: Keys = ("sql",) if isinstance(script.sql, str) else ("sql", number)
        what = _sql_fault(text, folder)
        if what is not None:
            yield keys, what


def _sql_fault(text: str, folder: Path) -> str | None:
    """Return what is wrong with a text or file of statements, None if unknown."""
    if text.endswith(".sql"):
        path = folder / text
        if is_templated(text) or path.is_file():
            return None
        return f"{shown(text)!r} does not exist in {folder}; correct the name, or add the file"
    if is_templated(text):
        return None
    try:
        read_script(text)
    except InvalidInputError as error:
        return str(error)
    return None


def _of_runs(dag: RunOptions, schedule: Any) -> Iterator[Finding]:
    if dag.start_date is None:
        yield ("start_date",), "is missing; add 'start_date: 2026-11-01' here or under 'defaults'"
    elif dag.end_date is not None and _local(dag.end_date) < _local(dag.start_date):
        yield ("end_date",), "is before 'start_date'; write a later day, or remove 'end_date'"
    if isinstance(schedule, str) and dag.partition_key_format is not None:
        try:
            check_keys(cron_of(schedule), dag.partition_key_format, dag.timezone)
        except ValueError as error:
            yield ("partition_key_format",), str(error)


def _local(moment: datetime) -> datetime:
    """Return a moment without its time zone, to compare it with one that has none.

    A moment without a zone is in the pipeline's zone.
    """
    return moment.replace(tzinfo=None)


def _of_ingest(dag: DagModel) -> Iterator[Finding]:
    if dag.reject_threshold is not None and dag.on_bad_rows != "quarantine":
        yield (
            ("reject_threshold",),
            "has no effect without quarantine; add 'on_bad_rows: quarantine'",
        )
    if dag.business_snapshot is not None and dag.business_snapshot_column is not None:
        yield (
            ("business_snapshot_column",),
            "and 'business_snapshot' exclude each other; remove one of the two",
        )
    for name in ("business_snapshot", "business_snapshot_column"):
        if dag.mode == "replace" and getattr(dag, name) is not None:
            yield (name,), "and 'mode: replace' exclude each other; remove one of the two"


def _of_stream(dag: DagModel) -> Iterator[Finding]:
    """Yield the keys of a pipeline that do not fit its source of Kafka."""
    if dag.source.kafka is None:
        return
    has_schema = True  # of a table that exists
    if isinstance(dag.table, TableModel) and dag.table.keys:
        has_schema = dag.table.schema_ is not None
    by = {name: consumer.by for name, consumer in dag.consumers.items()}
    yield from stream_faults(dag.source.kafka.to_source(), dag.schedule, by, has_schema=has_schema)
    for name in ("reject_threshold", "business_snapshot", "business_snapshot_column"):
        if getattr(dag, name) is not None:
            yield (name,), f"does not apply to a stream of Kafka; remove {name!r}"
    if dag.on_empty not in (None, "fail"):
        yield ("on_empty",), "does not apply to a stream of Kafka; remove 'on_empty'"
    if dag.mode not in (None, "append"):
        yield ("mode",), "does not apply to a stream of Kafka; remove 'mode'"


def doubts(dag: DagModel) -> Iterator[Finding]:
    """Yield settings that work but may surprise.

    These are spans so short that a consumer may lose rows that it missed.
    """
    has_own_dags = any(consumer.own_dag for consumer in dag.consumers.values())
    if not dag.maintenance or not has_own_dags or dag.reconcile is None:
        return
    assert isinstance(dag.maintenance, MaintenanceModel)
    properties: Mapping[str, Any] = {}
    if isinstance(dag.table, TableModel):
        properties = dag.table.properties or {}
    for name in ("window", "look_back"):
        value = getattr(dag.maintenance, name)
        keys: Keys = ("maintenance", name)
        if value is None:
            value = properties.get(name)
            keys = ("table", "properties", name)
        for _, what in short_spans({name: value}, dag.reconcile_look_back):
            yield keys, what


def _columns(table: TableModel) -> Iterator[Finding]:
    if table.keys and table.delta in table.keys:
        yield (
            ("table", "delta"),
            (
                f"column {table.delta!r} is also a key, so no row could ever replace another; "
                "name the column that holds when a row changed"
            ),
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
        if isinstance(given, str):
            columns: dict[Keys, str] = {("table", role): given}
        else:
            columns = {("table", role, number): column for number, column in enumerate(given)}
        for keys, column in columns.items():
            is_built_in = (role, column) == ("delta", BUILT_IN_DELTA)
            if column not in known and not is_built_in:
                yield keys, _no_column(column, known)


def _clustered(dag: DagModel, table: TableModel) -> Iterator[Finding]:
    """Yield the columns of the Z-order that the schema does not have.

    Mistakes in the schema itself are reported for the table.
    """
    if table.schema_ is None or not isinstance(dag.maintenance, MaintenanceModel):
        return
    try:
        known = schema_columns(table.schema_)
    except ValueError:
        return
    for number, column in enumerate(dag.maintenance.zorder or []):
        if column not in known:
            yield ("maintenance", "zorder", number), _no_column(column, known)


def _no_column(column: str, known: list[str]) -> str:
    return f"the schema has no column {shown(column)!r}; {advice(column, known)}"


def schema_columns(schema: str) -> list[str]:
    """Return the names of a schema's columns.

    A schema is written as `id BIGINT, at TIMESTAMP, s STRUCT<a: INT, b: INT>`. Spark reads the
    types.
    """
    names = []
    for part in schema_parts(schema):
        column = _COLUMN.fullmatch(part.strip())
        if column is None:
            raise ValueError(
                f"{shown(part.strip())!r} is not a column with a type; "
                "write it as 'id BIGINT, at TIMESTAMP'"
            )
        quoted, plain = column["quoted"], column["plain"]
        names.append(quoted.replace("``", "`") if quoted else plain)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"the schema names {listed(repeated)} twice; name each column once")
    return names


def schema_parts(schema: str) -> Iterator[str]:
    """Yield the texts between a schema's commas outside of brackets and quotes."""
    depth, quote, begin = 0, "", 0  # `quote` is the character that closes an open quote
    for index, character in enumerate(schema):
        if quote:
            if character == quote:
                quote = ""
        elif character in "`'\"":
            quote = character
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and depth == 0:
            yield schema[begin:index]
            begin = index + 1
        if depth < 0:
            raise ValueError(
                f"the schema has a ')' or '>' too many after {shown(schema[:index])!r}; remove it"
            )
    if quote or depth:
        unclosed = "a quote" if quote else "a bracket"
        raise ValueError(f"{unclosed} in the schema is not closed; close it")
    yield schema[begin:]


def _templates(dag: DagModel) -> Iterator[Finding]:
    keyed = dag.schedule is not None
    source = dag.source.model_dump(exclude_none=True)
    yield from _template_findings(source, ("source",), keyed=keyed)
    if dag.wait_for is not None:
        yield from _template_findings(dag.wait_for.model_dump(), ("wait_for",), keyed=keyed)
    yield from _template_findings(dag.business_snapshot, ("business_snapshot",), keyed=keyed)
    for name, consumer in dag.consumers.items():
        keys: Keys = ("consumers", name)
        is_keyed = keyed or consumer.own_dag
        yield from _template_findings(consumer.arguments, (*keys, "arguments"), keyed=is_keyed)
        if consumer.wait_for is not None:
            wait_for = consumer.wait_for.model_dump()
            yield from _template_findings(wait_for, (*keys, "wait_for"), keyed=is_keyed)
    if dag.spark is not None:
        spark = dag.spark.model_dump(exclude_none=True)
        yield from _template_findings(spark, ("spark",), keyed=keyed)


def _template_findings(value: Any, keys: Keys, *, keyed: bool) -> Iterator[Finding]:
    """Yield the faults of all templates in a value, which may be nested."""
    if isinstance(value, str) and _HAS_BRACES.search(value):
        for what in template_faults(value, keyed=keyed):
            yield keys, what
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _template_findings(inner, (*keys, key), keyed=keyed)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _template_findings(inner, (*keys, number), keyed=keyed)


def _names(template: "jinja2.nodes.Template") -> set[str]:
    """Return the variables that a template needs.

    Jinja's own function for this would compute constants such as `{{ 9**9**9 }}`.
    """
    from jinja2.nodes import Name

    loaded, assigned = set[str](), set[str]()
    for variable in template.find_all(Name):
        names = loaded if variable.ctx == "load" else assigned
        names.add(variable.name)
    return loaded - assigned


@cache
def _environment() -> "jinja2.Environment":
    """Return Airflow's own environment, for its filters."""
    from airflow.sdk import DAG

    return DAG("templates").get_template_env(force_sandboxed=True)


def template_faults(text: str, *, keyed: bool) -> Iterator[str]:
    """Yield messages about parts of a template that Airflow cannot fill in."""
    from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS
    from jinja2 import TemplateError

    try:
        names = _names(_environment().parse(text))
    except (TemplateError, RecursionError) as error:
        reason = shown(str(getattr(error, "message", error)))
        yield (
            f"{shown(text)!r} is not a template ({reason}); write it as '{{{{ partition_key }}}}'"
        )
        return
    if re.search(r"(?<!\{)\{ *partition_key *\}(?!\})", text):
        yield "'{partition_key}' has single braces and is not rendered; write '{{ partition_key }}'"
    for name in sorted(names):
        template = f"'{{{{ {shown(name)} }}}}'"
        if name in UNKEYED and keyed:
            yield (
                f"{template} is empty in a run with a partition key; "
                "write '{{ partition_key }}'"
            )
        elif name not in KNOWN_CONTEXT_KEYS | UNKEYED:
            near = near_name(name, sorted(KNOWN_CONTEXT_KEYS - UNKEYED))
            hint = near or (
                "write '{{ partition_key }}', or a Variable such as '{{ var.value.shop_source }}'"
            )
            yield f"Airflow does not know {template}; {hint}"
