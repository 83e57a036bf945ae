"""How far consumers are."""

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
        asked: Annotated[models.ConsumerQuery, InUrl()], backend: AnyBackend
    ) -> Response:
        """All of a consumer."""

        def found(client: LakeChime) -> dict[str, Any]:
            return {
                "watermarks": [
                    watermark_json(watermark)
                    for watermark in client.watermarks(asked.consumer).values()
                ]
            }

        return await backend.answer(found)

    @reading.get("/consumers", response_model=models.Consumers)
    async def consumers(
        asked: Annotated[models.ConsumersQuery, InUrl()], backend: AnyBackend
    ) -> Response:
        """Whom retention waits for, the furthest behind first."""
        return await backend.answer(
            lambda client: {
                "consumers": [asdict(consumer) for consumer in client.consumers(asked.limit)]
            }
        )

    @reading.get("/watermark", response_model=models.WatermarkAnswer)
    async def watermark(
        asked: Annotated[models.WatermarkQuery, InUrl()], backend: AnyBackend
    ) -> Response:
        """One of a consumer."""

        def found(client: LakeChime) -> dict[str, Any]:
            there = client.watermark(asked.consumer, asked.key)
            return {"watermark": None if there is None else watermark_json(there)}

        return await backend.answer(found)

    return reading


def _writing(access: Access) -> APIRouter:
    writing = router(access.write, "watermarks")

    @writing.put(
        "/watermark", response_model=models.WatermarkAnswer, responses=problems(*WITH_BODY, *MOVED)
    )
    async def put(body: models.WatermarkPut, backend: AnyBackend) -> Response:
        """Set it, if its revision is still the one that was read."""

        def moved(client: LakeChime) -> dict[str, Any]:
            return {
                "watermark": watermark_json(
                    client.put_watermark(
                        body.consumer,
                        body.key,
                        body.value,
                        expected=body.expected,
                        step=body.step,
                    )
                )
            }

        return await backend.answer(moved)

    @writing.delete(
        "/watermark", status_code=204, response_class=Response, responses=problems(*MISSING, *MOVED)
    )
    async def delete(
        asked: Annotated[models.WatermarkDelete, InUrl()], backend: AnyBackend
    ) -> Response:
        """Delete it, if its revision is still the one that was read."""
        await backend.run(
            lambda store: LakeChime(store).delete_watermark(
                asked.consumer, asked.key, expected=asked.expected, step=asked.step
            )
        )
        return Response(status_code=204)

    return writing
