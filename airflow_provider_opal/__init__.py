"""Airflow's side of the Opal lake: `from airflow_provider_opal import IngestOperator, MetaGenOperator, opal_asset, ...`.

Names are loaded when they are first used, so that a DAG file pays for what it names. Nothing here imports Spark, ever, and nothing that a
DAG file needs imports Arrow or numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_opal.assets import consumer_schedule, opal_asset, redelivery_asset
    from airflow_provider_opal.hooks.opal import OpalHook
    from airflow_provider_opal.operators.compaction import CompactionOperator
    from airflow_provider_opal.operators.consume import ConsumeOperator
    from airflow_provider_opal.operators.ingest import IngestOperator, Table
    from airflow_provider_opal.operators.maintenance import MaintenanceOperator
    from airflow_provider_opal.operators.metagen import MetaGenOperator
    from airflow_provider_opal.operators.reconcile import ReconcileOperator
    from airflow_provider_opal.operators.restore import RestoreOperator
    from airflow_provider_opal.operators.retention import RetentionOperator
    from airflow_provider_opal.operators.spark import OpalSparkOperator
    from airflow_provider_opal.operators.zorder import ZOrderOperator
    from airflow_provider_opal.sensors.snapshot import SnapshotTriggerSensor
    from airflow_provider_opal.templates.maintenance import Maintenance, maintenance_dag
    from airflow_provider_opal.templates.pipeline import Consumer, OpalTaskGroup, opal_dag, reconcile_dag
    from airflow_provider_opal.templates.schedule import keyed_schedule
    from airflow_provider_opal.templates.yaml.loader import load_yaml_dags
    from opal_lake.job.source import Files, Jdbc

__all__ = [
    "CompactionOperator",
    "ConsumeOperator",
    "Consumer",
    "Files",
    "IngestOperator",
    "Jdbc",
    "Maintenance",
    "MaintenanceOperator",
    "MetaGenOperator",
    "OpalHook",
    "OpalSparkOperator",
    "OpalTaskGroup",
    "ReconcileOperator",
    "RestoreOperator",
    "RetentionOperator",
    "SnapshotTriggerSensor",
    "Table",
    "ZOrderOperator",
    "consumer_schedule",
    "keyed_schedule",
    "load_yaml_dags",
    "maintenance_dag",
    "opal_asset",
    "opal_dag",
    "reconcile_dag",
    "redelivery_asset",
]

_MODULES = {
    "CompactionOperator": "airflow_provider_opal.operators.compaction",
    "ConsumeOperator": "airflow_provider_opal.operators.consume",
    "Consumer": "airflow_provider_opal.templates.pipeline",
    "Files": "opal_lake.job.source",
    "IngestOperator": "airflow_provider_opal.operators.ingest",
    "Jdbc": "opal_lake.job.source",
    "Maintenance": "airflow_provider_opal.templates.maintenance",
    "MaintenanceOperator": "airflow_provider_opal.operators.maintenance",
    "MetaGenOperator": "airflow_provider_opal.operators.metagen",
    "OpalHook": "airflow_provider_opal.hooks.opal",
    "OpalSparkOperator": "airflow_provider_opal.operators.spark",
    "OpalTaskGroup": "airflow_provider_opal.templates.pipeline",
    "ReconcileOperator": "airflow_provider_opal.operators.reconcile",
    "RestoreOperator": "airflow_provider_opal.operators.restore",
    "RetentionOperator": "airflow_provider_opal.operators.retention",
    "SnapshotTriggerSensor": "airflow_provider_opal.sensors.snapshot",
    "Table": "airflow_provider_opal.operators.ingest",
    "ZOrderOperator": "airflow_provider_opal.operators.zorder",
    "consumer_schedule": "airflow_provider_opal.assets",
    "keyed_schedule": "airflow_provider_opal.templates.schedule",
    "load_yaml_dags": "airflow_provider_opal.templates.yaml.loader",
    "maintenance_dag": "airflow_provider_opal.templates.maintenance",
    "opal_asset": "airflow_provider_opal.assets",
    "opal_dag": "airflow_provider_opal.templates.pipeline",
    "reconcile_dag": "airflow_provider_opal.templates.pipeline",
    "redelivery_asset": "airflow_provider_opal.assets",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
