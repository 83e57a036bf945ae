"""Evaluate triggers: whether they fire now, and the events that they hand on. Nothing is remembered between two questions."""

from typing import Any

from fastapi import APIRouter, Response

from lakechime.client import LakeChime
from lakechime.remote.wire import V1
from lakechime.service import models
from lakechime.service.access import Access
from lakechime.service.routes.answers import GONE, WITH_BODY, AnyBackend, problems, router
from opal_lake.clock import SystemClock


def routes(access: Access) -> APIRouter:
    reading = router(access.read, "triggers")

    @reading.post(
        "/triggers/partition",
        response_model=models.PartitionFired,
        responses=problems(*WITH_BODY, *GONE),
    )
    async def partition(body: models.PartitionTriggerBody, backend: AnyBackend) -> Response:
        """The events of a partition from the first one to now. The trigger fires when there is one."""
        trigger, now_ts = (
            body.trigger(),
            SystemClock().now_us() // 1000 if body.now_ts is None else body.now_ts,
        )

        def fired(client: LakeChime) -> dict[str, Any]:
            look = trigger.look(client, now_ts)
            events = [event.to_json() for event in look.events]
            return {"events": events, "expired_seq": look.expired_seq}

        return await backend.answer(fired)

    @reading.post(
        "/triggers/snapshot", response_model=models.SnapshotAnswer, responses=problems(*WITH_BODY)
    )
    async def snapshot(body: models.SnapshotTriggerBody, backend: AnyBackend) -> Response:
        """What changed since a watermark. Move the watermark to `to_seq` when the events are processed."""
        trigger = body.trigger()

        def fired(client: LakeChime) -> dict[str, Any]:
            found = trigger.evaluate(client, body.after_seq, body.max_events)
            if found is None:
                return {"fired": None}
            events = [event.to_json() for event in found.events]
            return {
                "fired": {
                    "events": events,
                    "from_seq": found.from_seq,
                    "to_seq": found.to_seq,
                    "expired": found.expired,
                }
            }

        return await backend.answer(fired)

    together = APIRouter(prefix=V1)
    together.include_router(reading)
    return together
