"""The arguments of reading that `opal stream run`, `Kafka(...)` and YAML share."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar

from opal_lake.arguments.declared import Declared, declaration
from opal_lake.arguments.values import Count, Help, Kind, PositiveSpan, RowCount, Span, one_of
from opal_lake.errors import InvalidInputError
from opal_stream.clashes import check_clashes
from opal_stream.format_names import FORMATS, UNAVAILABLE, Format
from opal_stream.timeouts import BROKER_TIMEOUT

KEY_FORMATS = ("string", "json", "json-registry", "avro")
ON_NEW_COLUMNS = ("fail", "add", "ignore", "quarantine")
_PARTITION = re.compile(r"(?:.+/)?[0-9]+")


def _topics(name: str, value: Any) -> list[str]:
    topics = [value] if isinstance(value, str) else value
    is_list = isinstance(topics, Sequence) and all(isinstance(topic, str) for topic in topics)
    if not is_list or not all(topics) or not topics:
        raise InvalidInputError(
            f"{name}={value!r} names no topic: a stream reads at least one topic, as 'orders'"
        )
    return list(dict.fromkeys(topics))


def _partitions(name: str, value: Any) -> list[int | str]:
    """Return numbers, and `topic/number` where a stream reads several topics."""
    parts = value.split(",") if isinstance(value, str) else value
    texts = [str(part).strip() for part in parts]
    if not any(texts):
        raise InvalidInputError(
            f"{name} is empty; write numbers, as 0,1,2, or leave it out to read all"
        )
    partitions: list[int | str] = []
    for text in texts:
        if not text:  # behind a comma at the end
            continue
        if not _PARTITION.fullmatch(text):
            raise InvalidInputError(
                f"{name}: {text!r} is not a partition; write numbers, as 0,1,2, or orders/0,users/1"
            )
        partitions.append(int(text) if text.isdecimal() else text)
    return list(dict.fromkeys(partitions))


ON_BAD_MESSAGE = one_of("fail", "quarantine")
OnBadMessage = Annotated[str, ON_BAD_MESSAGE]
OnNewColumns = Annotated[str, one_of(*ON_NEW_COLUMNS)]
OnLoss = Annotated[str, one_of("fail", "continue")]
Topics = Annotated[Sequence[str] | str, Kind(_topics, "NAME")]
Partitions = Annotated[Sequence[int | str] | str, Kind(_partitions, "0,1")]


def needs_registry(format_name: str, key_format: str | None) -> bool:
    """Return whether values or keys are written with a schema registry."""
    names = (format_name, key_format)
    return any(name in FORMATS and FORMATS[name].is_registered for name in names)


@declaration
class FormatOptions(Declared):
    """The options of reading messages.

    `columns` come from the message: `{"at": "@timestamp"}`. `on_new_columns` also applies to
    members that nested columns lack. They cannot be added: with "add" such messages are bad.
    """

    title: ClassVar[str] = "a stream"

    format: Annotated[str, one_of(*FORMATS), Help("of the messages")] = "json"
    key_format: Annotated[
        str | None,
        one_of(*KEY_FORMATS),
        Help("of the keys, if it is another one; string reads the whole key as text"),
    ] = None
    registry: Annotated[
        str | None,
        Help(
            "the schema registry, as http://registry:8081; its SCHEMA_REGISTRY_LOGIN=user:password "
            "is in the environment, or in Airflow's connection",
            "URL",
        ),
    ] = None
    columns: Annotated[
        Mapping[str, str],
        Help(
            "a column from the message itself, as at=@timestamp: "
            "@key, @offset, @header.NAME and more",
            "NAME=@WHAT",
            flag="column",
        ),
    ] = field(default_factory=dict)
    time_unit: Annotated[str, one_of("s", "ms", "us", "ns"), Help("of times that are numbers")] = (
        "ms"
    )
    on_new_columns: Annotated[
        OnNewColumns,
        Help("columns of messages that the table lacks; quarantine puts the messages aside"),
    ] = "fail"
    on_tombstone: Annotated[
        str,
        one_of("delete", "ignore"),
        Help("null values: delete the row of the message's key, or ignore them"),
    ] = "delete"
    unavailable_value: Annotated[
        str,
        Help(
            "the unavailable.value.placeholder of Debezium's connector, of at least 8 bytes: "
            "such values stay as they are",
            "TEXT",
        ),
    ] = UNAVAILABLE

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Refuse options that the format does not use."""
        super().check_together(given, is_open)
        form = FORMATS[given["format"]]
        if given["registry"] and not needs_registry(given["format"], given["key_format"]):
            registered = [name for name, other in FORMATS.items() if other.is_registered]
            others = ", ".join(registered)
            raise InvalidInputError(
                f"registry: messages of format={given['format']} need no schema registry, "
                f"as {others} do; leave it out"
            )
        columns = given["columns"].items()
        from_key_members = [name for name, path in columns if path.startswith("@key.")]
        if given["key_format"] == "string" and from_key_members:
            raise InvalidInputError(
                f"columns: {from_key_members[0]} is a member of the key, and key_format='string' "
                "has none; write @key, or another key_format"
            )
        if given["unavailable_value"] != UNAVAILABLE and not form.is_debezium:
            raise InvalidInputError(
                "unavailable_value is a setting of Debezium's connectors, and messages of "
                f"format={given['format']} are not their change events; leave it out"
            )

    def chosen(self) -> Format:
        """Return the properties of the format; refuse one whose registry is missing."""
        chosen = FORMATS[self.format]
        if needs_registry(self.format, self.key_format) and self.registry is None:
            name = self.format if chosen.is_registered else self.key_format
            raise InvalidInputError(
                f"format {name!r} needs the address of a schema registry: "
                "--registry http://host:8081"
            )
        return chosen


