"""Routes of administration: health, retention and tokens."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi import Query as InUrl

from lakechime.access import token_json
from lakechime.client import LakeChime
from lakechime.remote.problems import UNAVAILABLE
from lakechime.remote.wire import V1
from lakechime.service import models
from lakechime.service.access import Access
from lakechime.service.routes.answers import MISSING, WITH_BODY, AnyBackend, problems, router
from lakechime.service.work import json_response
from lakechime.store.migrate import read_revision
from lakechime.store.sql_tokens import SqlTokens


def routes(access: Access) -> APIRouter:
    together = APIRouter()
    together.include_router(_health(access))
    together.include_router(_check(access), prefix=V1)
    together.include_router(_retention(access), prefix=V1)
    together.include_router(_tokens(access), prefix=V1)
    return together


def _health(access: Access) -> APIRouter:
    health = APIRouter(dependencies=[Depends(access.probe)], tags=["health"])

    @health.get("/health", response_model=models.Health)
    async def alive() -> Response:
        """Report that the process runs."""
        return json_response({"status": "ok"})

    @health.get("/ready", response_model=models.Health, responses=problems(UNAVAILABLE))
    async def ready(backend: AnyBackend) -> Response:
        """Report that the process and the database work."""
        await backend.run(lambda store: store.database.read(read_revision))
        return json_response({"status": "ok"})

    return health


def _check(access: Access) -> APIRouter:
    reading = router(access.read, "admin")

    @reading.get("/check", response_model=models.Check)
    async def check(backend: AnyBackend) -> Response:
        """Return one line about the state of the database."""
        return await backend.answer(lambda client: {"check": client.check()})

    return reading


def _retention(access: Access) -> APIRouter:
    admin = router(access.admin, "admin")

    @admin.post("/expire", response_model=models.Expired, responses=problems(*WITH_BODY))
    async def expire(body: models.Expire, backend: AnyBackend) -> Response:
        """Delete events registered before a time, and return their number."""

        def expired(client: LakeChime) -> dict[str, Any]:
            count = client.expire(body.older_than_ms, keep_unseen=body.keep_unseen)
            return {"expired": count}

        return await backend.answer(expired)

    return admin


def _tokens(access: Access) -> APIRouter:
    admin = router(access.admin, "tokens")

    @admin.get("/tokens", response_model=models.Tokens)
    async def tokens(backend: AnyBackend) -> Response:
        """Return every token that was created, without its secret."""
        known = await backend.run(lambda store: SqlTokens.of(store).tokens())
        return json_response({"tokens": [token_json(token) for token in known]})

    @admin.post(
        "/tokens", status_code=201, response_model=models.NewToken, responses=problems(*WITH_BODY)
    )
    async def create(body: models.TokenBody, backend: AnyBackend) -> Response:
        """Create a token. Its secret is in this answer, and nowhere else."""
        secret = await backend.run(lambda store: SqlTokens.of(store).create(body.name, body.role))
        return json_response({"token": secret, "name": body.name, "role": body.role}, 201)

    @admin.delete("/token", status_code=204, response_class=Response, responses=problems(*MISSING))
    async def revoke(query: Annotated[models.TokenQuery, InUrl()], backend: AnyBackend) -> Response:
        """Revoke a token. The service refuses it from then on."""
        await backend.run(lambda store: SqlTokens.of(store).revoke(query.name))
        return Response(status_code=204)

    return admin
