"""Version 1 of the YAML files, as pydantic models. Their descriptions are what an editor shows (opal-v1.schema.json).

Keys that are arguments of an operation come from its declaration. A key of `Options` becomes the
argument of its name of `opal_dag` (`yaml/build.py`, `templates/pipeline.py`).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from airflow_provider_opal.assets import DEFAULT_CLUSTER, DEFAULT_LAKECHIME_CONN_ID
from airflow_provider_opal.operators.reconcile import ReconcileSpans
from airflow_provider_opal.sensors.pacing import Pacing
from airflow_provider_opal.templates.pipeline import RECONCILE
from airflow_provider_opal.templates.yaml.models.base import (
    OTHER,
    TEXT,
    Connection,
    ConsumerName,
    Cron,
    DagId,
    Declares,
    Duration,
    Function,
    PartitionValue,
    Strict,
    TableName,
    Text,
    is_text,
)
from airflow_provider_opal.templates.yaml.models.declared import with_arguments_of
from airflow_provider_opal.templates.yaml.models.mutation import MutationModel
from airflow_provider_opal.templates.yaml.models.run_options import RunOptions
from airflow_provider_opal.templates.yaml.models.sources import SourceModel
from opal_lake.definition.conditions.faults import DELETES
from opal_lake.definition.conditions.parser import parse
from opal_lake.operations.create import NewTable
from opal_lake.operations.ingest import IngestRules
from opal_lake.operations.maintain import MaintenancePolicy

VERSION = 1


@with_arguments_of(NewTable, optional=("keys", "delta", "file_format"))
class TableModel(Declares):
    """The table, and what it is made with if it is not there yet."""

    name: TableName = Field(
        description="`shop.orders` lies in <root>/shop/orders of the connection; a whole path or URI stands for itself."
    )

    @field_validator("deletes", check_fields=False)
    @classmethod
    def _of_one_row(cls, value: str | None) -> str | None:
        if (
            value is not None and "{{" not in value
        ):  # what a template becomes is looked at when the table is made
            parse(value, DELETES)
        return value

    @model_validator(mode="after")
    def _whole(self) -> "TableModel":
        given = self.model_fields_set - {"name"}
        keys, delta = self.keys, self.delta
        if given and not (keys and delta):
            need = "'keys' and 'delta'" if not (keys or delta) else "'delta'" if keys else "'keys'"
            raise ValueError(
                f"to make a table, {need} must be given too; add 'keys: [order_id]' and 'delta: updated_at', or write only the name"
            )
        return self


class TableSchedule(Strict):
    """Runs a partition key whenever that table got it."""

    table: TableName = Field(description="The table that is waited for.")
    opal_conn_id: Connection | None = Field(None, description="Its connection, if it is another.")


@with_arguments_of(Pacing)
class WaitForModel(Declares):
    """What must have happened, by LakeChime, to a table of any format before a run begins."""

    table: Text = Field(description="The table's name, as its producer registers it.")
    partition: list[PartitionValue] | None = Field(
        None,
        min_length=1,
        description=(
            "A value a level, as ['{{ partition_key }}', DE]: waits until this partition was registered. Without it: until something was "
            "registered since the last run."
        ),
    )
    tags: dict[str, str] = Field(
        default_factory=dict,
        description="Tags that the event must have, as `completeness.hourly: '99'`.",
    )
    cluster: Text = Field(DEFAULT_CLUSTER, description="The cluster of the table.")
    timeout: Duration | None = Field(
        None, description="How long to wait before the run fails; 7d if not given."
    )
    skip: bool = Field(False, description="Looks once, and skips the run if there is nothing.")
    lakechime_conn_id: Connection = Field(
        DEFAULT_LAKECHIME_CONN_ID, description="The connection of LakeChime."
    )


class ConsumerModel(Strict):
    """A function that is called with what has become visible."""

    function: Function = Field(
        description="`module:function`, of a module that workers can import."
    )
    by: Literal["partition", "version"] = Field(
        "partition", description="Called with the rows of a partition key, or with new versions."
    )
    rows: Literal["visible", "changes"] = Field(
        "visible",
        description="By version: the rows that became visible, or what happened to rows, with the values before and after.",
    )
    own_dag: bool = Field(
        False, description="In a pipeline of its own, <pipeline>.<consumer>, that the table wakes."
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="Found in `change.arguments`; may hold templates."
    )
    wait_for: WaitForModel | None = Field(
        None, description="Another table that the consumer waits for as well."
    )
    lakechime_conn_id: Connection | None = Field(
        None,
        description="Keeps what the consumer has seen in LakeChime by this connection; if not given, Airflow keeps it.",
    )


@with_arguments_of(MaintenancePolicy)
class MaintenanceModel(Declares):
    """Settings of the maintenance DAG. Where one is not given, the table's property of its name counts."""

    schedule: Cron | None = Field("@daily", description="When to check what is due; null: by hand.")
    approve: bool = Field(False, description="Whether a person must approve a deletion first.")
    answer_within: Duration | None = Field(
        None, description="How long to wait for the approval; no answer means no. 20h if not given."
    )


