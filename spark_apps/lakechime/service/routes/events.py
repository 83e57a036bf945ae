"""Routes that register events and find them."""

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
        """Register events. A repeated event is answered with the seq of the first one."""
        outbox = None if body.outbox is None else body.outbox.outbox()

        def registered(client: LakeChime) -> dict[str, Any]:
            answers = client.register(body.events, outbox=outbox)
            return {"registered": [answer.to_json() for answer in answers]}

        return await backend.answer(registered)

    return writing


def _reading(access: Access) -> APIRouter:
    reading = router(access.read, "events")

    @reading.post("/events/query", response_model=models.Page, responses=problems(*WITH_BODY))
    async def query(body: models.Query, backend: AnyBackend) -> Response:
        """Return events by table, partition and tags; by seq, or by time of registration."""
        return await backend.run(lambda store: json_response(_page(store, body)))

    @reading.post("/events/find", response_model=models.Found, responses=problems(*WITH_BODY))
    async def find(body: models.Find, backend: AnyBackend) -> Response:
        """Return the first matching seq of each of many interests."""
        interests = [interest.interest() for interest in body.interests]
        return await backend.answer(lambda client: found_json(client.find(interests)))

    @reading.get("/events/tail", response_model=models.Page)
    async def tail(query: Annotated[models.Tail, InUrl()], backend: AnyBackend) -> Response:
        """Return the new events of all tables."""
        return await backend.answer(lambda client: page_json(client.tail(query.after, query.limit)))

    @reading.get("/head", response_model=models.Head)
    async def head(backend: AnyBackend) -> Response:
        """Return the greatest seq that a watermark may have now."""
        return await backend.answer(lambda client: {"head": client.head()})

    @reading.get("/table", response_model=models.TableAnswer)
    async def table(query: Annotated[models.TableQuery, InUrl()], backend: AnyBackend) -> Response:
        """Return the state of a table, and the position of its producer's log."""

        def answer(client: LakeChime) -> dict[str, Any]:
            state = client.table_state(query.table, query.cluster)
            return {"state": None if state is None else state_json(state)}

        return await backend.answer(answer)

    @reading.get("/table/seen", response_model=models.SeenPage)
    async def seen(query: Annotated[models.SeenQuery, InUrl()], backend: AnyBackend) -> Response:
        """Return the values that the table's producer stored, by item."""

        def seen_page(store: SqlStore) -> Response:
            page = store.seen(query.cluster, query.table, after=query.after)
            return json_response({"items": list(page.items.items()), "next_after": page.next_after})

        return await backend.run(seen_page)

    return reading


def _page(store: SqlStore, body: models.Query) -> Any:
    """Return a page of events as JSON; for a range of times, also its complete part."""
    after, until = body.after, body.until
    covered_until_ts = None
    if body.start_ts is not None or body.end_ts is not None:
        if body.start_ts is None or body.end_ts is None or body.start_ts > body.end_ts:
            raise InvalidEventError(
                f"start_ts={body.start_ts} and end_ts={body.end_ts} are not a range of times; "
                "send both with start_ts <= end_ts, or neither"
            )
        span = store.span(body.start_ts, body.end_ts)
        after = max(after, span.after)
        if until is None:
            until = span.until
        else:
            until = min(until, span.until)
        covered_until_ts = span.covered_until_ts
    page = LakeChime(store).events(
        body.tables,
        after=after,
        until=until,
        partition=body.partition,
        tags=body.tags,
        limit=body.limit,
    )
    answer = {**page_json(page), "covered_until_ts": covered_until_ts}
    if body.start_ts is not None:
        # Read after the events, because some may have expired meanwhile
        tables = Filter(tables=tuple(body.tables))
        answer["covered_from_ts"] = store.covered_from(tables, body.start_ts)
    return answer
