"""Kafka as the source of a pipeline."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Help, PositiveSpan, one_of, span_of
from opal_lake.errors import InvalidInputError
from opal_stream.clashes import clash_text, clashes
from opal_stream.operations.reading import OnNewColumns, Reading, Topics
from opal_stream.operations.verbs import Run

MODES = ("continuous", "until_empty", "interval")


@declaration
class Kafka(Reading):
    """The topics of a stream, with the arguments of `opal stream run`.

    Without a `mode` a run reads the interval that its schedule names, or without a schedule all
    unread messages. `mode="continuous"` reads all the time: until it is ended, or for `run_for`.
    Without `on_new_columns` that of the pipeline counts, or "fail". `processes` share the
    partitions by load, except for an interval, which one process reads.

    With `commit="gathered"` one more process, the committer, makes one commit of what all of them
    read. With `spark` Spark reads, with the settings in `spark_conf`; the machine needs the extra
    `spark`.
    """

    title: ClassVar[str] = "Kafka"

    topics: Topics = field(kw_only=False)
    kafka_conn_id: str | None = None
    mode: Annotated[
        str | None,
        one_of(*MODES),
        Help(
            "`interval`: messages of the interval of the run's partition key; `until_empty`: all "
            "unread messages; `continuous`: all the time, with the schedule null "
            "(default: interval with a cron schedule, otherwise until_empty)"
        ),
    ] = None
    on_new_columns: Annotated[
        OnNewColumns | None,
        Help(
            "columns of messages that the table lacks; quarantine puts the messages aside "
            "(default: the pipeline's)"
        ),
    ] = None  # type: ignore[assignment]  # None is not "fail": the pipeline's counts
    run_for: Annotated[
        PositiveSpan | None,
        Help(
            "with `mode: continuous`, how long a run takes, after which the consumers run "
            "(default: 1h)"
        ),
    ] = None

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for a `run_for` of a stream that ends on its own."""
        super().check_together(given, is_open)
        if given["run_for"] is not None and given["mode"] != "continuous":
            raise InvalidInputError(
                "run_for ends a continuous stream, and others end on their own: "
                "add mode='continuous', or leave it out"
            )

    @classmethod
    def has_interval(cls, given: Mapping[str, Any]) -> bool:
        """Return whether the mode is an interval."""
        return bool(given["mode"] == "interval")

    @property
    def run_for_s(self) -> float | None:
        """The duration of a run in seconds, or None."""
        if self.run_for is None:
            return None
        return span_of("run_for", self.run_for).total_seconds()

    def mode_of(self, *, has_interval: bool) -> str:
        """Return the mode; the default depends on the schedule."""
        default = "interval" if has_interval else "until_empty"
        return self.mode or default

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `opal stream run`."""
        values = Run.among(vars(self))
        if self.commit == "gathered" and self.processes is None:
            values["processes"] = 1  # a committer needs a supervisor
        return values


def stream_faults(
    kafka: Kafka, schedule: Any, by: Mapping[str, str], *, has_schema: bool
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the contradictions in a pipeline, each with its YAML path.

    `by` has the axis of each consumer, `version` or `partition`.
    """
    has_cron = isinstance(schedule, str)
    mode = kafka.mode_of(has_interval=has_cron)
    if mode == "continuous" and schedule is not None:
        yield ("schedule",), "has no meaning for a stream that runs all the time; write null"
    if mode == "interval" and not has_cron:
        yield (
            ("source", "kafka", "mode"),
            "is interval, but the schedule does not name one; write '@daily' or a cron expression",
        )
    values = vars(kafka)
    for name, partner, why in clashes(Kafka.changed(values), has_interval=mode == "interval"):
        value = str(values[name]).lower()
        yield (("source", "kafka", name), f"is {value}, which {clash_text(partner, why)}")
    if not has_schema:
        yield (
            ("table", "schema"),
            "is missing, and messages have none; add it, as 'id BIGINT, at TIMESTAMP'",
        )
    for name, axis in by.items():
        if mode != "interval" and axis == "partition":
            yield (
                ("consumers", name, "by"),
                "is partition, but a stream's rows have one only by interval; write version",
            )
