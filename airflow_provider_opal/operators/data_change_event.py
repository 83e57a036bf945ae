"""DataChangeEventOperator: the changes of a table within a span of time, for later tasks."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from time import sleep
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_opal.assets import DEFAULT_CLUSTER, DEFAULT_LAKECHIME_CONN_ID
from airflow_provider_opal.events.handover import ENVIRONMENT_KEY, hand_over
from airflow_provider_opal.events.interest import checked_partition, checked_tags
from airflow_provider_opal.events.moments import moment_ms
from airflow_provider_opal.hooks.lakechime import LakeChimeHook
from airflow_provider_opal.templated import is_templated

if TYPE_CHECKING:
    from airflow.sdk import Context

Moment = datetime | int | str
# A pause between two queries, because the clock of the events may stand still for a while
MIN_WAIT_S = 0.05


class DataChangeEventOperator(BaseOperator):
    """A task that returns the data-change events of a table within a span of time.

    The result is a list of plain dicts, oldest first: the events of `dataset` on `cluster` with
    start_time <= event_ts < end_time. Times are datetimes, ISO text with a time zone, or
    milliseconds since 1970, and may be templates:
    `"{{ data_interval_start.int_timestamp * 1000 }}"`.

    Each event is in exactly one of successive spans, no matter when they are read: no event gets a
    time of a span that has ended. So the task waits up to a minute for the end of its span, and
    fails if the end is later.

    `.environment` holds the same events as variables, for other tasks' `env=` and `env_vars=`.
    With `skip_when_empty` a span without events skips the task, and those downstream.
    """

    template_fields: Sequence[str] = (
        "dataset",
        "cluster",
        "start_time",
        "end_time",
        "partition",
        "tags",
        "lakechime_conn_id",
    )
    ui_color = "#d8ecf3"
    longest_wait_s = 60.0  # clocks of schedulers and databases differ a little

    def __init__(
        self,
        *,
        dataset: str,
        start_time: Moment,
        end_time: Moment,
        cluster: str = DEFAULT_CLUSTER,
        partition: Sequence[Any] | None = None,
        tags: Mapping[str, str] | None = None,
        skip_when_empty: bool = False,
        lakechime_conn_id: str = DEFAULT_LAKECHIME_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, moment in (("start_time", start_time), ("end_time", end_time)):
            if not is_templated(moment):
                moment_ms(name, moment)
        self.dataset = dataset
        self.cluster = cluster
        self.start_time = start_time
        self.end_time = end_time
        self.partition = partition
        self.tags = tags
        self.skip_when_empty = skip_when_empty
        self.lakechime_conn_id = lakechime_conn_id

    @property
    def environment(self) -> XComArg:
        """The events as environment variables, for a task downstream."""
        return XComArg(self, key=ENVIRONMENT_KEY)

    def execute(self, context: "Context") -> list[dict[str, Any]]:
        """Read the events once the span has ended, and return them as plain dicts."""
        from lakechime import InvalidEventError

        try:
            start_ts = moment_ms("start_time", self.start_time)
            end_ts = moment_ms("end_time", self.end_time)
            partition = None if self.partition is None else checked_partition(self.partition)
            tags = checked_tags(self.tags)
        except ValueError as error:
            raise AirflowFailException(str(error)) from error  # a retry would not help
        filters: dict[str, Any] = {"cluster": self.cluster, "partition": partition, "tags": tags}
        with closing(LakeChimeHook(self.lakechime_conn_id).get_conn()) as client:
            try:
                answer = client.events_between(self.dataset, start_ts, end_ts, **filters)
                # By the clock that gives events their times, not by the worker's
                while answer.covered_until_ts < end_ts:
                    self._wait((end_ts - answer.covered_until_ts) / 1000)
                    answer = client.events_between(self.dataset, start_ts, end_ts, **filters)
            except InvalidEventError as error:
                raise AirflowFailException(str(error)) from error
        if answer.covered_from_ts > start_ts:
            raise AirflowFailException(
                f"events of {self.dataset} between {self.start_time} and "
                f"{answer.covered_from_ts} ms may have expired. Read the whole table, or begin the "
                "span at the later time. Keep events for longer than runs may be cleared"
            )
        events = [registered.event for registered in answer.events]
        span = f"from {self.start_time} to {self.end_time}"
        self.log.info("%s events of %s %s", len(events), self.dataset, span)
        if not events and self.skip_when_empty:
            raise AirflowSkipException(f"no events of {self.dataset} {span}")
        return hand_over(context, events, partition=partition, tags=tags)

    def _wait(self, left_s: float) -> None:
        """Wait until the end of the span; fail if it is too far in the future."""
        if left_s > self.longest_wait_s:
            raise AirflowException(
                f"end_time={self.end_time!s} is {left_s:.0f} s in the future: no run would see the "
                "events that are registered until then. "
                "End the span when the run begins, for example at data_interval_end"
            )
        sleep(max(left_s, MIN_WAIT_S))
