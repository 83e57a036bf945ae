"""The reference of the names that DAG files import from the provider, from the classes."""

import inspect
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_type_hints

import airflow_provider_opal
from docs.hooks.yaml_reference import SCHEMA
from opal_lake.arguments.declared import Declared, help_of

# Each name of the provider belongs to one part of the reference
GROUPS = {
    "operators": (
        "IngestOperator",
        "CreateTable",
        "MetaGenOperator",
        "ConsumeOperator",
        "CompactionOperator",
        "ZOrderOperator",
        "RetentionOperator",
        "MaintenanceOperator",
        "RestoreOperator",
        "SchemaChangeOperator",
        "SqlOperator",
        "StreamingIngestOperator",
        "BulkMutationOperator",
        "ReconcileOperator",
        "ReconcileReportOperator",
        "DataChangeEventOperator",
        "RelayOperator",
        "AcknowledgeOperator",
        "OpalSparkOperator",
    ),
    "sensors": ("SnapshotTriggerSensor", "PartitionTriggerSensor", "StreamLagSensor"),
    "hooks": ("OpalHook", "LakeChimeHook", "LakeChimeTrigger", "encode_events", "decode_events"),
    "sources": ("Files", "Jdbc"),
    "kafka": ("Kafka",),
    "consumer": ("Consumer", "WaitFor", "consumer_schedule"),
    "templates": (
        "opal_dag",
        "OpalTaskGroup",
        "Evolve",
        "Maintenance",
        "maintenance_dag",
        "reconcile_dag",
        "relay_dag",
        "load_yaml_dags",
        "keyed_schedule",
        "opal_asset",
        "lakechime_asset",
        "redelivery_asset",
    ),
}
# Keys of YAML mean what arguments of the same name mean: the model of each name
MODELS = {
    "AcknowledgeOperator": "WaitForModel",
    "BulkMutationOperator": "MutationModel",
    "ConsumeOperator": "ConsumerModel",
    "Consumer": "ConsumerModel",
    "CreateTable": "TableModel",
    "DataChangeEventOperator": "WaitForModel",
    "Evolve": "EvolveModel",
    "Files": "FilesModel",
    "Jdbc": "JdbcModel",
    "Kafka": "KafkaModel",
    "LakeChimeTrigger": "WaitForModel",
    "Maintenance": "MaintenanceModel",
    "PartitionTriggerSensor": "WaitForModel",
    "RelayOperator": "WaitForModel",
    "SnapshotTriggerSensor": "WaitForModel",
    "SqlOperator": "ScriptModel",
    "WaitFor": "WaitForModel",
    "relay_dag": "WaitForModel",
}
COMMON_MODEL = "DagModel"
RECONCILING = {
    "look_back": "how far the first reconcile of a consumer goes back",
    "grace": "younger changes wait: their run may be about to start",
    "again": "a delivered key that was not acknowledged is emitted again after this time",
}
# Arguments that no declaration and no YAML key describes
MEANINGS = RECONCILING | {
    "acknowledge": "false: an AcknowledgeOperator moves the watermark, not the sensor",
    "app": "the path of the app in the image of a cluster; by default it is uploaded",
    "arguments": "the arguments of the operation",
    "consumer": "the name of whoever reads; by default `<dag>.<task>`",
    "consumer_dag_id": "the DAG of the consumer, if its name does not say it",
    "create": "a `CreateTable`: how to create the table if it does not exist",
    "dag_id": "the name of the DAG",
    "deferrable": "true: wait in the triggerer, without a worker slot",
    "group_id": "the name of the task group",
    "kafka_conn_id": "the connection of Kafka; by default `kafka_default`",
    "keyed": "true: refuse a DAG run without a partition key",
    "lakechime_conn_ids": "the connection of each consumer whose progress LakeChime stores",
    "longest": "how long a run waits before it skips and begins again",
    "max_delay": "the age that the oldest unread message may have",
    "max_events": "the most events of a run",
    "max_messages": "the messages that the table may lack",
    "max_versions": "the most versions of a run",
    "most": "the most keys that are emitted at a time",
    "name": "its name",
    "partition": "the partition key of the rows; by default that of the DAG run",
    "path": "the loader itself: `__file__`",
    "poke_interval": "how often it looks, in seconds",
    "poke_interval_s": "how often it looks, in seconds",
    "relay": "more arguments of the RelayOperator",
    "restarts": "how often in a row a failed process is started again",
    "skip_when_empty": "true: look once, and skip if there is nothing",
    "snapshots": "true: the asset whose keys are snapshots, not partitions",
    "start": '`"head"`: only what comes; `"all"`: from the first; or a number',
    "tables": "the tables: names, or pairs of cluster and name",
    "task": "arguments of all Spark tasks: connections, retries, pool, Spark's settings",
    "topics": "the topic, or a list of them",
    "trigger_rule": "as in every Airflow task: it runs also if a reconcile failed",
    "versions": "true: the asset whose keys are versions, not partition keys",
}
OWN_MEANINGS: Mapping[str, Mapping[str, str]] = {
    "AcknowledgeOperator": {"sensor": "the sensor's task, or its task id"},
    "CompactionOperator": {"mode": '`"minor"` keeps all history, `"major"` drops old rows'},
    "DataChangeEventOperator": {
        "dataset": "the table's name in LakeChime",
        "start_time": "the start of the span: a time, ISO text, or milliseconds since 1970",
        "end_time": "the end of the span, which is not included",
    },
    "MaintenanceOperator": {"delete": "false: leave retention out"},
    "OpalSparkOperator": {"name": "the name of the Spark application"},
    "ReconcileOperator": RECONCILING | {"by": '`"partition"` or `"version"`, as the consumer'},
    "SnapshotTriggerSensor": {
        "mode": '`"any"` or `"all"` of the tables must have something new; '
        'or Airflow\'s `"poke"` or `"reschedule"`'
    },
    "SqlOperator": {
        "args": "the values of parameters such as `:day`",
        "catalog": "the name of the lake's root in statements",
        "limit": "at most so many rows of a query in the log; 0: all",
        "sql": "statements, a list of texts, or the name of a template file that ends in .sql",
    },
    "StreamLagSensor": {
        "name": "the stream's name",
        "bootstrap_servers": "hosts and ports of Kafka, instead of a connection",
    },
    "StreamingIngestOperator": {
        "on_bad_message": '`"fail"` stops the stream, `"quarantine"` puts the message aside',
        "start_timestamp": "the start of the interval to read",
        "end_timestamp": "the end of the interval, which is not included",
    },
    "ZOrderOperator": {"columns": "1 to 8 columns that queries filter by"},
    "consumer_schedule": {"by": '`"partition"` or `"version"`, as the consumer'},
    "decode_events": {
        "argument": "what `encode_events` returned",
        "client": "a client of LakeChime, for events that did not fit into the argument",
    },
    "encode_events": {"events": "the events, as an operator or a sensor returned them"},
    "lakechime_asset": {"cluster": "the cluster of the table"},
    "reconcile_dag": RECONCILING,
    "relay_dag": {"event_tags": "tags that an event must have"},
}


