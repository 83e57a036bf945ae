"""Version 1 of the YAML files, as pydantic models.

Editors show their descriptions (opal-v1.schema.json).

Keys that are arguments of an operation come from its declaration. A key of `Options` becomes the
argument of its name of `opal_dag` (`yaml/build.py`, `templates/pipeline.py`).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

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
from airflow_provider_opal.templates.yaml.models.script import ScriptModel
from airflow_provider_opal.templates.yaml.models.sources import SourceModel
from airflow_provider_opal.templates.yaml.models.values import distinct
from opal_lake.definition.conditions.faults import DELETES
from opal_lake.definition.conditions.parser import parse
from opal_lake.definition.constraints import check_constraint, use_of_generated
from opal_lake.operations.create import NewTable
from opal_lake.operations.ingest import IngestRules
from opal_lake.operations.maintain import MaintenancePolicy

VERSION = 1


class EvolveModel(Strict):
    """Former names and dropped columns, which a schema cannot show."""

    renamed: dict[Text, Text] = Field(
        default_factory=dict,
        description="Former names of columns and members, such as `amount: total`.",
    )
    dropped: Annotated[list[Text], AfterValidator(distinct)] = Field(
        default_factory=list, description="Columns and members that the table should not have."
    )


@with_arguments_of(NewTable, optional=("keys", "delta", "file_format"))
class TableModel(Declares):
    """The table, and its definition if it does not exist yet."""

    name: TableName = Field(
        description="The table's name: `shop.orders` lies in <root>/shop/orders of the connection. "
        "A whole path or a URI is also allowed."
    )
    evolve: Annotated[bool | None, Tag(TEXT)] | Annotated[EvolveModel, Tag(OTHER)] = Field(
        None,
        discriminator=Discriminator(is_text),
        description="Whether an existing table gets the columns of `schema` before each ingest: "
        "true, or former names and dropped columns, which a schema cannot show.",
    )

    @property
    def beyond_schema(self) -> dict[str, Any]:
        """The arguments of an Evolve: former names and dropped columns."""
        return self.evolve.model_dump() if isinstance(self.evolve, EvolveModel) else {}

    @field_validator("deletes", check_fields=False)
    @classmethod
    def _of_one_row(cls, value: str | None) -> str | None:
        # A template is parsed when the table is made
        if value is not None and "{{" not in value:
            parse(value, DELETES)
        return value

    @field_validator("constraints", check_fields=False)
    @classmethod
    def _of_rows(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for name, text in (value or {}).items():
            if "{{" not in text:
                check_constraint(name, text)
        return value

    @field_validator("generated", check_fields=False)
    @classmethod
    def _of_columns(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for name, text in (value or {}).items():
            if "{{" not in text:
                parse(text, use_of_generated(name))
        return value

    @model_validator(mode="after")
    def _whole(self) -> "TableModel":
        given = self.model_fields_set - {"name"}
        missing = [name for name in ("keys", "delta") if not getattr(self, name)]
        if given and missing:
            names = " and ".join(map(repr, missing))
            raise ValueError(
                f"{names} must be given too to create a table; "
                "add 'keys: [order_id]' and 'delta: updated_at', or give only the table's name"
            )
        if self.evolve and self.schema_ is None:
            raise ValueError("'evolve' needs 'schema', whose columns the table gets; add it")
        return self


class TableSchedule(Strict):
    """A schedule with a run for each new partition key of another table."""

    table: TableName = Field(description="The table whose partition keys start runs.")
    opal_conn_id: Connection | None = Field(
        None, description="The connection of that table, if it is another one."
    )


@with_arguments_of(Pacing)
class WaitForModel(Declares):
    """The event of another table, of any format, that a run waits for."""

    table: Text = Field(description="The table's name, as its producer registers it.")
    partition: list[PartitionValue] | None = Field(
        None,
        min_length=1,
        description=(
            "A value for each level, such as ['{{ partition_key }}', DE]: the run waits for an "
            "event of this partition. Default: it waits for an event since the last run."
        ),
    )
    tags: dict[str, str] = Field(
        default_factory=dict,
        description="Tags that the event must have, such as `completeness.hourly: '99'`.",
    )
    cluster: Text = Field(DEFAULT_CLUSTER, description="The cluster of the table.")
    timeout: Duration | None = Field(
        None, description="The time to wait before the run fails. Default: 7d."
    )
    skip: bool = Field(
        False, description="Whether to look once, and skip the run if the event is missing."
    )
    lakechime_conn_id: Connection = Field(
        DEFAULT_LAKECHIME_CONN_ID, description="The connection of LakeChime."
    )


class ConsumerModel(Strict):
    """A function that is called with rows that have become visible."""

    function: Function = Field(
        description="`module:function`, of a module that workers can import."
    )
    by: Literal["partition", "version"] = Field(
        "partition", description="Whether it gets the rows of a partition key, or of new versions."
    )
    rows: Literal["visible", "changes"] = Field(
        "visible",
        description="By version: the rows that became visible, or the changes of rows, "
        "with the values before and after.",
    )
    own_dag: bool = Field(
        False,
        description="Whether it has its own DAG, <pipeline>.<consumer>, which the table triggers.",
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="Values for the function, which reads them from its argument: "
        '`change.arguments["name"]`. May hold templates.',
    )
    wait_for: WaitForModel | None = Field(
        None, description="Another table that the consumer waits for too."
    )
    lakechime_conn_id: Connection | None = Field(
        None,
        description="The connection of LakeChime that stores the consumer's progress. "
        "Default: Airflow stores it.",
    )


@with_arguments_of(MaintenancePolicy)
class MaintenanceModel(Declares):
    """Settings of the maintenance DAG; their defaults are the table's properties."""

    schedule: Cron | None = Field("@daily", description="When to check what is due. null: by hand.")
    approve: bool = Field(False, description="Whether a human must approve deletions.")
    answer_within: Duration | None = Field(
        None,
        description="The time to wait for the approval. No answer is a rejection. Default: 20h.",
    )


