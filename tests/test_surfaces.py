"""Every surface of an operation has the arguments of its declaration: names, defaults and types. What is meant to differ says why.

The surfaces: methods of the tables, operators, templates, models of the YAML files, flags of the command line, apps.
"""

import argparse
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_origin

import pytest

from airflow_provider_opal.operators.compaction import CompactionOperator
from airflow_provider_opal.operators.consume import ConsumeOperator
from airflow_provider_opal.operators.folders.bulk_mutation import BulkMutationOperator
from airflow_provider_opal.operators.ingest import IngestOperator, Table
from airflow_provider_opal.operators.maintenance import MaintenanceOperator
from airflow_provider_opal.operators.metagen import MetaGenOperator
from airflow_provider_opal.operators.restore import RestoreOperator
from airflow_provider_opal.operators.retention import RetentionOperator
from airflow_provider_opal.operators.zorder import ZOrderOperator
from airflow_provider_opal.templates.maintenance import Maintenance
from airflow_provider_opal.templates.pipeline import Consumer, pipeline_of
from airflow_provider_opal.templates.yaml.models import version_1
from opal_lake.cli.command import OpalParser
from opal_lake.cli.lake import commands as lake_commands
from opal_lake.job.operations import NAMES
from opal_lake.job.operations.declared import Declared, default_of, is_required, types_of
from opal_lake.job.operations.folder import Mutate
from opal_lake.job.operations.rows import (
    Changes,
    Check,
    Consume,
    Discard,
    MetaGen,
    Read,
    RebuildKeyStore,
)
from opal_lake.job.operations.table import (
    COLUMN_ROLES,
    AddColumns,
    Bootstrap,
    Create,
    Ingest,
    NewTable,
    Restore,
    SetProperties,
)
from opal_lake.job.operations.upkeep import Compact, Maintain, Retain, UpkeepPolicy, ZOrder
from opal_lake.spec.properties import check_properties, plain_properties
from opal_lake.table import Table as LakeTable
from opal_spark.cli.jobs import commands as spark_commands
from opal_spark.submit import operations
from opal_spark.table import OpalTable

APPS = Path(operations.__file__).parent / "apps"
REQUIRED = "required"

# Reasons that come up more than once
SCHEMA = "in Python a schema is Spark's, not a text of SQL"
STORE = "in Python the store's options may be given; a job takes them from Spark"
TOKEN = "a JobSpec has the token beside the operation"
WHERE = "which table, and how its connection and task are called"
SOURCE = "in Python rows may be a DataFrame"
THE_RUN = "the run gives it when the task runs"
ANOTHER_FLAG = "a flag with another form says it"
NOT_ALL = "only a job takes it"


@dataclass(frozen=True, kw_only=True)
class Argument:
    """As a surface has it; types that say nothing are left out."""

    default: Any
    types: frozenset[Any] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Surface:
    """One way to give the arguments of an operation. `differs` has each argument that is more, less or otherwise there, and why."""

    declared: type[Declared]
    arguments: Mapping[str, Argument]
    differs: Mapping[str, str] = field(default_factory=dict)


def shape(kind: Any) -> Any:
    """Lists are lists to JSON, whatever Python calls them."""
    origin = get_origin(kind) or kind
    return (
        list
        if origin in (Sequence, list, tuple)
        else dict
        if origin in (Mapping, dict)
        else float
        if origin is int
        else origin
    )


def shapes(hint: Any) -> frozenset[Any]:
    return (
        frozenset()
        if hint in (Any, inspect.Parameter.empty) or isinstance(hint, str)
        else frozenset(map(shape, types_of(hint)))
    )


def parameters(function: Any) -> dict[str, Argument]:
    found = inspect.signature(function).parameters.values()
    return {
        one.name: Argument(
            default=REQUIRED if one.default is one.empty else one.default,
            types=shapes(one.annotation),
        )
        for one in found
        if one.name != "self" and one.kind is not one.VAR_KEYWORD
    }


def members(made: Any) -> dict[str, Argument]:
    """Of a dataclass."""
    return {
        one.name: Argument(
            default=REQUIRED if is_required(one) else default_of(one), types=shapes(one.type)
        )
        for one in fields(made)
    }