@declaration
class Policies(Declared):
    """The policies for messages that cannot be read any more."""

    title: ClassVar[str] = "a stream"

    on_gap: Annotated[OnLoss, Help("when Kafka has deleted what was not read")] = "fail"
    on_new_topic: Annotated[OnLoss, Help("when the topic was deleted and made again")] = "fail"


@declaration
class KafkaPlace(Declared):
    """The address of Kafka."""

    title: ClassVar[str] = "a stream"

    bootstrap_servers: Annotated[
        str | None, Help("the address of Kafka, as localhost:9092", "HOST:PORT,...")
    ] = None


@declaration
class Reading(Policies, FormatOptions, KafkaPlace):
    """The topics of a stream, and how it reads and commits them."""

    title: ClassVar[str] = "a stream"

    topics: Annotated[Topics, Help("what to read; repeat for more", flag="topic")]
    name: Annotated[str, Help("of the stream: another name reads the topic again", "NAME")] = "main"  # type: ignore[misc]  # of the stream
    partitions: Annotated[
        Partitions | None,
        Help("only these numbers, or orders/0,users/1 of several topics (default: all, also new)"),
    ] = None
    start: Annotated[
        str,
        one_of("earliest", "latest"),
        Help("where the stream begins in a topic that it has never read"),
    ] = "earliest"
    flush_interval: Annotated[Span, Help("commit so long after a first message")] = "1s"
    flush_rows: Annotated[RowCount, Help("or after so many rows")] = 1_000_000
    flush_mb: Annotated[Count, Help("or after so many MiB of messages")] = 64
    broker_timeout: Annotated[
        PositiveSpan,
        Help("how long to wait for a Kafka that has answered before, and no longer does"),
    ] = BROKER_TIMEOUT
    processes: Annotated[
        Count | None, Help("read with so many processes, which share the partitions by load")
    ] = None
    commit: Annotated[
        str,
        one_of("direct", "gathered"),
        Help("by each process that reads, or for many by one `opal stream commit`"),
    ] = "direct"
    spark: Annotated[bool, Help("read with Spark: for more than processes can read")] = False
    spark_conf: Annotated[
        Mapping[str, str],
        Help("settings of Spark, as spark.driver.memory=8g", "NAME=VALUE", flag="conf"),
    ] = field(default_factory=dict)

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Refuse what has no effect, or does not go with an interval or with Spark."""
        super().check_together(given, is_open)
        if given["spark_conf"] and not given["spark"]:
            raise InvalidInputError(
                "spark_conf does nothing without spark; add it, or leave spark_conf out"
            )
        check_clashes(cls.changed(given), has_interval=cls.has_interval(given))

    @classmethod
    def has_interval(cls, given: Mapping[str, Any]) -> bool:
        """Return whether the stream reads an interval of time."""
        del given
        return False
