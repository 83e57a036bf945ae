"""The FastAPI app of the service.

Every route needs a right, every error is JSON, bodies have a maximum size, and the OpenAPI document
describes all of that.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response

from lakechime.service.access import Access
from lakechime.service.errors import add_error_handlers
from lakechime.service.limits import MAX_BODY_BYTES, BodyLimit
from lakechime.service.routes import admin, events, triggers, watermarks
from lakechime.service.work import Backend, json_response
from lakechime.store.sql_store import SqlStore

TITLE = "LakeChime"
VERSION = "1"  # of the paths below /v1: additions keep it
DESCRIPTION = (
    "Data-change events of a lake's tables: register them, find them, and move the watermarks of "
    "their consumers."
)


def create_app(
    open_store: Callable[[], SqlStore], access: Access, *, max_body_bytes: int = MAX_BODY_BYTES
) -> FastAPI:
    """Return the app, which opens the store at its first request.

    `access` has the dependencies that check rights.
    """
    backend = Backend(open_store=open_store)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        backend.close()

    # FastAPI's own documents are off, because they would be open to everybody
    app = FastAPI(
        title=TITLE,
        version=VERSION,
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.lakechime = backend
    for module in (events, watermarks, triggers, admin):
        app.include_router(module.routes(access))
    app.include_router(_document(access))
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes)
    add_error_handlers(app)
    return app


def _document(access: Access) -> APIRouter:
    router = APIRouter(dependencies=[Depends(access.probe)])

    @router.get("/openapi.json", include_in_schema=False)
    async def document(request: Request) -> Response:
        """Return the OpenAPI document, with the address that the request came to."""
        schema: dict[str, Any] = request.app.openapi()
        url = request.scope.get("root_path") or "/"
        return json_response({**schema, "servers": [{"url": url}]})

    return router
