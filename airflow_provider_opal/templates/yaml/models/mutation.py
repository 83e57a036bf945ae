"""A mutation of a folder, as YAML says it: the arguments of BulkMutationOperator, and those of a DAG."""

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
    """Files of inserts, updates and deletes that are merged into a folder of files, without a table."""

    master: Text = Field(
        description="The folder that is brought up to date; may hold `{{ partition_key }}`."
    )
    increments: (
        Annotated[Text, Tag(TEXT)] | Annotated[list[Text], Field(min_length=1), Tag(OTHER)]
    ) = Field(
        discriminator=Discriminator(is_text),
        description="The files: a path, a folder or a glob, or a list of them.",
    )
    schedule: Cron | None = Field(description="Cron, a preset, or null (by hand).")
    ids: Columns | None = Field(
        None, description="The fields of a record's id, by name or by ordinal from 0, as ['0']."
    )
    order: Column | None = Field(
        None,
        description="What is later: a field, or `file_suffix`, or `file_position`, which is the default.",
    )
    order_type: Literal[ORDER_TYPES] | None = Field(  # type: ignore[valid-type]  # as above
        None, description="Of a field of text; numeric if not given."
    )
    op_field: Column | None = Field(None, description="The field with the operation of a row.")
    deleted_op: Text | None = Field(
        None, description="What it holds in rows that delete their record; D if not given."
    )
    delete_prefix: Text | None = Field(
        None, description="Files whose names begin so hold deletes: rows, or ids alone."
    )
    partition_by: Columns | None = Field(None, description="Of a new master.")
    fixed_partitions: bool | None = Field(
        None, description="No record moves: look only into the partitions that increments name."
    )
    schema_: Text | None = Field(
        None, alias="schema", description="The fields as in CREATE TABLE; if not given, as found."
    )
    format: FolderFormat | None = Field(
        None, description="Of the master; if not given, by the files."
    )
    increment_format: FolderFormat | None = Field(
        None, description="Of the increments; if not given, by the files."
    )
    output_format: FolderFormat | None = Field(
        None, description="Of the new master; if not given, as the old one."
    )
    delimiter: Text | None = Field(
        None, description="Between the fields of CSV; a comma if not given."
    )
    header: bool | None = Field(
        None, description="Whether CSV files begin with a line of names; true if not given."
    )
    options: Settings | None = Field(None, description="Options of Spark's CSV for the master.")
    increment_options: Settings | None = Field(
        None, description="What is different for the increments."
    )
    output_options: Settings | None = Field(
        None, description="What is different for the new master."
    )
    on_bad_rows: Literal["fail", "quarantine"] | None = Field(
        None, description="Rows that do not fit: fail, or put them aside."
    )
    on_empty: Literal["fail", "accept"] | None = Field(
        None, description="Empty files: fail, or accept them."
    )
    backups: Annotated[int, Field(ge=0, le=1_000)] | None = Field(
        None, description="How many older masters to keep; 3 if not given."
    )
    properties: Settings | None = Field(
        None,
        description="Parameters of chombo's RecordSetBulkMutator by their names; others count more.",
    )
    count_first: bool = Field(
        False,
        description="Whether a task `count` says what would happen before the task `merge` does it.",
    )

    def to_arguments(self) -> dict[str, Any]:
        """Of BulkMutationOperator; what is not given is left to it."""
        given = self.model_dump(by_alias=True, exclude_none=True)
        return {
            name: value
            for name, value in given.items()
            if name in Mutate.fields() or name in ("master", "properties")
        }
