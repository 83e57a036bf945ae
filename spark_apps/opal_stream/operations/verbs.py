"""The verbs `opal stream run`, `commit`, `status` and `plan`."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Count, Help, Kind, PositiveSpan, Span
from opal_lake.errors import InvalidInputError
from opal_stream.clashes import check_needs
from opal_stream.operations.reading import KafkaPlace, OnBadMessage, Reading, Topics
from opal_stream.timeouts import GIVE_UP_S

SETTINGS = "OPAL_KAFKA_SETTINGS"  # the environment variable that holds settings of librdkafka
GATHERED_MB = 1024
_MAX_PORT = 65_535
_NAME = "the name of the stream"

# Metrics need no login: serving them to other machines is a choice of the user
METRICS_HOST = "127.0.0.1"


def _port(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_PORT:
        raise InvalidInputError(
            f"{name}={value!r} is not a port; give a number up to {_MAX_PORT}, or 0 for any free "
            "port"
        )
    return value


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInputError(
            f"{name}={value!r} is not a valid number; give a whole number, 0 or more"
        )
    return value


Port = Annotated[int, Kind(_port, "PORT", takes_number=True)]
Number = Annotated[int, Kind(_number, "N", takes_number=True)]


@declaration
class KafkaAccess(KafkaPlace):
    """The address of Kafka, and the settings of its client."""

    kafka: Annotated[
        Mapping[str, str], Help("a setting of librdkafka; repeat the flag for more", "NAME=VALUE")
    ] = field(default_factory=dict)
    kafka_settings: Annotated[
        str | None,
        Help(
            "a file with settings of librdkafka, secrets included, as lines of name=value; the "
            f"environment variable {SETTINGS} may hold such lines, too",
            "FILE",
        ),
    ] = None


@declaration
class Reported(KafkaAccess):
    """The arguments of every process that commits: how it ends, and where it reports."""

    until_empty: Annotated[
        bool, Help("end when all messages or files that existed at the start are committed")
    ] = False
    give_up_after: Annotated[Span, Help("how long to wait for a store that fails")] = (
        f"{GIVE_UP_S:g}s"
    )
    watched: Annotated[
        PositiveSpan | None,
        Help("flush and end when the standard input is closed, or silent for this long"),
    ] = None
    tracking: Annotated[
        str | None,
        Help("write a line of JSON for each partition of each commit into this folder", "FOLDER"),
    ] = None
    tracking_topic: Annotated[
        str | None, Help("send the lines that --tracking describes to this topic", "NAME")
    ] = None
    metrics_file: Annotated[
        str | None, Help("write Prometheus metrics into this file after each commit", "FILE")
    ] = None
    metrics_port: Annotated[Port | None, Help("serve Prometheus metrics on this port")] = None
    metrics_host: Annotated[
        str,
        Help(
            "the address that serves the metrics; 0.0.0.0 means every address of this machine",
            "ADDRESS",
        ),
    ] = METRICS_HOST

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for arguments that do nothing without another one."""
        super().check_together(given, is_open)
        changed = cls.changed(given)
        check_needs(changed, {"metrics_host": ("metrics_port",)})
        check_needs(changed, {"tracking_topic": ("bootstrap_servers",)})