def model_fields(model: Any) -> dict[str, Argument]:
    """Without types: YAML has other ones."""
    found = {member.alias or name: member for name, member in model.model_fields.items()}
    return {
        name: Argument(
            default=REQUIRED if one.is_required() else one.get_default(call_default_factory=True)
        )
        for name, one in found.items()
    }


def parsers() -> dict[str, argparse.ArgumentParser]:
    verbs = OpalParser(prog="opal").add_subparsers(dest="command")
    lake_commands(verbs)
    spark_commands(verbs)
    return verbs.choices


def flags(verb: str) -> dict[str, Argument]:
    """What `add_command` and Spark's part add to every verb is left out."""
    everywhere = {"help", "table", "json", "option", "traceback", "conf", "verbose", "spark"}
    actions = [action for action in parsers()[verb]._actions if action.dest not in everywhere]
    return {
        action.dest: Argument(default=REQUIRED if action.required else action.default)
        for action in actions
    }


def plain(value: Any) -> Any:
    """An empty list or mapping, and False, are no value on any surface."""
    return None if value in ((), [], {}) or value is False else value


def differences(surface: Surface) -> Iterator[str]:
    declared = members(surface.declared)
    yield from declared.keys() ^ surface.arguments.keys()
    for name in declared.keys() & surface.arguments.keys():
        one, other = declared[name], surface.arguments[name]
        if plain(one.default) != plain(other.default) or (
            other.types and one.types - {type(None)} != other.types - {type(None)}
        ):
            yield name