@with_arguments_of(ReconcileSpans, prefix=RECONCILE)
@with_arguments_of(IngestRules)
class Options(RunOptions, Declares):
    """The options of a pipeline; `defaults` may give them for a whole file."""

    lakechime_conn_id: Connection | None = Field(
        DEFAULT_LAKECHIME_CONN_ID,
        description="The connection of the LakeChime that registers commits. null: none.",
    )
    reconcile: Cron | None = Field(
        "@hourly", description="When to emit events again that consumers missed. null: never."
    )
    maintenance: Annotated[bool | None, Tag(TEXT)] | Annotated[MaintenanceModel, Tag(OTHER)] = (
        Field(
            None,
            discriminator=Discriminator(is_text),
            description="Maintenance of the table: true, or its settings. "
            "It runs in a separate DAG, <pipeline>.maintenance.",
        )
    )

    @field_validator("maintenance")
    @classmethod
    def _chosen(cls, value: bool | MaintenanceModel | None) -> MaintenanceModel | None:
        """Return the settings of the maintenance, or None for false.

        True becomes an empty model, so that the settings of `defaults` hold.
        """
        if isinstance(value, MaintenanceModel):
            return value
        return MaintenanceModel.model_validate({}) if value else None


class DagModel(Options):
    """A pipeline: source, ingest, MetaGen, consumers."""

    table: Annotated[TableName, Tag(TEXT)] | Annotated[TableModel, Tag(OTHER)] = Field(
        discriminator=Discriminator(is_text),
        description="The table's name, or `name` with the definition of a new table.",
    )
    source: SourceModel = Field(description="The source of rows.")
    schedule: Annotated[Cron | None, Tag(TEXT)] | Annotated[TableSchedule, Tag(OTHER)] = Field(
        discriminator=Discriminator(is_text),
        description="Cron, a preset, null (by hand), or `{table: shop.raw}`: "
        "a run for each new partition key of that table.",
    )
    wait_for: WaitForModel | None = Field(
        None, description="A foreign table that a run waits for before it ingests."
    )
    consumers: dict[ConsumerName, ConsumerModel] = Field(
        default_factory=dict, description="Functions that get the new rows, by name."
    )

    @property
    def table_name(self) -> str:
        if isinstance(self.table, str):
            return self.table
        return self.table.name


def _no_options() -> Options:
    return Options.model_validate({})


class _File(Strict):
    """The keys of every file."""

    version: Literal[1] = Field(description="The version of this format.")
    defaults: Options = Field(
        default_factory=_no_options, description="Defaults for all pipelines of this file."
    )


class FileModel(_File):
    """Pipelines of tables on an Opal lake."""

    dags: Annotated[dict[DagId, DagModel], Field(min_length=1)] = Field(
        description="Pipelines by their id."
    )
    mutations: dict[DagId, MutationModel] = Field(
        default_factory=dict, description="Mutations of folders by their id."
    )
    scripts: dict[DagId, ScriptModel] = Field(
        default_factory=dict, description="Scripts of SQL by their id."
    )


class MutationsFile(_File):
    """A file without pipelines of tables."""

    mutations: Annotated[dict[DagId, MutationModel], Field(min_length=1)] = Field(
        description="Mutations of folders by their id."
    )
    scripts: dict[DagId, ScriptModel] = Field(
        default_factory=dict, description="Scripts of SQL by their id."
    )


class ScriptsFile(_File):
    """A file of scripts only."""

    scripts: Annotated[dict[DagId, ScriptModel], Field(min_length=1)] = Field(
        description="Scripts of SQL by their id."
    )


AnyFile = type[FileModel] | type[MutationsFile] | type[ScriptsFile]
# Of each version: the model of a file by the first of these keys that the file has
MODELS: Mapping[int, Mapping[str, AnyFile]] = {
    VERSION: {"dags": FileModel, "mutations": MutationsFile, "scripts": ScriptsFile}
}