@declaration
class Run(Reading, Reported):
    """Read topics of Kafka into a table."""

    title: ClassVar[str] = "opal stream run"

    start_timestamp: Annotated[
        str | None,
        Help("read an interval of time instead, from the first message at or after TIME", "TIME"),
    ] = None
    end_timestamp: Annotated[
        str | None,
        Help("end the interval before the first message at or after TIME, a past time", "TIME"),
    ] = None
    partition_key: Annotated[
        str | None,
        Help("the partition key of an interval's rows, for consumers by partition", "KEY"),
    ] = None
    on_bad_message: Annotated[
        OnBadMessage, Help("what to do with a message that cannot become a row")
    ] = "fail"
    capacity: Annotated[
        Count | None, Help("read with enough processes that each reads at most N messages/s")
    ] = None
    replan_interval: Annotated[
        PositiveSpan,
        Help("with several processes: how often to plan again which partitions each reads"),
    ] = "10m"
    stall_after: Annotated[
        PositiveSpan,
        Help("with several processes: restart one if a partition of it stalls for this long"),
    ] = "5m"
    no_committer: Annotated[
        bool,
        Help("with several processes and --commit gathered: `opal stream commit` runs elsewhere"),
    ] = False
    gathered_mb: Annotated[
        Number,
        Help(
            "with --commit gathered: stop reading while N MiB of files wait for their commit; "
            "0 for no limit"
        ),
    ] = GATHERED_MB

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for half an interval or arguments without an effect."""
        super().check_together(given, is_open)
        fleet = ("processes", "capacity")
        check_needs(cls.changed(given), {"replan_interval": fleet, "stall_after": fleet})
        has_fleet = bool(given["processes"] or given["capacity"])
        is_gathered = given["commit"] == "gathered"
        if given["gathered_mb"] != GATHERED_MB and not is_gathered:
            raise InvalidInputError(
                "gathered_mb does nothing without commit='gathered'; "
                "add commit='gathered', or leave gathered_mb out"
            )
        if given["no_committer"] and not (has_fleet and is_gathered):
            raise InvalidInputError(
                "no_committer does nothing without several processes and commit='gathered'; add "
                "both, or leave no_committer out"
            )
        ends = {name: given[name] for name in ("start_timestamp", "end_timestamp")}
        missing = [name for name, value in ends.items() if not value]
        if len(missing) == 1:
            raise InvalidInputError(
                f"an interval needs start_timestamp and end_timestamp: add {missing[0]}"
            )
        if missing and given["partition_key"] is not None:
            raise InvalidInputError(
                "partition_key does nothing without an interval: "
                "give start_timestamp and end_timestamp, too"
            )

    @classmethod
    def has_interval(cls, given: Mapping[str, Any]) -> bool:
        """Return whether an end of an interval is given."""
        return bool(given["start_timestamp"] or given["end_timestamp"])

    @property
    def is_supervised(self) -> bool:
        """True if several processes read."""
        return self.processes is not None or self.capacity is not None

    @property
    def has_committer(self) -> bool:
        """True if the supervisor runs the committer, too."""
        return self.is_supervised and self.commit == "gathered" and not self.no_committer


@declaration
class Commit(Reported):
    """Commit the files that a stream's processes gathered."""

    title: ClassVar[str] = "opal stream commit"

    name: Annotated[str, Help(_NAME, "NAME")] = "main"  # type: ignore[misc]  # of the stream
    flush_interval: Annotated[Span, Help("the pause between two commits")] = "1s"
    flush_mb: Annotated[Count, Help("commit earlier after this many MiB of rows")] = 64


@declaration
class Status(KafkaAccess):
    """Report positions and lag of a table's streams, and their alarms."""

    title: ClassVar[str] = "opal stream status"

    topics: Annotated[
        Topics | None,
        Help("show the messages that wait in a topic; repeat the flag for more", flag="topic"),
    ] = None
    name: Annotated[str, Help(_NAME, "NAME")] = "main"  # type: ignore[misc]  # of the stream
    alarm_lag: Annotated[Number | None, Help("raise an alarm for a lag of more messages")] = None
    alarm_stall: Annotated[
        Span | None, Help("raise an alarm for a message that waits this long while nothing moves")
    ] = None
    tracking: Annotated[str | None, Help("the folder of the tracking events", "FOLDER")] = None
    gathered_mb: Annotated[Number, Help("the value of the stream's --gathered-mb")] = GATHERED_MB

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for arguments that do nothing without Kafka or a topic."""
        super().check_together(given, is_open)
        kafka = ("bootstrap_servers",)
        needs = dict.fromkeys(("kafka", "kafka_settings", "alarm_lag", "alarm_stall"), kafka)
        check_needs(cls.changed(given), {**needs, "name": ("topics",)})


@declaration
class Plan(KafkaAccess):
    """Plan which process reads which partitions in the coming hours."""

    title: ClassVar[str] = "opal stream plan"

    topics: Annotated[Topics, Help("a topic to plan for; repeat the flag for more", flag="topic")]
    name: Annotated[str, Help(_NAME, "NAME")] = "main"  # type: ignore[misc]  # of the stream
    processes: Annotated[Count | None, Help("spread over this many processes")] = None
    capacity: Annotated[
        Count | None, Help("spread over enough processes that each reads at most N messages/s")
    ] = None
    hours: Annotated[Count, Help("plan for the next N hours")] = 1
    current: Annotated[
        str | None,
        Help(
            "an earlier plan of --json: move only as many partitions as an even load needs", "FILE"
        ),
    ] = None

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError unless one of `processes` and `capacity` is given."""
        super().check_together(given, is_open)
        if bool(given["processes"]) == bool(given["capacity"]):
            raise InvalidInputError(
                "give either processes or capacity; a plan needs one of them",
                arguments=("processes", "capacity"),
            )
