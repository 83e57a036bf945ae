"""DataChangeEventOperator: the changes of a table within a span of time, for the tasks behind it."""

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
SHORTEST_WAIT_S = 0.05  # the clock may stand still for a while


class DataChangeEventOperator(BaseOperator):
    """Returns the events of `dataset` on `cluster` with start_time <= event_ts < end_time, as a list of plain dicts, oldest first.

    Times are datetimes, ISO text with a time zone, or milliseconds since 1970, and may be templates:
    `"{{ data_interval_start.int_timestamp * 1000 }}"`. Each event is in exactly one of the spans that follow on each other, whenever they
    are asked for: no event gets a time of a span that has ended. So a span must have ended; this waits for the last seconds of one, and
    fails for one that lasts longer.

    `.environment` has the same events as variables, for other tasks' `env=` and `env_vars=`. `skip_when_empty` skips what is downstream.
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
        """The events as environment variables, for a task behind this one."""
        return XComArg(self, key=ENVIRONMENT_KEY)

    def execute(self, context: "Context") -> list[dict[str, Any]]:
        """Asks once the span has ended."""
        from lakechime import InvalidEventError

        try:
            start_ts, end_ts = (
                moment_ms("start_time", self.start_time),
                moment_ms("end_time", self.end_time),
            )
            partition = None if self.partition is None else checked_partition(self.partition)
            tags = checked_tags(self.tags)
        except ValueError as error:
            raise AirflowFailException(str(error)) from error  # to try again would not help
        what: dict[str, Any] = {"cluster": self.cluster, "partition": partition, "tags": tags}
        with closing(LakeChimeHook(self.lakechime_conn_id).get_conn()) as client:
            try:
                answer = client.events_between(self.dataset, start_ts, end_ts, **what)
                while (
                    answer.covered_until_ts < end_ts
                ):  # by the clock that gives events their times
                    self._wait((end_ts - answer.covered_until_ts) / 1000)
                    answer = client.events_between(self.dataset, start_ts, end_ts, **what)
            except InvalidEventError as error:
                raise AirflowFailException(str(error)) from error
        if answer.covered_from_ts > start_ts:
            raise AirflowFailException(
                f"events of {self.dataset} registered from {self.start_time} on have expired: those before {answer.covered_from_ts} ms may "
                "be missing from the span. Read the table whole, or begin the span there; keep events for longer than runs are cleared"
            )
        found = answer.events
        self.log.info(
            "%s events of %s from %s to %s",
            len(found),
            self.dataset,
            self.start_time,
            self.end_time,
        )
        if not found and self.skip_when_empty:
            raise AirflowSkipException(
                f"nothing happened to {self.dataset} from {self.start_time} to {self.end_time}"
            )
        return hand_over(
            context, [registered.event for registered in found], partition=partition, tags=tags
        )

    def _wait(self, left_s: float) -> None:
        if left_s > self.longest_wait_s:
            raise AirflowException(
                f"end_time={self.end_time!s} is {left_s:.0f} s in the future: neither this run nor the next one would see what is "
                "registered until then. End the span when the run begins, as data_interval_end does"
            )
        sleep(max(left_s, SHORTEST_WAIT_S))
