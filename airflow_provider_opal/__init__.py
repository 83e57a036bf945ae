"""Airflow's side of the Opal lake: operators, sensors, hooks, assets and DAG templates.

`from airflow_provider_opal import IngestOperator, MetaGenOperator, opal_asset, ...`

Names are loaded when they are first used, so that a DAG file pays only for what it names. Nothing
in this package imports Spark, and nothing that a DAG file needs imports Arrow or numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_opal.assets import (
        consumer_schedule,
        lakechime_asset,
        opal_asset,
        redelivery_asset,
    )
    from airflow_provider_opal.events.macros import decode_events, encode_events
    from airflow_provider_opal.hooks.lakechime import LakeChimeHook
    from airflow_provider_opal.hooks.opal import OpalHook
    from airflow_provider_opal.operators.compaction import CompactionOperator
    from airflow_provider_opal.operators.consume import ConsumeOperator
    from airflow_provider_opal.operators.data_change_event import DataChangeEventOperator
    from airflow_provider_opal.operators.folders.bulk_mutation import BulkMutationOperator
    from airflow_provider_opal.operators.ingest import CreateTable, IngestOperator
    from airflow_provider_opal.operators.lakechime.acknowledge import AcknowledgeOperator
    from airflow_provider_opal.operators.lakechime.relay import RelayOperator
    from airflow_provider_opal.operators.maintenance import MaintenanceOperator
    from airflow_provider_opal.operators.metagen import MetaGenOperator
    from airflow_provider_opal.operators.reconcile import (
        ReconcileOperator,
        ReconcileReportOperator,
    )
    from airflow_provider_opal.operators.restore import RestoreOperator
    from airflow_provider_opal.operators.retention import RetentionOperator
    from airflow_provider_opal.operators.schema_change import SchemaChangeOperator
    from airflow_provider_opal.operators.spark import OpalSparkOperator
    from airflow_provider_opal.operators.sql import SqlOperator
    from airflow_provider_opal.operators.streaming.ingest import StreamingIngestOperator
    from airflow_provider_opal.operators.zorder import ZOrderOperator
    from airflow_provider_opal.sensors.lag import StreamLagSensor
    from airflow_provider_opal.sensors.partition import PartitionTriggerSensor
    from airflow_provider_opal.sensors.snapshot import SnapshotTriggerSensor
    from airflow_provider_opal.streaming.source import Kafka
    from airflow_provider_opal.templates.maintenance import Maintenance, maintenance_dag
    from airflow_provider_opal.templates.pipeline import (
        Consumer,
        Evolve,
        OpalTaskGroup,
        opal_dag,
        reconcile_dag,
    )
    from airflow_provider_opal.templates.relay import relay_dag
    from airflow_provider_opal.templates.schedule import keyed_schedule
    from airflow_provider_opal.templates.wait_for import WaitFor
    from airflow_provider_opal.templates.yaml.loader import load_yaml_dags
    from airflow_provider_opal.triggers.watcher import LakeChimeTrigger
    from opal_lake.source import Files, Jdbc

__all__ = [
    "AcknowledgeOperator",
    "BulkMutationOperator",
    "CompactionOperator",
    "ConsumeOperator",
    "Consumer",
    "CreateTable",
    "DataChangeEventOperator",
    "Evolve",
    "Files",
    "IngestOperator",
    "Jdbc",
    "Kafka",
    "LakeChimeHook",
    "LakeChimeTrigger",
    "Maintenance",
    "MaintenanceOperator",
    "MetaGenOperator",
    "OpalHook",
    "OpalSparkOperator",
    "OpalTaskGroup",
    "PartitionTriggerSensor",
    "ReconcileOperator",
    "ReconcileReportOperator",
    "RelayOperator",
    "RestoreOperator",
    "RetentionOperator",
    "SchemaChangeOperator",
    "SnapshotTriggerSensor",
    "SqlOperator",
    "StreamLagSensor",
    "StreamingIngestOperator",
    "WaitFor",
    "ZOrderOperator",
    "consumer_schedule",
    "decode_events",
    "encode_events",
    "keyed_schedule",
    "lakechime_asset",
    "load_yaml_dags",
    "maintenance_dag",
    "opal_asset",
    "opal_dag",
    "reconcile_dag",
    "redelivery_asset",
    "relay_dag",
]

_MODULES = {
    "AcknowledgeOperator": "airflow_provider_opal.operators.lakechime.acknowledge",
    "BulkMutationOperator": "airflow_provider_opal.operators.folders.bulk_mutation",
    "CompactionOperator": "airflow_provider_opal.operators.compaction",
    "ConsumeOperator": "airflow_provider_opal.operators.consume",
    "Consumer": "airflow_provider_opal.templates.pipeline",
    "DataChangeEventOperator": "airflow_provider_opal.operators.data_change_event",
    "Evolve": "airflow_provider_opal.templates.pipeline",
    "Files": "opal_lake.source",
    "IngestOperator": "airflow_provider_opal.operators.ingest",
    "Jdbc": "opal_lake.source",
    "Kafka": "airflow_provider_opal.streaming.source",
    "LakeChimeHook": "airflow_provider_opal.hooks.lakechime",
    "LakeChimeTrigger": "airflow_provider_opal.triggers.watcher",
    "Maintenance": "airflow_provider_opal.templates.maintenance",
    "MaintenanceOperator": "airflow_provider_opal.operators.maintenance",
    "MetaGenOperator": "airflow_provider_opal.operators.metagen",
    "OpalHook": "airflow_provider_opal.hooks.opal",
    "OpalSparkOperator": "airflow_provider_opal.operators.spark",
    "OpalTaskGroup": "airflow_provider_opal.templates.pipeline",
    "PartitionTriggerSensor": "airflow_provider_opal.sensors.partition",
    "ReconcileOperator": "airflow_provider_opal.operators.reconcile",
    "ReconcileReportOperator": "airflow_provider_opal.operators.reconcile",
    "RelayOperator": "airflow_provider_opal.operators.lakechime.relay",
    "RestoreOperator": "airflow_provider_opal.operators.restore",
    "RetentionOperator": "airflow_provider_opal.operators.retention",
    "SchemaChangeOperator": "airflow_provider_opal.operators.schema_change",
    "SnapshotTriggerSensor": "airflow_provider_opal.sensors.snapshot",
    "SqlOperator": "airflow_provider_opal.operators.sql",
    "StreamLagSensor": "airflow_provider_opal.sensors.lag",
    "StreamingIngestOperator": "airflow_provider_opal.operators.streaming.ingest",
    "CreateTable": "airflow_provider_opal.operators.ingest",
    "WaitFor": "airflow_provider_opal.templates.wait_for",
    "ZOrderOperator": "airflow_provider_opal.operators.zorder",
    "consumer_schedule": "airflow_provider_opal.assets",
    "decode_events": "airflow_provider_opal.events.macros",
    "encode_events": "airflow_provider_opal.events.macros",
    "keyed_schedule": "airflow_provider_opal.templates.schedule",
    "lakechime_asset": "airflow_provider_opal.assets",
    "load_yaml_dags": "airflow_provider_opal.templates.yaml.loader",
    "maintenance_dag": "airflow_provider_opal.templates.maintenance",
    "opal_asset": "airflow_provider_opal.assets",
    "opal_dag": "airflow_provider_opal.templates.pipeline",
    "reconcile_dag": "airflow_provider_opal.templates.pipeline",
    "redelivery_asset": "airflow_provider_opal.assets",
    "relay_dag": "airflow_provider_opal.templates.relay",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