SURFACES = {
    "OpalTable.create": Surface(
        declared=Create,
        arguments=parameters(OpalTable.create),
        differs={"spark": WHERE, "uri": WHERE, "options": STORE, "schema": SCHEMA, "like": SCHEMA}
        | {"if_absent": "OpalTable.for_path opens a table that is there"},
    ),
    "OpalTable.ingest": Surface(
        declared=Ingest,
        arguments=parameters(OpalTable.ingest),
        differs={
            "rows": SOURCE,
            "source": SOURCE,
            "token": TOKEN,
            "create": "OpalTable.create makes a table",
        }
        | {
            "refuse_empty": "in Python it is accepted, as DataFrames often are empty",
            "on_empty": "refuse_empty in Python",
        }
        | {"application": "a stream's own token"},
    ),
    "OpalTable.metagen": Surface(
        declared=MetaGen, arguments=parameters(OpalTable.metagen), differs={"token": TOKEN}
    ),
    "OpalTable.discard": Surface(
        declared=Discard, arguments=parameters(OpalTable.discard), differs={"job_token": TOKEN}
    ),
    "OpalTable.read": Surface(
        declared=Read,
        arguments=parameters(OpalTable.read),
        differs=dict.fromkeys(
            ("limit", "to", "format", "overwrite", "writer_options"),
            "a DataFrame shows and writes its rows itself",
        )
        | {
            "after": "for consumers; Consume has it",
            "timestamp": "also a datetime",
            "event_time": "any value of the delta column",
        },
    ),
    "OpalTable.changes": Surface(
        declared=Changes,
        arguments=parameters(OpalTable.changes),
        differs=dict.fromkeys(
            ("limit", "to", "format", "overwrite", "writer_options"),
            "a DataFrame shows and writes its rows itself",
        )
        | {"start": "also a datetime", "end": "also a datetime"},
    ),
    "OpalTable.check": Surface(
        declared=Check,
        arguments=parameters(OpalTable.check),
        differs={"quick": "opal_lake's check looks at metadata alone"},
    ),
    "OpalTable.set_properties": Surface(
        declared=SetProperties,
        arguments=parameters(OpalTable.set_properties),
        differs={"token": TOKEN},
    ),
    "OpalTable.add_columns": Surface(
        declared=AddColumns,
        arguments=parameters(OpalTable.add_columns),
        differs={"token": TOKEN},
    ),
    "OpalTable.rebuild_key_store": Surface(
        declared=RebuildKeyStore,
        arguments=parameters(OpalTable.rebuild_key_store),
        differs={"token": TOKEN},
    ),
    "OpalTable.compact": Surface(
        declared=Compact, arguments=parameters(OpalTable.compact), differs={"token": TOKEN}
    ),
    "OpalTable.zorder": Surface(
        declared=ZOrder, arguments=parameters(OpalTable.zorder), differs={"token": TOKEN}
    ),
    "OpalTable.retain": Surface(
        declared=Retain, arguments=parameters(OpalTable.retain), differs={"token": TOKEN}
    ),
    "OpalTable.restore": Surface(
        declared=Restore,
        arguments=parameters(OpalTable.restore),
        differs={"token": TOKEN, "timestamp": "also a datetime"},
    ),
    "OpalTable.maintain": Surface(
        declared=Maintain,
        arguments=parameters(OpalTable.maintain),
        differs={"token": TOKEN, "policy": "a mapping with the arguments of an UpkeepPolicy"}
        | dict.fromkeys(UpkeepPolicy.fields(), "in the mapping `policy`"),
    ),
    "OpalTable.bootstrap": Surface(
        declared=Bootstrap,
        arguments=parameters(OpalTable.bootstrap),
        differs={"spark": WHERE, "uri": WHERE, "options": STORE, "schema": SCHEMA},
    ),
    "Table.ingest": Surface(
        declared=Ingest,
        arguments=parameters(LakeTable.ingest),
        differs={
            "rows": SOURCE,
            "source": SOURCE,
            "token": TOKEN,
            "create": "Table.create makes a table",
        }
        | {"deleted": "marks the rows that delete their key", "application": "a stream's own token"}
        | {"positions": "a stream's own offsets"}
        | {
            "refuse_empty": "in Python it is accepted, as for a DataFrame",
            "on_empty": "refuse_empty in Python",
        },
    ),
    "Table.metagen": Surface(
        declared=MetaGen, arguments=parameters(LakeTable.metagen), differs={"token": TOKEN}
    ),
    "Table.discard": Surface(
        declared=Discard, arguments=parameters(LakeTable.discard), differs={"job_token": TOKEN}
    ),
    "Table.retain": Surface(
        declared=Retain, arguments=parameters(LakeTable.retain), differs={"token": TOKEN}
    ),
    "Table.restore": Surface(
        declared=Restore,
        arguments=parameters(LakeTable.restore),
        differs={"token": TOKEN, "timestamp": "also a datetime"},
    ),
    "Table.compact": Surface(
        declared=Compact, arguments=parameters(LakeTable.compact), differs={"token": TOKEN}
    ),
    "Table.zorder": Surface(
        declared=ZOrder, arguments=parameters(LakeTable.zorder), differs={"token": TOKEN}
    ),
    "Table.maintain": Surface(
        declared=Maintain,
        arguments=parameters(LakeTable.maintain),
        differs={"token": TOKEN, "policy": "a mapping with the arguments of an UpkeepPolicy"}
        | dict.fromkeys(UpkeepPolicy.fields(), "in the mapping `policy`"),
    ),
    "Table.rebuild_key_store": Surface(
        declared=RebuildKeyStore,
        arguments=parameters(LakeTable.rebuild_key_store),
        differs={"token": TOKEN},
    ),
    "Table.set_properties": Surface(
        declared=SetProperties,
        arguments=parameters(LakeTable.set_properties),
        differs={"token": TOKEN},
    ),
    "Table.add_columns": Surface(
        declared=AddColumns, arguments=parameters(LakeTable.add_columns), differs={"token": TOKEN}
    ),
    "IngestOperator": Surface(
        declared=Ingest,
        arguments=parameters(IngestOperator.__init__),
        differs={
            "table": WHERE,
            "partition": "partition_key of the job",
            "partition_key": f"{THE_RUN}, or `partition`",
            "replaces": "the tokens of its own earlier tries, after a clear",
        }
        | {"create": "a Table, which extends NewTable, or a mapping"},
    ),
    "MetaGenOperator": Surface(
        declared=MetaGen,
        arguments=parameters(MetaGenOperator.__init__),
        differs={"table": WHERE, "all": "may be a template"},
    ),
    "ConsumeOperator": Surface(
        declared=Consume,
        arguments=parameters(ConsumeOperator.__init__),
        differs={
            "table": WHERE,
            "by": "whether the run gives partition_key or after",
            "partition_key": THE_RUN,
            "after": THE_RUN,
        }
        | {
            "version": THE_RUN,
            "consumer": "whose watermark it is",
            "start": "where a new consumer begins",
        }
        | {"lakechime_conn_id": "where its watermark is kept"},
    ),
    "CompactionOperator": Surface(
        declared=Compact,
        arguments=parameters(CompactionOperator.__init__),
        differs={
            "table": WHERE,
            "only_if_due": "a schedule comes round whether there is work or not",
        },
    ),
    "ZOrderOperator": Surface(
        declared=ZOrder,
        arguments=parameters(ZOrderOperator.__init__),
        differs={
            "table": WHERE,
            "only_if_due": "a schedule comes round whether there is work or not",
        }
        | {"whole": "a schedule does what is new; `opal zorder --whole` does all once"},
    ),
    "RetentionOperator": Surface(
        declared=Retain, arguments=parameters(RetentionOperator.__init__), differs={"table": WHERE}
    ),
    "RestoreOperator": Surface(
        declared=Restore,
        arguments=parameters(RestoreOperator.__init__),
        differs={"table": WHERE, "version": "also a template"},
    ),
    "MaintenanceOperator": Surface(
        declared=Maintain,
        arguments=parameters(MaintenanceOperator.__init__),
        differs={"table": WHERE},
    ),
    "templates.Maintenance": Surface(
        declared=UpkeepPolicy,
        arguments=members(Maintenance),
        differs={"schedule": "of its DAG", "approve": "of its DAG", "answer_within": "of its DAG"},
    ),
    "templates.Table": Surface(declared=NewTable, arguments=members(Table)),
    "templates.pipeline_of": Surface(
        declared=Ingest,
        arguments=parameters(pipeline_of),
        differs=dict.fromkeys(
            ("table", "opal_conn_id", "spark_conn_id", "spark", "retries", "retry_delay", "pool"),
            WHERE,
        )
        | {"lakechime_conn_id": WHERE, "wait_for": "another task", "replaces": THE_RUN}
        | {"partition_key": THE_RUN, "create": "a Table, which extends NewTable, or a mapping"}
        | {"maintenance": "another operation", "consumers": "another operation"},
    ),
    "templates.Consumer": Surface(
        declared=Consume,
        arguments=members(Consumer),
        differs={
            "name": "of its task",
            "by": "whether the run gives partition_key or after",
            "own_dag": "where its task is",
        }
        | {"lakechime_conn_id": "where its watermark is kept", "wait_for": "another task"}
        | {"partition_key": THE_RUN, "after": THE_RUN, "version": THE_RUN},
    ),
    "yaml.TableModel": Surface(
        declared=NewTable,
        arguments=model_fields(version_1.TableModel),
        differs={
            "name": WHERE,
            "keys": "a table that is there needs only its name",
            "delta": "a table that is there needs only its name",
        }
        | {"file_format": "what is not given is left to the default of NewTable"},
    ),
    "yaml.MaintenanceModel": Surface(
        declared=UpkeepPolicy,
        arguments=model_fields(version_1.MaintenanceModel),
        differs={"schedule": "of its DAG", "approve": "of its DAG", "answer_within": "of its DAG"},
    ),
    "yaml.Options": Surface(
        declared=Ingest,
        arguments={
            name: one
            for name, one in model_fields(version_1.Options).items()
            if name in Ingest.fields()
        },
        differs={
            "source": "of a pipeline, not of all",
            "create": "the pipeline's `table` has it",
            "partition_key": THE_RUN,
            "replaces": THE_RUN,
        },
    ),
    "yaml.ConsumerModel": Surface(
        declared=Consume,
        arguments=model_fields(version_1.ConsumerModel),
        differs={
            "by": "whether the run gives partition_key or after",
            "own_dag": "where its task is",
        }
        | {"lakechime_conn_id": "where its watermark is kept", "wait_for": "another task"}
        | {"partition_key": THE_RUN, "after": THE_RUN, "version": THE_RUN},
    ),
    "opal create": Surface(
        declared=Create,
        arguments=flags("create"),
        differs={"property": "NAME=VALUE, of properties", "properties": "--property NAME=VALUE"},
    ),
    "opal ingest": Surface(
        declared=Ingest,
        arguments=flags("ingest"),
        differs=dict.fromkeys(
            ("paths", "format", "source_option", "user_env", "password_env"), "a part of the source"
        )
        | dict.fromkeys(("header", "columns", "deletes", "order"), "a part of the source")
        | dict.fromkeys(("jdbc_url", "jdbc_table", "jdbc_query"), "a part of the source")
        | {
            "source": ANOTHER_FLAG,
            "token": TOKEN,
            "metagen": "another operation",
            "create": "`opal create` makes a table",
        }
        | dict.fromkeys(
            ("on_bad_rows", "on_empty", "metadata"),
            "the flag has no value, and without it the default of Ingest counts",
        )
        | {"partition_key": "keys are for pipelines, whose consumers go by them"},
    ),
    "opal metagen": Surface(declared=MetaGen, arguments=flags("metagen"), differs={"token": TOKEN}),
    "opal read": Surface(
        declared=Read, arguments=flags("read"), differs={"writer_options": NOT_ALL}
    ),
    "opal changes": Surface(
        declared=Changes, arguments=flags("changes"), differs={"writer_options": NOT_ALL}
    ),
    "opal check": Surface(
        declared=Check,
        arguments=flags("check"),
        differs={"memory": "of this process; Spark has its own setting"},
    ),
    "opal rebuild-key-store": Surface(
        declared=RebuildKeyStore, arguments=flags("rebuild-key-store"), differs={"token": TOKEN}
    ),
    "opal bootstrap": Surface(
        declared=Bootstrap,
        arguments=flags("bootstrap"),
        differs={"property": "NAME=VALUE, of properties", "properties": "--property NAME=VALUE"}
        | {"on_bad_rows": "the flag has no value, and without it the default of Bootstrap counts"},
    ),
    "opal compact": Surface(
        declared=Compact,
        arguments=flags("compact"),
        differs={"token": TOKEN, "mode": "major exactly where --look-back is given"},
    ),
    "opal zorder": Surface(
        declared=ZOrder,
        arguments=flags("zorder"),
        differs={"token": TOKEN, "columns": "given without a flag", "paths": "the columns"},
    ),
    "opal discard": Surface(
        declared=Discard, arguments=flags("discard"), differs={"job_token": TOKEN}
    ),
    "opal restore": Surface(declared=Restore, arguments=flags("restore"), differs={"token": TOKEN}),
    "opal retain": Surface(declared=Retain, arguments=flags("retain"), differs={"token": TOKEN}),
    "opal maintain": Surface(
        declared=Maintain,
        arguments=flags("maintain"),
        differs={
            "token": TOKEN,
            "set": "NAME=VALUE, of the policy",
            "keep_files": "not delete",
            "delete": "--keep-files",
        }
        | dict.fromkeys(
            (name for name in UpkeepPolicy.fields() if name != "grace"),
            "--set NAME=VALUE, as `opal set`",
        ),
    ),
    "BulkMutationOperator": Surface(
        declared=Mutate,
        arguments=parameters(BulkMutationOperator.__init__),
        differs={
            "master": WHERE,
            "ids": "may be in `properties`",
            "properties": "arguments by chombo's names",
        }
        | {"increments": "also one path"}
        | dict.fromkeys(
            ("order", "order_type", "deleted_op", "delimiter", "header"),
            "left to `properties`, and then to the default of Mutate",
        ),
    ),
    "opal mutate": Surface(
        declared=Mutate,
        arguments=flags("mutate"),
        differs={
            "token": TOKEN,
            "increments": "given without a flag",
            "paths": "the increments",
            "properties": "a file with arguments",
        }
        | {"ids": "may be in the properties file", "header": "--no-header"}
        | dict.fromkeys(
            ("on_bad_rows", "on_empty"),
            "the flag has no value, and without it the default of Mutate counts",
        ),
    ),
    "opal add-columns": Surface(
        declared=AddColumns,
        arguments=flags("add-columns"),
        differs={
            "token": TOKEN,
            "columns": "given without a flag",
            "paths": "the columns, as NAME:TYPE",
        },
    ),
    "opal set": Surface(
        declared=SetProperties,
        arguments=flags("set"),
        differs={
            "token": TOKEN,
            "properties": "given without a flag",
            "paths": "the properties",
            "default": "a property of null",
        },
    ),
}


