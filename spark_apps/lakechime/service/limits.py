"""What one request may cost."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException

from lakechime.remote.problems import TOO_LARGE

MAX_BODY_BYTES = 4 << 20
MAX_ENTRIES = 10_000  # events or interests of one request
THREADS = 16  # that speak to the database at once; the others wait


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Refuses a larger body: at once where its length is said, else as soon as it is longer."""

    app: Callable[[Message, Receive, Send], Awaitable[None]]
    most_bytes: int

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        said = _length_of(dict(scope["headers"]))
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            if said > self.most_bytes:
                raise self._error()
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most_bytes:
                raise self._error()
            return message

        await self.app(scope, counted, send)

    def _error(self) -> HTTPException:
        message = f"the body is larger than {self.most_bytes:,} bytes; send fewer events at once"
        return HTTPException(TOO_LARGE.status, message, headers={"Connection": "close"})


def _length_of(headers: Mapping[bytes, bytes]) -> int:
    length = headers.get(b"content-length", b"")
    return int(length) if length.isdigit() else 0
