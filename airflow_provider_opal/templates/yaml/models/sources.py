"""The sources of rows in YAML."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from airflow_provider_opal.streaming.source import Kafka
from airflow_provider_opal.templates.yaml.models.base import (
    OTHER,
    TEXT,
    Columns,
    Connection,
    Declares,
    Settings,
    Strict,
    Text,
    is_text,
)
from airflow_provider_opal.templates.yaml.models.declared import with_arguments_of
from opal_lake.source import FILE_FORMATS, Source, source_from_json


class FilesModel(Strict):
    """Files by path or glob."""

    paths: Annotated[Text, Tag(TEXT)] | Annotated[list[Text], Field(min_length=1), Tag(OTHER)] = (
        Field(
            discriminator=Discriminator(is_text),
            description="A path or glob, or a list of them. May hold `{{ partition_key }}`.",
        )
    )
    format: Literal[FILE_FORMATS] | None = Field(  # type: ignore[valid-type]  # a constant tuple
        None, description="The format of the files. Default: by their extensions."
    )
    options: Settings | None = Field(None, description="Options of Spark's reader of that format.")
    header: bool | None = Field(
        None, description="Whether CSV files begin with a line of column names. Default: true."
    )
    columns: Columns | None = Field(
        None,
        description="With `header: false`, the columns of the cells. Default: the table's columns.",
    )
    deletes: Text | None = Field(
        None,
        description=(
            "A pattern of file names, such as `del*`. These files hold deletes: rows, or keys."
        ),
    )
    order: Text | None = Field(
        None,
        description=(
            "The order of changes: the delta column, `file_suffix` or `file_position`. "
            "`file_suffix` and `file_position` give the delta column its values. "
            "Of rows with equal order the last one counts."
        ),
    )


class JdbcModel(Strict):
    """A table or a query of a database."""

    url: Text = Field(
        description=(
            "The URL without user and password, such as jdbc:postgresql://host:5432/database."
        )
    )
    table: Text | None = Field(
        None, description="A table of the database. Give either this or `query`."
    )
    query: Text | None = Field(None, description="A query. Give either this or `table`.")
    user_env: Text | None = Field(None, description="The environment variable that holds the user.")
    password_env: Text | None = Field(
        None, description="The environment variable that holds the password."
    )
    options: Settings | None = Field(None, description="Options of Spark's JDBC reader.")


FilesValue = Annotated[
    Annotated[Text, Tag(TEXT)]
    | Annotated[list[Text], Field(min_length=1), Tag("(list)")]
    | Annotated[FilesModel, Tag(OTHER)],
    Discriminator(lambda value: "(list)" if isinstance(value, list) else is_text(value)),
]


@with_arguments_of(Kafka, but=("topics", "kafka_conn_id"))
class KafkaModel(Declares):
    """Topics of Kafka.

    With a cron schedule each run reads an interval. `mode: continuous` reads without end.
    """

    topic: Annotated[Text, Tag(TEXT)] | Annotated[list[Text], Field(min_length=1), Tag(OTHER)] = (
        Field(discriminator=Discriminator(is_text), description="A topic, or a list of them.")
    )
    connection: Connection | None = Field(
        None,
        description="Airflow's connection of Kafka. Default: kafka_default, without given servers.",
    )

    @model_validator(mode="after")
    def _known_to_streams(self) -> "KafkaModel":
        self.to_source()
        return self

    def to_source(self) -> Kafka:
        names = self.model_fields_set - {"topic", "connection"}
        given = {name: getattr(self, name) for name in names}
        return Kafka(self.topic, kafka_conn_id=self.connection, **given)


class SourceModel(Strict):
    """The source of rows: `files`, `jdbc` or `kafka`."""

    files: FilesValue | None = Field(
        None, description="A path or glob, a list of them, or `paths` with `format` and `options`."
    )
    jdbc: JdbcModel | None = Field(None, description="A table or a query of a database.")
    kafka: KafkaModel | None = Field(None, description="Topics of Kafka.")

    @model_validator(mode="after")
    def _known_to_the_lake(self) -> "SourceModel":
        if (self.files, self.jdbc, self.kafka).count(None) != 2:
            raise ValueError(
                "the source needs exactly one of the keys 'files', 'jdbc' and 'kafka'; "
                "add one, or remove the others"
            )
        self.to_source()
        return self

    def to_source(self) -> Source | Kafka:
        """Return the source for `opal_dag`."""
        if self.kafka is not None:
            return self.kafka.to_source()
        return source_from_json(self.model_dump(exclude_none=True))
