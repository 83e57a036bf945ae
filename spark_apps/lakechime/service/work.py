"""Work on the database, in threads of the service's own: the event loop only waits, and no other program's threads are taken."""

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
    """The store, opened at the first question of each process. While the database is away, each question tries again."""

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
        except InvalidEventError as error:  # nothing that who asks could mend
            raise UnavailableError(f"the service cannot open its database: {error}") from error

    async def run(self, work: Callable[[SqlStore], T]) -> T:
        """The work's value."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lakechime")
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: work(self.store())
        )

    async def answer(self, work: Callable[[LakeChime], Any], status: int = 200) -> Response:
        """The work's value as JSON, which is written in the thread too."""
        return await self.run(lambda store: json_response(work(LakeChime(store)), status))

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None
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
