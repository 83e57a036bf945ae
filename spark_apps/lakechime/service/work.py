"""Work on the database, in threads of the service's own: the event loop only waits, and no other program's threads are taken."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from starlette.responses import Response

from lakechime.client import LakeChime
from lakechime.errors import InvalidEventError, UnavailableError
from lakechime.service.limits import THREADS
from lakechime.store.sql_store import SqlStore

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Backend:
    """The store, opened at the first question of each process. While the database is away, each question tries again."""

    open_store: Callable[[], SqlStore]
    _store: SqlStore | None = None
    _opening: Lock = field(default_factory=Lock)
    _limiter: CapacityLimiter | None = None

    def store(self) -> SqlStore:
        with self._opening:
            if self._store is None:
                self._store = self._opened()
            return self._store

    def _opened(self) -> SqlStore:
        try:
            return self.open_store()
        except InvalidEventError as error:  # nothing that who asks could mend
            raise UnavailableError(f"the service cannot open its database: {error}") from error

    async def run(self, work: Callable[[SqlStore], T]) -> T:
        """The work's value."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(THREADS)
        return await to_thread.run_sync(lambda: work(self.store()), limiter=self._limiter)

    async def answer(self, work: Callable[[LakeChime], Any], status: int = 200) -> Response:
        """The work's value as JSON, which is written in the thread too."""
        return await self.run(lambda store: json_response(work(LakeChime(store)), status))

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def backend_of(request: Request) -> Backend:
    """Of the app that the request came to."""
    backend: Backend = request.app.state.lakechime
    return backend


def json_response(value: Any, status: int = 200) -> Response:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return Response(text.encode(), status_code=status, media_type="application/json")
