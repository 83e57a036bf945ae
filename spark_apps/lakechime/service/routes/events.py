"""Register events and find them."""

from typing import Annotated, Any

from fastapi import APIRouter, Response
from fastapi import Query as InUrl

from lakechime.answers import Filter
from lakechime.client import LakeChime
from lakechime.errors import InvalidEventError
from lakechime.remote.wire import V1, found_json, page_json, state_json
from lakechime.service import models
from lakechime.service.access import Access
from lakechime.service.routes.answers import MOVED, WITH_BODY, AnyBackend, problems, router
from lakechime.service.work import json_response
from lakechime.store.sql_store import SqlStore


def routes(access: Access) -> APIRouter:
    together = APIRouter(prefix=V1)
    together.include_router(_writing(access))
    together.include_router(_reading(access))
    return together


def _writing(access: Access) -> APIRouter:
    writing = router(access.write, "events")

    @writing.post(
        "/events", response_model=models.RegisteredAnswer, responses=problems(*WITH_BODY, *MOVED)
    )
    async def register(body: models.Register, backend: AnyBackend) -> Response:
        """Register events. The same event twice is one event: the second answer tells the first one's place."""
        outbox = None if body.outbox is None else body.outbox.outbox()
        return await backend.answer(
            lambda client: {
                "registered": [
                    registered.to_json()
                    for registered in client.register(body.events, outbox=outbox)
                ]
            }
        )

    return writing


def _reading(access: Access) -> APIRouter:
    reading = router(access.read, "events")

    @reading.post("/events/query", response_model=models.Page, responses=problems(*WITH_BODY))
    async def query(body: models.Query, backend: AnyBackend) -> Response:
        """Events by table, partition and tags; by seq, or by the time when they were registered."""
        return await backend.run(lambda store: json_response(_page(store, body)))

    @reading.post("/events/find", response_model=models.Found, responses=problems(*WITH_BODY))
    async def find(body: models.Find, backend: AnyBackend) -> Response:
        """For many interests at once, the first event that matches each."""
        interests = [interest.interest() for interest in body.interests]
        return await backend.answer(lambda client: found_json(client.find(interests)))

    @reading.get("/events/tail", response_model=models.Page)
    async def tail(asked: Annotated[models.Tail, InUrl()], backend: AnyBackend) -> Response:
        """What is new for everybody."""
        return await backend.answer(lambda client: page_json(client.tail(asked.after, asked.limit)))

    @reading.get("/head", response_model=models.Head)
    async def head(backend: AnyBackend) -> Response:
        """The greatest seq that a watermark may take now."""
        return await backend.answer(lambda client: {"head": client.head()})

    @reading.get("/table", response_model=models.TableAnswer)
    async def table(asked: Annotated[models.TableQuery, InUrl()], backend: AnyBackend) -> Response:
        """What is known of a table, and how far its producer's log is registered."""

        def state(client: LakeChime) -> dict[str, Any]:
            found = client.table_state(asked.table, asked.cluster)
            return {"state": None if found is None else state_json(found)}

        return await backend.answer(state)

    @reading.get("/table/seen", response_model=models.SeenPage)
    async def seen(asked: Annotated[models.SeenQuery, InUrl()], backend: AnyBackend) -> Response:
        """What the table's producer remembers by item."""

        def page(store: SqlStore) -> Response:
            found = store.seen(asked.cluster, asked.table, after=asked.after)
            return json_response(
                {"items": list(found.items.items()), "next_after": found.next_after}
            )

        return await backend.run(page)

    return reading


def _page(store: SqlStore, body: models.Query) -> Any:
    after, until, covered = body.after, body.until, None
    if body.start_ts is not None or body.end_ts is not None:
        if body.start_ts is None or body.end_ts is None or body.start_ts > body.end_ts:
            raise InvalidEventError(
                "a range of times has both start_ts and end_ts, in this order; give both or none"
            )
        span = store.span(body.start_ts, body.end_ts)
        after, until = (
            max(after, span.after),
            span.until if until is None else min(until, span.until),
        )
        covered = span.covered_until_ts
    page = LakeChime(store).events(
        body.tables,
        after=after,
        until=until,
        partition=body.partition,
        tags=body.tags,
        limit=body.limit,
    )
    answer = {**page_json(page), "covered_until_ts": covered}
    if body.start_ts is not None:  # after the events were read: they may have expired meanwhile
        tables = Filter(tables=tuple(body.tables))
        answer["covered_from_ts"] = store.covered_from(tables, body.start_ts)
    return answer
