"""Routes that evaluate triggers. The service stores nothing about a trigger."""

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
        """Return the events of a partition up to now; the trigger fires if there is one."""
        trigger = body.trigger()
        now_ts = body.now_ts
        if now_ts is None:
            now_ts = SystemClock().now_us() // 1000

        def fired(client: LakeChime) -> dict[str, Any]:
            look = trigger.look(client, now_ts)
            events = [event.to_json() for event in look.events]
            return {"events": events, "expired_seq": look.expired_seq}

        return await backend.answer(fired)

    @reading.post(
        "/triggers/snapshot", response_model=models.SnapshotAnswer, responses=problems(*WITH_BODY)
    )
    async def snapshot(body: models.SnapshotTriggerBody, backend: AnyBackend) -> Response:
        """Return the changes since a watermark; once processed, move it to `to_seq`."""
        trigger = body.trigger()

        def evaluated(client: LakeChime) -> dict[str, Any]:
            fired = trigger.evaluate(client, body.after_seq, body.max_events)
            if fired is None:
                return {"fired": None}
            events = [event.to_json() for event in fired.events]
            return {
                "fired": {
                    "events": events,
                    "from_seq": fired.from_seq,
                    "to_seq": fired.to_seq,
                    "expired": fired.expired,
                }
            }

        return await backend.answer(evaluated)

    together = APIRouter(prefix=V1)
    together.include_router(reading)
    return together
