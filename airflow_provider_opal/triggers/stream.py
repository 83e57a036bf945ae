"""Triggers of streams: one runs a stream as its child, one waits until a stream has caught up."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_opal.streaming.job import StreamJob
from airflow_provider_opal.streaming.lag import LagQuestion, ask_lag
from airflow_provider_opal.streaming.process import RESTARTS, StreamProcess


class StreamTrigger(BaseTrigger):
    """A trigger that runs `opal stream`, and fires with its outcome when it ends.

    `streaming/process.py` explains how processes end. At `ends_at_s`, in seconds since 1970, the
    stream flushes and ends, whichever triggerer runs it then.
    """

    def __init__(
        self, *, job: Mapping[str, Any], restarts: int = RESTARTS, ends_at_s: float | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.job = dict(job)
        self.restarts = restarts
        self.ends_at_s = ends_at_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {name: getattr(self, name) for name in ("job", "restarts", "ends_at_s")}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        job = StreamJob.from_json(self.job)
        # By the wall clock: another triggerer may have run the stream before
        run_for_s = None
        if self.ends_at_s is not None:
            run_for_s = max(0.0, self.ends_at_s - time.time())
        process = StreamProcess(job, self.log.info, restarts=self.restarts, run_for_s=run_for_s)
        outcome = await process.watch()
        yield TriggerEvent(asdict(outcome))  # type: ignore[no-untyped-call]  # Airflow's


class LagTrigger(BaseTrigger):
    """A trigger that fires once with the lag, when it is small enough.

    A broker or a store that does not answer is asked again.
    """

    def __init__(self, *, question: Mapping[str, Any], poke_interval_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.question = dict(question)
        self.poke_interval_s = poke_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"question": self.question, "poke_interval_s": self.poke_interval_s}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        question = LagQuestion(**self.question)
        while True:
            lag = await asyncio.to_thread(ask_lag, question, self.log)
            if lag is not None and question.is_small_enough(lag):
                yield TriggerEvent(lag)  # type: ignore[no-untyped-call]  # Airflow's
                return
            await asyncio.sleep(self.poke_interval_s)
