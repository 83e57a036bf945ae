"""Limits of one request's cost."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException

from lakechime.remote.problems import TOO_LARGE

MAX_BODY_BYTES = 4 << 20
MAX_ENTRIES = 10_000  # events or interests of one request
THREADS = 16  # requests that use the database at once; the others wait


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Middleware that refuses larger bodies, immediately if a header has the length."""

    app: Callable[[Message, Receive, Send], Awaitable[None]]
    max_bytes: int

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared_bytes = _length_of(dict(scope["headers"]))
        received_bytes = 0

        async def counting_receive() -> Message:
            nonlocal received_bytes
            if declared_bytes > self.max_bytes:
                raise self._error()
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self.max_bytes:
                raise self._error()
            return message

        await self.app(scope, counting_receive, send)

    def _error(self) -> HTTPException:
        message = f"the body is larger than {self.max_bytes:,} bytes; send fewer events at once"
        return HTTPException(TOO_LARGE.status, message, headers={"Connection": "close"})


def _length_of(headers: Mapping[bytes, bytes]) -> int:
    # A chunked body has no length: its bytes are counted as they arrive
    length = headers.get(b"content-length", b"")
    return int(length) if length.isdigit() else 0
