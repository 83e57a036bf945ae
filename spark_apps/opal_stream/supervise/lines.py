"""Lines that a process writes, however long: read in chunks, so that it never waits for a reader that has given up on one of them."""

import asyncio
from collections.abc import AsyncIterator

LONGEST = 8192  # bytes of a line that are kept
_CHUNK = 1 << 16


async def lines_of(stream: asyncio.StreamReader, longest: int = LONGEST) -> AsyncIterator[str]:
    """Until the stream ends. Of a longer line its beginning comes, and how much was cut."""
    kept, size = b"", 0
    while chunk := await stream.read(_CHUNK):
        first, *others = chunk.split(b"\n")
        kept, size = kept + first[: longest - len(kept)], size + len(first)
        for piece in others:
            yield _text(kept, size)
            kept, size = piece[:longest], len(piece)
    if size:
        yield _text(kept, size)


def _text(kept: bytes, size: int) -> str:
    cut = f" ... ({size - len(kept):,} bytes more)" if size > len(kept) else ""
    return kept.decode(errors="replace").rstrip() + cut
