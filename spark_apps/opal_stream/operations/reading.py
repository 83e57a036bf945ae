"""The arguments of a stream that `opal stream run`, `Kafka(...)` and YAML share."""

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
    """Return the topics, each once, of one name or of a list of names."""
    topics = [value] if isinstance(value, str) else value
    is_list_of_names = isinstance(topics, Sequence) and all(map(_is_name, topics))
    if not is_list_of_names or not topics:
        raise InvalidInputError(
            f"{name}={value!r} is not a list of topics: give at least one name, for example orders"
        )
    return list(dict.fromkeys(topics))


def _is_name(topic: Any) -> bool:
    return isinstance(topic, str) and bool(topic)


def _partitions(name: str, value: Any) -> list[int | str]:
    """Return partitions: a number, or `topic/number` in a stream of several topics."""
    items = value.split(",") if isinstance(value, str) else value
    texts = [str(item).strip() for item in items]
    if not any(texts):
        raise InvalidInputError(
            f"{name}={value!r} has no partition; give numbers such as 0,1,2, or leave it out to "
            "read all partitions"
        )
    partitions: list[int | str] = []
    for text in texts:
        if not text:  # after a comma at the end
            continue
        if not _PARTITION.fullmatch(text):
            raise InvalidInputError(
                f"{name}: {text!r} is not a partition; give numbers such as 0,1,2, or topics with "
                "numbers such as orders/0,users/1"
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

    - `columns` fill columns from the message itself: `{"at": "@timestamp"}`.
    - `on_new_columns` also applies to new members of nested columns. A table cannot add a member:
      with "add" such messages are bad.
    """

    title: ClassVar[str] = "a stream"

    format: Annotated[str, one_of(*FORMATS), Help("the format of the messages")] = "json"
    key_format: Annotated[
        str | None,
        one_of(*KEY_FORMATS),
        Help("the format of keys, if they have another one; string reads the whole key as text"),
    ] = None
    registry: Annotated[
        str | None,
        Help(
            "the schema registry, such as http://registry:8081; the environment, or Airflow's "
            "connection, has its login as SCHEMA_REGISTRY_LOGIN=user:password",
            "URL",
        ),
    ] = None
    columns: Annotated[
        Mapping[str, str],
        Help(
            "fill a column from the message itself, for example at=@timestamp; "
            "also @key, @offset, @header.NAME and more",
            "NAME=@WHAT",
            flag="column",
        ),
    ] = field(default_factory=dict)
    time_unit: Annotated[
        str, one_of("s", "ms", "us", "ns"), Help("the unit of times that are numbers")
    ] = "ms"
    on_new_columns: Annotated[
        OnNewColumns,
        Help("what to do with columns that the table lacks; quarantine puts their messages aside"),
    ] = "fail"
    on_tombstone: Annotated[
        str,
        one_of("delete", "ignore"),
        Help("what to do with a message without a value: delete the row of its key, or ignore it"),
    ] = "delete"
    unavailable_value: Annotated[
        str,
        Help(
            "the unavailable.value.placeholder of Debezium's connector, of at least 8 bytes: "
            "the table keeps its own value where a message has this one",
            "TEXT",
        ),
    ] = UNAVAILABLE

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for options that the format does not use."""
        super().check_together(given, is_open)
        form = FORMATS[given["format"]]
        if given["registry"] and not needs_registry(given["format"], given["key_format"]):
            registered = [name for name, other in FORMATS.items() if other.is_registered]
            others = ", ".join(registered)
            raise InvalidInputError(
                f"registry: messages of format={given['format']} need no schema registry; leave "
                f"it out, or choose a format that needs one: {others}"
            )
        columns = given["columns"].items()
        from_key_members = [name for name, path in columns if path.startswith("@key.")]
        if given["key_format"] == "string" and from_key_members:
            raise InvalidInputError(
                f"columns: {from_key_members[0]} is filled from a member of the key, but with "
                "key_format='string' a key has no members; use @key, or another key_format"
            )
        if given["unavailable_value"] != UNAVAILABLE and not form.is_debezium:
            raise InvalidInputError(
                "unavailable_value is a setting of Debezium's connectors, but messages of "
                f"format={given['format']} are not their change events; leave it out"
            )

    def chosen(self) -> Format:
        """Return the properties of the format.

        Raise InvalidInputError without its registry.
        """
        chosen = FORMATS[self.format]
        if needs_registry(self.format, self.key_format) and self.registry is None:
            name = self.format if chosen.is_registered else self.key_format
            raise InvalidInputError(
                f"format {name!r} needs a schema registry: give its address, for example "
                "registry='http://host:8081'"
            )
        return chosen


@declaration
class Policies(Declared):
    """The policies for messages that can no longer be read."""

    title: ClassVar[str] = "a stream"

    on_gap: Annotated[OnLoss, Help("when Kafka has deleted messages that were not read")] = "fail"
    on_new_topic: Annotated[OnLoss, Help("when the topic was deleted and created again")] = "fail"


@declaration
class KafkaPlace(Declared):
    """The address of Kafka."""

    title: ClassVar[str] = "a stream"

    bootstrap_servers: Annotated[
        str | None, Help("the address of Kafka, such as localhost:9092", "HOST:PORT,...")
    ] = None


@declaration
class Reading(Policies, FormatOptions, KafkaPlace):
    """The topics of a stream, and how it reads and commits them."""

    title: ClassVar[str] = "a stream"

    topics: Annotated[Topics, Help("a topic to read; repeat the flag for more", flag="topic")]
    name: Annotated[  # type: ignore[misc]  # Declared has a function of this name
        str, Help("the name of the stream: another name reads the topic again", "NAME")
    ] = "main"
    partitions: Annotated[
        Partitions | None,
        Help(
            "read only these partitions, such as 0,1, or of several topics orders/0,users/1 "
            "(default: all, later ones included)"
        ),
    ] = None
    start: Annotated[
        str,
        one_of("earliest", "latest"),
        Help("where the stream begins in a topic that it has never read"),
    ] = "earliest"
    flush_interval: Annotated[Span, Help("commit this long after the first message")] = "1s"
    flush_rows: Annotated[RowCount, Help("commit earlier after this many rows")] = 1_000_000
    flush_mb: Annotated[Count, Help("commit earlier after this many MiB of messages")] = 64
    broker_timeout: Annotated[
        PositiveSpan,
        Help("how long to wait for Kafka if it has answered before, and no longer does"),
    ] = BROKER_TIMEOUT
    processes: Annotated[
        Count | None, Help("read with this many processes, which share the partitions by load")
    ] = None
    commit: Annotated[
        str,
        one_of("direct", "gathered"),
        Help(
            "direct: each reading process commits; gathered: processes write files, which one "
            "`opal stream commit` commits"
        ),
    ] = "direct"
    spark: Annotated[bool, Help("read with Spark, for streams too large for processes")] = False
    spark_conf: Annotated[
        Mapping[str, str],
        Help("a setting of Spark, such as spark.driver.memory=8g", "NAME=VALUE", flag="conf"),
    ] = field(default_factory=dict)

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for arguments without an effect, and for clashes."""
        super().check_together(given, is_open)
        if given["spark_conf"] and not given["spark"]:
            raise InvalidInputError(
                "spark_conf does nothing without spark; add spark, or leave spark_conf out",
                arguments=("spark",),
            )
        check_clashes(cls.changed(given), has_interval=cls.has_interval(given))

    @classmethod
    def has_interval(cls, given: Mapping[str, Any]) -> bool:
        """Return whether the stream reads an interval of time."""
        del given
        return False