@with_arguments_of(ReconcileSpans, prefix=RECONCILE)
@with_arguments_of(IngestRules)
class Options(RunOptions, Declares):
    """What can be said for all pipelines of a file, under `defaults`, and for each."""

    lakechime_conn_id: Connection | None = Field(
        DEFAULT_LAKECHIME_CONN_ID,
        description="The connection of LakeChime, where commits are registered; null: nowhere.",
    )
    reconcile: Cron | None = Field(
        "@hourly", description="When to look for events that consumers missed; null for never."
    )
    maintenance: Annotated[bool | None, Tag(TEXT)] | Annotated[MaintenanceModel, Tag(OTHER)] = (
        Field(
            None,
            discriminator=Discriminator(is_text),
            description="Maintenance of the table: true, or its settings. It runs as a pipeline of its own, <pipeline>.maintenance.",
        )
    )

    @field_validator("maintenance")
    @classmethod
    def _chosen(cls, value: bool | MaintenanceModel | None) -> MaintenanceModel | None:
        """True is a mapping that says nothing, so that those of `defaults` are taken up; false is none."""
        return (
            value
            if isinstance(value, MaintenanceModel)
            else MaintenanceModel.model_validate({})
            if value
            else None
        )


class DagModel(Options):
    """A pipeline: source, ingest, MetaGen, consumers."""

    table: Annotated[TableName, Tag(TEXT)] | Annotated[TableModel, Tag(OTHER)] = Field(
        discriminator=Discriminator(is_text),
        description="Its name, or `name` with what it is made with.",
    )
    source: SourceModel = Field(description="Where rows come from.")
    schedule: Annotated[Cron | None, Tag(TEXT)] | Annotated[TableSchedule, Tag(OTHER)] = Field(
        discriminator=Discriminator(is_text),
        description="Cron, a preset, null (by hand), or `{table: shop.raw}`: whenever that table got a partition key.",
    )
    wait_for: WaitForModel | None = Field(
        None, description="A table of others that a run waits for before it ingests."
    )
    consumers: dict[ConsumerName, ConsumerModel] = Field(
        default_factory=dict, description="Functions by name."
    )

    @property
    def table_name(self) -> str:
        return self.table if isinstance(self.table, str) else self.table.name


def _no_options() -> Options:
    return Options.model_validate({})


class FileModel(Strict):
    """Pipelines of tables on an Opal lake."""

    version: Literal[1] = Field(description="Of this format.")
    defaults: Options = Field(
        default_factory=_no_options, description="Defaults for all pipelines of this file."
    )
    dags: Annotated[dict[DagId, DagModel], Field(min_length=1)] = Field(
        description="Pipelines by their id."
    )
    mutations: dict[DagId, MutationModel] = Field(
        default_factory=dict, description="Mutations of folders by their id."
    )


class MutationsFile(Strict):
    """A file without tables."""

    version: Literal[1] = Field(description="Of this format.")
    defaults: Options = Field(
        default_factory=_no_options, description="Defaults for all pipelines of this file."
    )
    mutations: Annotated[dict[DagId, MutationModel], Field(min_length=1)] = Field(
        description="Mutations of folders by their id."
    )


MODELS: Mapping[int, tuple[type[FileModel], type[MutationsFile]]] = {
    VERSION: (FileModel, MutationsFile)
}
