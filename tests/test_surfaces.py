"""Handwritten surfaces have the arguments of their declaration, except those named here.

Methods of a table and operators are made from declarations; templates, YAML models and flags are
not.
"""

import argparse
import inspect
from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_opal.operators.sql import SqlOperator
from airflow_provider_opal.templates.maintenance import Maintenance
from airflow_provider_opal.templates.pipeline import Consumer, pipeline_of
from airflow_provider_opal.templates.yaml.models import version_1
from opal_lake.arguments.declared import default_of
from opal_lake.cli.command import OpalParser
from opal_lake.cli.look import commands as lake_commands
from opal_lake.operations import NAMES, operation_named
from opal_lake.operations.create import COLUMN_ROLES, NewTable
from opal_spark.cli.jobs import commands as spark_commands
from opal_spark.cli.sql import commands as sql_commands

EVERYWHERE = {"help", "table", "json", "option", "traceback", "token"}
EVERYWHERE |= {"conf", "verbose", "spark", "local"}
PYTHON_ONLY = {"deleted", "application", "positions"}
A_TASK = {"table", "opal_conn_id", "spark_conn_id", "spark", "retries", "retry_delay", "pool"}
THE_RUN = {"partition_key", "after", "version", "replaces"}
OF_ITS_DAG = {"schedule", "approve", "answer_within"}
A_PIPELINE = A_TASK | THE_RUN - {"after", "version"}
A_PIPELINE |= {"lakechime_conn_id", "wait_for", "maintenance", "consumers", "evolve"}
CONSUMER = THE_RUN - {"replaces"} | {"by", "lakechime_conn_id"}
A_SOURCE = {"paths", "format", "source_option", "user_env", "password_env", "header", "columns"}
A_SOURCE |= {"deletes", "order", "jdbc_url", "jdbc_table", "jdbc_query", "source"}


def flags(verb: str) -> set[str]:
    verbs = OpalParser(prog="opal").add_subparsers(dest="command")
    lake_commands(verbs)
    spark_commands(verbs)
    sql_commands(verbs)
    parser: argparse.ArgumentParser = verbs.choices[verb]
    return {action.dest for action in parser._actions} - EVERYWHERE


def arguments(function: Any) -> set[str]:
    return {*inspect.signature(function).parameters} - {"self", "kwargs"}


def keys(model: Any) -> set[str]:
    return {member.alias or name for name, member in model.model_fields.items()}


# A surface: its arguments, the operation, and what only one of the two has
SURFACES: Mapping[str, tuple[set[str], str, set[str]]] = {
    "pipeline_of": (
        arguments(pipeline_of),
        "ingest",
        A_PIPELINE,
    ),
    "Consumer": (arguments(Consumer), "consume", CONSUMER | {"name", "own_dag", "wait_for"}),
    "yaml.TableModel": (
        keys(version_1.TableModel),
        "create",
        {"name", "evolve", "like", "if_absent"},
    ),
    "yaml.MaintenanceModel": (
        keys(version_1.MaintenanceModel),
        "maintain",
        OF_ITS_DAG | {"delete", "dry_run"},
    ),
    "yaml.ConsumerModel": (
        keys(version_1.ConsumerModel),
        "consume",
        CONSUMER | {"own_dag", "wait_for"},
    ),
    "Maintenance": (arguments(Maintenance), "maintain", OF_ITS_DAG | {"delete", "dry_run"}),
    "opal create": (flags("create"), "create", {"property", "properties"}),
    "opal ingest": (flags("ingest"), "ingest", A_SOURCE | {"metagen", "create", "partition_key"}),
    "opal metagen": (flags("metagen"), "metagen", set()),
    "opal read": (flags("read"), "read", {"writer_options", "after"}),
    "opal changes": (flags("changes"), "changes", {"writer_options"}),
    "opal check": (flags("check"), "check", {"memory"}),
    "opal bootstrap": (flags("bootstrap"), "bootstrap", {"property", "properties"}),
    "opal compact": (flags("compact"), "compact", {"mode"}),  # --look-back makes it a major one
    "opal zorder": (flags("zorder"), "zorder", {"columns", "paths"}),
    "opal discard": (flags("discard") | {"token"}, "discard", set()),
    "opal restore": (flags("restore"), "restore", set()),
    "opal retain": (flags("retain"), "retain", set()),
    "opal erase": (flags("erase"), "erase", set()),
    "opal maintain": (flags("maintain"), "maintain", {"keep_files", "delete"}),
    "opal sql": (
        flags("sql") | {"sql", "args", "catalogs"},
        "sql",
        {"text", "file", "arg", "catalog", "format"},
    ),
    "SqlOperator": (arguments(SqlOperator), "sql", {"catalog", "catalogs"}),
    "opal mutate": (flags("mutate"), "mutate", {"paths", "increments", "properties"}),
}


@pytest.mark.parametrize("name", SURFACES)
def test_a_surface_has_the_arguments_of_its_declaration(name: str) -> None:
    given, operation, differing = SURFACES[name]
    declared = {*operation_named(operation).fields()} - PYTHON_ONLY
    if name != "opal discard":
        declared -= {"token"}
    assert given ^ declared == differing


def test_every_operation_has_a_declaration() -> None:
    assert [operation_named(name).name for name in NAMES] == [*NAMES]


def test_the_parts_that_columns_have_are_those_of_a_new_table() -> None:
    lists = {name for name, member in NewTable.fields().items() if default_of(member) == []}
    assert lists | {"keys", "delta"} == {*COLUMN_ROLES}
