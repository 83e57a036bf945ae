"""Where rows come from, as YAML says it."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from airflow_provider_opal.streaming.job import POLICIES
from airflow_provider_opal.streaming.source import Kafka
from airflow_provider_opal.templates.yaml.models.base import (
    OTHER,
    TEXT,
    Column,
    Columns,
    Connection,
    Duration,
    Settings,
    Strict,
    Text,
    is_text,
)
from opal_lake.source import FILE_FORMATS, Source, source_from_json
from opal_stream.rules import UNAVAILABLE, check_options


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


class KafkaModel(Strict):
    """Topics of Kafka. With a cron schedule each run reads an interval; `mode: continuous` reads all the time."""

    topic: Annotated[Text, Tag(TEXT)] | Annotated[list[Text], Field(min_length=1), Tag(OTHER)] = (
        Field(discriminator=Discriminator(is_text), description="A topic, or a list of them.")
    )
    connection: Connection | None = Field(
        None,
        description="Airflow's connection of Kafka; kafka_default if no servers are given either.",
    )
    bootstrap_servers: Text | None = Field(
        None, description="As kafka:9092, where Kafka needs no connection."
    )
    mode: Literal["continuous", "until_empty", "interval"] | None = Field(
        None,
        description=(
            "`interval`: what lies in the interval of the run's partition key; `until_empty`: what is there and was not read; "
            "`continuous`: all the time, with the schedule null. If not given, interval with a cron schedule, else until_empty."
        ),
    )
    name: Text = Field("main", description="Of the stream: another name reads the topic again.")
    format: Literal[POLICIES["format"]] = Field("json", description="Of the messages.")  # type: ignore[valid-type]  # the tuple is constant
    registry: Text | None = Field(
        None,
        description="The schema registry, as http://registry:8081; the connection may name it, too.",
    )
    columns: dict[Column, Text] = Field(
        default_factory=dict, description="Columns from the message itself, as `at: '@timestamp'`."
    )
    time_unit: Literal["s", "ms", "us", "ns"] = Field(
        "ms", description="Of times that are numbers."
    )
    unavailable_value: Text = Field(
        UNAVAILABLE,
        description="What `unavailable.value.placeholder` of Debezium's connector is: such values stay as they are.",
    )
    start: Literal["earliest", "latest"] = Field(
        "earliest", description="Where it begins in a topic that it has never read."
    )
    processes: int | None = Field(
        None, ge=1, description="How many share the partitions by load; an interval is read by one."
    )
    commit: Literal["direct", "gathered"] = Field(
        "direct",
        description="`gathered`: one more process makes one commit of what all of them read; an interval and Spark make their own.",
    )
    spark: bool = Field(False, description="Whether Spark reads it, which no interval takes.")
    spark_conf: dict[Text, Text] = Field(
        default_factory=dict, description="Settings of Spark, as `spark.driver.memory: 4g`."
    )
    flush_interval: Duration = Field(
        timedelta(seconds=1), description="A commit is due so long after a first message."
    )
    broker_timeout: Duration | None = Field(
        None,
        description="How long to wait for a Kafka that has answered before; 1h if not given.",
    )
    on_new_columns: Literal["fail", "add", "ignore", "quarantine"] | None = Field(
        None,
        description="Columns of messages that the table lacks; quarantine puts the messages aside. If not given, the pipeline's.",
    )
    on_gap: Literal["fail", "continue"] = Field(
        "fail", description="When Kafka has deleted what was not read."
    )
    on_new_topic: Literal["fail", "continue"] = Field(
        "fail", description="When the topic was made anew."
    )
    run_for: Duration | None = Field(
        None,
        description="With `mode: continuous`, how long a run takes, after which the consumers run; 1h if not given.",
    )

    @model_validator(mode="after")
    def _known_to_streams(self) -> "KafkaModel":
        check_options(self.model_dump())
        return self

    def to_source(self) -> Kafka:
        given = self.model_dump(exclude={"topic", "connection"})
        return Kafka(topics=self.topic, kafka_conn_id=self.connection, **given)


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