@pytest.mark.parametrize("name", SURFACES)
def test_a_surface_has_the_arguments_of_its_declaration(name: str) -> None:
    """A difference without a reason fails, and so does a reason without a difference."""
    assert set(differences(SURFACES[name])) == set(SURFACES[name].differs)


def test_every_declaration_is_on_a_surface_and_every_operation_has_its_app() -> None:
    assert {surface.declared.name for surface in SURFACES.values()} == set(NAMES)
    for name in NAMES:
        assert callable(getattr(operations, name))
        assert (APPS / f"{name}.py").is_file()
    assert {path.stem for path in APPS.glob("*.py")} == {*NAMES, "__init__"}


@pytest.mark.parametrize(
    "surface",
    [
        Surface(declared=ZOrder, arguments={**members(ZOrder), "whole": Argument(default=True)}),
        Surface(
            declared=ZOrder,
            arguments={
                **members(ZOrder),
                "target_mb": Argument(default=None, types=frozenset({str})),
            },
        ),
        Surface(declared=ZOrder, arguments={**members(ZOrder), "depth": Argument(default=None)}),
        Surface(declared=ZOrder, arguments={"columns": Argument(default=REQUIRED)}),
    ],
)
def test_a_difference_is_seen(surface: Surface) -> None:
    assert set(differences(surface))
    assert not set(differences(Surface(declared=ZOrder, arguments=members(ZOrder))))


