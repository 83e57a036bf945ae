"""Where rows come from, as YAML says it."""

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
            description="A path or glob, or a list of them; may hold `{{ partition_key }}`.",
        )
    )
    format: Literal[FILE_FORMATS] | None = Field(  # type: ignore[valid-type]  # a constant tuple
        None, description="Of the files; their extensions decide if it is not given."
    )
    options: Settings | None = Field(None, description="Options of Spark's reader of that format.")
    header: bool | None = Field(
        None, description="Whether CSV files begin with a line of column names; true if not given."
    )
    columns: Columns | None = Field(
        None,
        description="With `header: false`, the columns of the cells; the table's if not given.",
    )
    deletes: Text | None = Field(
        None, description="Files whose names match hold deletes, as `del*`: rows, or keys alone."
    )
    order: Text | None = Field(
        None,
        description=(
            "What is later: the delta column; or `file_suffix` or `file_position`, which then give the delta column its values. "
            "Of equal rows the last one counts."
        ),
    )


class JdbcModel(Strict):
    """A table or a query of a database."""

    url: Text = Field(
        description="As jdbc:postgresql://host:5432/database, without user and password."
    )
    table: Text | None = Field(None, description="A table of the database; or give `query`.")
    query: Text | None = Field(None, description="A query; or give `table`.")
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
    """Topics of Kafka. With a cron schedule each run reads an interval; `mode: continuous` reads all the time."""

    topic: Annotated[Text, Tag(TEXT)] | Annotated[list[Text], Field(min_length=1), Tag(OTHER)] = (
        Field(discriminator=Discriminator(is_text), description="A topic, or a list of them.")
    )
    connection: Connection | None = Field(
        None,
        description="Airflow's connection of Kafka; kafka_default if no servers are given either.",
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
    """Where rows come from: `files`, `jdbc` or `kafka`."""

    files: FilesValue | None = Field(
        None, description="A path or glob, a list of them, or `paths` with `format` and `options`."
    )
    jdbc: JdbcModel | None = Field(None, description="A table or a query of a database.")
    kafka: KafkaModel | None = Field(None, description="Topics of Kafka.")

    @model_validator(mode="after")
    def _known_to_the_lake(self) -> "SourceModel":
        if (self.files, self.jdbc, self.kafka).count(None) != 2:
            raise ValueError(
                "a source is files, a database or topics of Kafka; give one of 'files', 'jdbc' and 'kafka'"
            )
        self.to_source()
        return self

    def to_source(self) -> Source | Kafka:
        """As `opal_dag` takes it."""
        return (
            source_from_json(self.model_dump(exclude_none=True))
            if self.kafka is None
            else self.kafka.to_source()
        )
