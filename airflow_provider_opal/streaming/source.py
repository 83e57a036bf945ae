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

    The default of `mode` depends on the schedule. With a schedule a run reads the interval of its
    partition key. Without a schedule it reads all unread messages. `mode="continuous"` reads until
    somebody ends the run, or for `run_for`. The default of `on_new_columns` is that of the
    pipeline, or "fail". Several `processes` share the partitions by load. One process reads an
    interval.

    With `commit="gathered"` one more process, the committer, commits the rows of all processes
    together. With `spark` Spark reads, with the settings in `spark_conf`. The machine then needs
    the extra `spark`.
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
        """Raise InvalidInputError if a stream that ends on its own has a `run_for`."""
        super().check_together(given, is_open)
        if given["run_for"] is not None and given["mode"] != "continuous":
            raise InvalidInputError(
                "run_for is only for the mode continuous, because other streams end on their own: "
                "set mode to continuous, or leave out run_for"
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
    """Yield the contradictions of a stream and its pipeline: YAML path, message.

    `by` maps the name of each consumer to 'version' or 'partition'.
    """
    has_cron = isinstance(schedule, str)
    mode = kafka.mode_of(has_interval=has_cron)
    if mode == "continuous" and schedule is not None:
        yield ("schedule",), "does not apply to a stream that always runs; write null"
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
            (
                "is missing, and messages of Kafka have none; "
                "add a schema such as 'id BIGINT, at TIMESTAMP'"
            ),
        )
    for name, consumer_by in by.items():
        if mode != "interval" and consumer_by == "partition":
            yield (
                ("consumers", name, "by"),
                (
                    "is partition, but only a stream by interval gives its rows a partition key; "
                    "write version"
                ),
            )
