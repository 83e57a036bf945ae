"""Lines that a process writes, however long.

They are read in chunks, so that the process never waits for a reader that gave up on a long line.
"""

import asyncio
from collections.abc import AsyncIterator

LONGEST = 8192  # bytes of a line that are kept
_CHUNK = 1 << 16


async def read_lines(stream: asyncio.StreamReader, longest: int = LONGEST) -> AsyncIterator[str]:
    """Yield lines until the stream ends.

    Of a line longer than `longest` bytes its beginning comes, with the number of bytes cut.
    """
    line, size = b"", 0
    while chunk := await stream.read(_CHUNK):
        first, *others = chunk.split(b"\n")
        line += first[: longest - len(line)]
        size += len(first)
        for piece in others:
            yield _text(line, size)
            line, size = piece[:longest], len(piece)
    if size:
        yield _text(line, size)


def _text(line: bytes, size: int) -> str:
    text = line.decode(errors="replace").rstrip()
    cut = size - len(line)
    if cut > 0:
        return f"{text} ... ({cut:,} bytes more)"
    return text
