"""Work on the database, in the service's own threads.

The event loop only waits, and the threads of a surrounding program stay free.
"""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

from fastapi import Request, Response

from lakechime.client import LakeChime
from lakechime.errors import InvalidEventError, UnavailableError
from lakechime.service.limits import THREADS
from lakechime.store.sql_store import SqlStore

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Backend:
    """The store, opened at the first request of each process.

    While the database is unreachable, each request tries again.
    """

    open_store: Callable[[], SqlStore]
    _store: SqlStore | None = None
    _opening: Lock = field(default_factory=Lock)
    _threads: ThreadPoolExecutor | None = None

    def store(self) -> SqlStore:
        with self._opening:
            if self._store is None:
                self._store = self._opened()
            return self._store

    def _opened(self) -> SqlStore:
        try:
            return self.open_store()
        except InvalidEventError as error:  # the caller of the service cannot correct the URL
            raise UnavailableError(f"the service cannot open its database: {error}") from error

    async def run(self, work: Callable[[SqlStore], T]) -> T:
        """Run work in a thread, and return its value."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lakechime")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(self.store()))

    async def answer(self, work: Callable[[LakeChime], Any], status: int = 200) -> Response:
        """Run work in a thread, and return its value as JSON; the thread also encodes it."""
        return await self.run(lambda store: json_response(work(LakeChime(store)), status))

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None
        if self._store is not None:
            self._store.close()
            self._store = None


def backend_of(request: Request) -> Backend:
    """Return the backend of the app that the request came to."""
    backend: Backend = request.app.state.lakechime
    return backend


def json_response(value: Any, status: int = 200) -> Response:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return Response(text.encode(), status_code=status, media_type="application/json")