def group(name: str) -> str:
    """Return the reference of the names of a group, each under a heading."""
    lines: list[str] = []
    for member in GROUPS[name]:
        lines += _entry(member)
    return "\n".join(lines)


def _entry(name: str) -> Iterator[str]:
    item = getattr(airflow_provider_opal, name)
    yield from (f"### `{name}`", "", inspect.getdoc(item) or "", "")
    parameters = inspect.signature(item).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD]
    if named:
        helps = _helps(item)
        yield from ("| argument | default | meaning |", "|---|---|---|")
        for parameter in named:
            yield _row(parameter, helps.get(parameter.name, ""))
        yield ""
    others = _others(item, takes_more=len(named) < len(parameters))
    if others:
        yield from (others, "")


def _row(parameter: inspect.Parameter, meaning: str) -> str:
    default = "required"
    if parameter.default is not parameter.empty:
        default = _default(parameter.default)
    cell = meaning.replace("|", "\\|")
    return f"| `{parameter.name}` | {default} | {cell} |"


def _default(value: Any) -> str:
    """Return a default as code, or an empty text for None and a factory."""
    is_factory = type(value).__name__ == "_HAS_DEFAULT_FACTORY_CLASS"
    if is_factory or value is None:
        return ""
    return f"`{value!r}`"


def _helps(item: Any) -> Mapping[str, str]:
    """Return the meanings of an item's arguments, by name.

    They come from MEANINGS, the keys of YAML, the declaration and OWN_MEANINGS; the last of them
    with a name wins.
    """
    texts = dict(MEANINGS) | _descriptions(COMMON_MODEL)
    model = MODELS.get(item.__name__)
    if model is not None:
        texts |= _descriptions(model)
    declared = getattr(item, "declared", item)
    if isinstance(declared, type) and issubclass(declared, Declared):
        for name, hint in get_type_hints(declared, include_extras=True).items():
            declared_help = help_of(hint)
            if declared_help is not None:
                texts[name] = declared_help.text
    texts.update(OWN_MEANINGS.get(item.__name__, {}))
    return texts


@cache
def _descriptions(model: str) -> dict[str, str]:
    """Return the descriptions of the keys of a model of the YAML files."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    properties = schema["$defs"][model]["properties"]
    return {name: value.get("description", "") for name, value in properties.items()}


def _others(item: Any, *, takes_more: bool) -> str | None:
    """Return a sentence on the arguments that a class passes on, or None."""
    if not takes_more or not isinstance(item, type):
        return None
    if item.__name__ == "OpalSparkOperator" or "Sensor" in item.__name__:
        return "It also takes the arguments of every Airflow task."
    return (
        "It also takes the arguments of [`OpalSparkOperator`](#opalsparkoperator) "
        "and of every Airflow task."
    )
