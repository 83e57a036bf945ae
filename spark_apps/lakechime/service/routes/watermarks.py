"""Routes of watermarks: the progress of consumers."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Response
from fastapi import Query as InUrl

from lakechime.client import LakeChime
from lakechime.remote.wire import V1, watermark_json
from lakechime.service import models
from lakechime.service.access import Access
from lakechime.service.routes.answers import MISSING, MOVED, WITH_BODY, AnyBackend, problems, router


def routes(access: Access) -> APIRouter:
    together = APIRouter(prefix=V1)
    together.include_router(_reading(access))
    together.include_router(_writing(access))
    return together


def _reading(access: Access) -> APIRouter:
    reading = router(access.read, "watermarks")

    @reading.get("/watermarks", response_model=models.Watermarks)
    async def watermarks(
        query: Annotated[models.ConsumerQuery, InUrl()], backend: AnyBackend
    ) -> Response:
        """Return all watermarks of a consumer."""

        def watermarks_json(client: LakeChime) -> dict[str, Any]:
            by_key = client.watermarks(query.consumer)
            return {"watermarks": [watermark_json(watermark) for watermark in by_key.values()]}

        return await backend.answer(watermarks_json)

    @reading.get("/consumers", response_model=models.Consumers)
    async def consumers(
        query: Annotated[models.ConsumersQuery, InUrl()], backend: AnyBackend
    ) -> Response:
        """Return the consumers that retention waits for, the furthest behind first."""

        def consumers_json(client: LakeChime) -> dict[str, Any]:
            consumers = client.consumers(query.limit)
            return {"consumers": [asdict(consumer) for consumer in consumers]}

        return await backend.answer(consumers_json)

    @reading.get("/watermark", response_model=models.WatermarkAnswer)
    async def watermark(
        query: Annotated[models.WatermarkQuery, InUrl()], backend: AnyBackend
    ) -> Response:
        """Return a watermark of a consumer."""

        def answer(client: LakeChime) -> dict[str, Any]:
            watermark = client.watermark(query.consumer, query.key)
            return {"watermark": None if watermark is None else watermark_json(watermark)}

        return await backend.answer(answer)

    return reading


def _writing(access: Access) -> APIRouter:
    writing = router(access.write, "watermarks")

    @writing.put(
        "/watermark", response_model=models.WatermarkAnswer, responses=problems(*WITH_BODY, *MOVED)
    )
    async def put(body: models.WatermarkPut, backend: AnyBackend) -> Response:
        """Set a watermark, if its revision is still the one that was read."""

        def moved(client: LakeChime) -> dict[str, Any]:
            watermark = client.put_watermark(
                body.consumer, body.key, body.value, expected=body.expected, step=body.step
            )
            return {"watermark": watermark_json(watermark)}

        return await backend.answer(moved)

    @writing.delete(
        "/watermark", status_code=204, response_class=Response, responses=problems(*MISSING, *MOVED)
    )
    async def delete(
        query: Annotated[models.WatermarkDelete, InUrl()], backend: AnyBackend
    ) -> Response:
        """Delete a watermark, if its revision is still the one that was read."""
        await backend.run(
            lambda store: LakeChime(store).delete_watermark(
                query.consumer, query.key, expected=query.expected, step=query.step
            )
        )
        return Response(status_code=204)

    return writing
