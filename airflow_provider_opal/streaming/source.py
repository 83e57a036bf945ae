"""Kafka as the source of a pipeline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from airflow_provider_opal.streaming.job import POLICIES, checked
from opal_lake.arguments.values import Span, span_of, span_text
from opal_stream.rules import INTERVAL, UNAVAILABLE, check_options, clashes

MODES = ("continuous", "until_empty", "interval")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """Topics, and how their messages are read; the names are those of `opal stream`.

    Without a `mode` a run reads the interval that its schedule names, and where there is none what is there. `mode="continuous"` reads all
    the time: until it is ended, or for `run_for`. Without `on_new_columns` that of the pipeline counts, or "fail". `processes` share the
    partitions by load, but for an interval, which one process reads. With `commit="gathered"` one more process, the committer, makes one
    commit of what all of them read. With `spark` Spark reads, with the settings in `spark_conf`; the machine needs the extra `spark`.
    """

    topics: Sequence[str] | str
    kafka_conn_id: str | None = None
    bootstrap_servers: str | None = None
    mode: str | None = None
    name: str = "main"
    format: str = "json"
    registry: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: str = "ms"
    unavailable_value: str = UNAVAILABLE
    partitions: Sequence[int] = ()
    processes: int | None = None
    commit: str = "direct"
    spark: bool = False
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    start: str = "earliest"
    flush_interval: Span = "1s"
    flush_rows: int | None = None
    flush_mb: int | None = None
    broker_timeout: Span | None = None
    on_new_columns: str | None = None
    on_gap: str = "fail"
    on_new_topic: str = "fail"
    run_for: Span | None = None

    def __post_init__(self) -> None:
        if not self.topics:
            raise ValueError("a stream reads at least one topic: Kafka(topics='orders')")
        if self.mode is not None and self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r} is unknown; use one of {', '.join(MODES)}")
        if self.run_for is not None and self.mode != "continuous":
            raise ValueError(
                "run_for ends a continuous stream, and others end by themselves: add mode='continuous', or leave it out"
            )
        for name, partner, why in clashes(self.given, has_interval=self.mode == "interval"):
            raise ValueError(f"{name}={self.given[name]!r} {_clash(partner, why)}")
        if self.spark_conf and not self.spark:
            raise ValueError(
                f"spark_conf={dict(self.spark_conf)} are settings of Spark, which does not read this: add spark=True"
            )
        for option in POLICIES:
            checked(option, getattr(self, option, None))
        span_text("flush_interval", self.flush_interval)
        _ = self.run_for_s
        check_options({name: getattr(self, name) for name in self.__slots__})

    @property
    def given(self) -> dict[str, Any]:
        """What is not as by default."""
        return {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default and value
        }

    @property
    def run_for_s(self) -> float | None:
        return None if self.run_for is None else span_of("run_for", self.run_for).total_seconds()

    def mode_of(self, *, has_interval: bool) -> str:
        """What is not said goes by the schedule."""
        return self.mode or ("interval" if has_interval else "until_empty")

    def options(self) -> dict[str, Any]:
        """Those of `opal stream` that are no templates."""
        names = (
            "format",
            "time_unit",
            "unavailable_value",
            "start",
            "flush_rows",
            "flush_mb",
            "on_gap",
            "on_new_topic",
            "commit",
            "spark",
        )
        given = {name: getattr(self, name) for name in names} | {
            "partitions": list(self.partitions),
            "conf": dict(self.spark_conf),
        }
        given["processes"] = self.processes or (
            1 if self.commit == "gathered" else None
        )  # whoever has a committer has a supervisor
        if self.broker_timeout is not None:
            given["broker_timeout"] = span_text("broker_timeout", self.broker_timeout)
        return given | {
            "on_new_columns": self.on_new_columns or "fail",
            "flush_interval": span_text("flush_interval", self.flush_interval),
        }


def stream_faults(
    kafka: Kafka, schedule: Any, by: Mapping[str, str], *, has_schema: bool
) -> Iterator[tuple[tuple[str, ...], str]]:
    """What does not go together in a pipeline, each with its place. `by` says what each consumer goes by."""
    has_cron = isinstance(schedule, str)
    mode = kafka.mode_of(has_interval=has_cron)
    if mode == "continuous" and schedule is not None:
        yield ("schedule",), "has no meaning for a stream that runs all the time; write null"
    if mode == "interval" and not has_cron:
        yield (
            ("source", "kafka", "mode"),
            "is interval, which the schedule has to name; write '@daily' or a cron expression there",
        )
    for name, partner, why in clashes(kafka.given, has_interval=mode == "interval"):
        yield (
            ("source", "kafka", name),
            f"is {str(kafka.given[name]).lower()}, which {_clash(partner, why)}",
        )
    if not has_schema:
        yield (
            ("table", "schema"),
            "is missing, and messages have none; add it, as 'id BIGINT, total DOUBLE, op STRING, at TIMESTAMP'",
        )
    for name, axis in by.items():
        if mode != "interval" and axis == "partition":
            yield (
                ("consumers", name, "by"),
                "is partition, and rows of a stream have a partition key by interval only; write version",
            )


def _clash(partner: str, why: str) -> str:
    return f"does not go with {partner}: {why}; leave it out{', or give another mode' if partner == INTERVAL else ''}"
