"""A mutation of a folder in YAML: the arguments of BulkMutationOperator and of a DAG."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from airflow_provider_opal.templates.yaml.models.base import (
    OTHER,
    TEXT,
    Column,
    Columns,
    Cron,
    Settings,
    Text,
    is_text,
)
from airflow_provider_opal.templates.yaml.models.run_options import RunOptions
from opal_lake.operations.mutate import ORDER_TYPES, Mutate
from opal_lake.source import FOLDER_FORMATS

FolderFormat = Literal[FOLDER_FORMATS]  # type: ignore[valid-type]  # the tuple is constant


class MutationModel(RunOptions):
    """Files of inserts, updates and deletes, merged into a folder of files."""

    master: Text = Field(description="The folder that is updated. May hold `{{ partition_key }}`.")
    increments: (
        Annotated[Text, Tag(TEXT)] | Annotated[list[Text], Field(min_length=1), Tag(OTHER)]
    ) = Field(
        discriminator=Discriminator(is_text),
        description="The files: a path, a folder or a glob, or a list of them.",
    )
    schedule: Cron | None = Field(description="Cron, a preset, or null (by hand).")
    ids: Columns | None = Field(
        None,
        description="The fields of a record's id, by name or by ordinal from 0, such as ['0'].",
    )
    order: Column | None = Field(
        None,
        description="The order of changes: a field, `file_suffix` or `file_position`. "
        "Default: `file_position`.",
    )
    order_type: Literal[ORDER_TYPES] | None = Field(  # type: ignore[valid-type]  # as above
        None, description="The order of a field of text. Default: numeric."
    )
    op_field: Column | None = Field(
        None, description="The field that holds the operation of a row."
    )
    deleted_op: Text | None = Field(
        None, description="The value of `op_field` in rows that delete their record. Default: D."
    )
    delete_prefix: Text | None = Field(
        None, description="Files whose names begin with this hold deletes: rows, or only ids."
    )
    partition_by: Columns | None = Field(
        None, description="The fields that a new master is partitioned by."
    )
    fixed_partitions: bool | None = Field(
        None,
        description=(
            "Promise that no record changes its partition: read only those of the increments."
        ),
    )
    schema_: Text | None = Field(
        None,
        alias="schema",
        description="The fields as in CREATE TABLE. Default: those of the files.",
    )
    format: FolderFormat | None = Field(
        None, description="The format of the master. Default: by the files."
    )
    increment_format: FolderFormat | None = Field(
        None, description="The format of the increments. Default: by the files."
    )
    output_format: FolderFormat | None = Field(
        None, description="The format of the new master. Default: that of the old one."
    )
    delimiter: Text | None = Field(
        None, description="The character between the fields of CSV. Default: a comma."
    )
    header: bool | None = Field(
        None, description="Whether CSV files begin with a line of names. Default: true."
    )
    options: Settings | None = Field(None, description="Options of Spark's CSV for the master.")
    increment_options: Settings | None = Field(
        None, description="CSV options of the increments that differ from `options`."
    )
    output_options: Settings | None = Field(
        None, description="CSV options of the new master that differ from `options`."
    )
    on_bad_rows: Literal["fail", "quarantine"] | None = Field(
        None, description="What to do with rows that do not fit: fail, or quarantine them."
    )
    on_empty: Literal["fail", "accept"] | None = Field(
        None, description="What to do with empty files: fail, or accept them."
    )
    backups: Annotated[int, Field(ge=0, le=1_000)] | None = Field(
        None, description="The number of older masters to keep. Default: 3."
    )
    properties: Settings | None = Field(
        None,
        description="Parameters of chombo's RecordSetBulkMutator by their names. "
        "Other keys override them.",
    )
    count_first: bool = Field(
        False,
        description="Whether a task `count` reports the changes before `merge` makes them.",
    )

    def to_arguments(self) -> dict[str, Any]:
        """Return the arguments of BulkMutationOperator that are given."""
        given = self.model_dump(by_alias=True, exclude_none=True)
        known = {*Mutate.fields(), "master", "properties"}
        return {name: value for name, value in given.items() if name in known}