GOOD: dict[str, list[Any]] = {
    "zorder": [["a"], list("abcdefgh")],
    "window": ["30d", "2w", "1h30m", "0s"],
    "grace": ["45m"],
    "look_back": ["90d", 0, 400],
    "target_mb": [1, 256],
    "small_files": [1, 16],
    "dead_share": [1, 100],
    "unclustered_share": [1, 100],
    "archive_after": ["365d", 5],
    "archive_codec": ["zstd", "zstd:1", "zstd:22"],
}
BAD: dict[str, list[Any]] = {
    "zorder": ["a", [""], ["a", "a"], list("abcdefghi"), 5],
    "window": ["30", "30 days", "1y", 30, ""],
    "grace": ["-1d", 5],
    "look_back": ["90 days", -1, "a"],
    "target_mb": [0, -1, 1.5, "64", True],
    "small_files": [0, 2.5],
    "dead_share": [0, 101, 1.5, "20"],
    "unclustered_share": [0, 101, True],
    "archive_after": ["1y", -1],
    "archive_codec": ["gzip", "zstd:0", "zstd:23", 5],
}


def takes(make: Any, name: str, value: Any) -> bool:
    try:
        make(**{name: value})
    except ValueError:  # pydantic's errors are some, too
        return False
    return True


@pytest.mark.parametrize("name", UpkeepPolicy.fields())
def test_every_surface_of_a_policy_takes_and_refuses_the_same_values(name: str) -> None:
    surfaces: dict[str, Any] = {
        "declaration": Maintain,
        "operator": lambda **given: MaintenanceOperator(task_id="t", table="t", **given),
        "template": Maintenance,
        "yaml": version_1.MaintenanceModel,
    }
    for value in GOOD[name]:
        assert [
            surface for surface, make in surfaces.items() if not takes(make, name, value)
        ] == [], value
    for value in BAD[name]:
        assert [surface for surface, make in surfaces.items() if takes(make, name, value)] == [], (
            value
        )


@pytest.mark.parametrize("name", ["window", "look_back", "archive_after", "archive_codec"])
def test_a_property_is_written_as_the_argument_of_its_name(name: str) -> None:
    def is_property(**given: Any) -> None:
        check_properties(plain_properties(given))

    assert [value for value in GOOD[name] if not takes(is_property, name, value)] == []
    assert [value for value in BAD[name] if takes(is_property, name, value)] == []


def test_the_parts_that_columns_have_are_those_of_a_new_table() -> None:
    assert set(COLUMN_ROLES) < set(NewTable.fields())
    assert {name for name, one in members(NewTable).items() if list in one.types} | {
        "delta"
    } == set(COLUMN_ROLES)
