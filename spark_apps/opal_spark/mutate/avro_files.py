"""The fields of Avro files, by their headers: Spark takes those of one file for all that it reads together."""

import io

from opal_lake.errors import InvalidInputError
from opal_lake.storage import Storage

_MAGIC = b"Obj\x01"
_HEAD_BYTES = 1 << 16


def schema_text(storage: Storage, path: str, name: str | None = None) -> str:
    """As the header says it, in JSON. `name` is what errors call the file, by default its path."""
    length, called = _HEAD_BYTES, name or f"{storage.uri}/{path}"
    while True:
        head = storage.get(path, 0, length)
        try:
            return _metadata(io.BytesIO(head))["avro.schema"].decode("utf-8")
        except EOFError:
            if len(head) == length:
                length *= 8
                continue
            raise _no_avro(called, "its header is cut off") from None
        except (KeyError, ValueError) as error:
            raise _no_avro(called, f"its header has no schema ({error})") from error


def _no_avro(name: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{name} is no Avro file, or damaged: {why}. Correct the format, or deliver the file again"
    )


def _metadata(stream: io.BytesIO) -> dict[str, bytes]:
    """A map as Avro writes it, in blocks of entries; the last block has none."""
    if (magic := _take(stream, len(_MAGIC))) != _MAGIC:
        raise ValueError(f"it begins with {magic!r}")
    entries: dict[str, bytes] = {}
    while count := _number(stream):
        if count < 0:
            _number(stream)  # how long the block is
        for _ in range(abs(count)):
            name = _take(stream, _number(stream)).decode("utf-8")
            entries[name] = _take(stream, _number(stream))
    return entries


def _take(stream: io.BytesIO, length: int) -> bytes:
    if length < 0:
        raise ValueError(f"a text of {length} bytes")
    taken = stream.read(length)
    if len(taken) < length:
        raise EOFError
    return taken


def _number(stream: io.BytesIO) -> int:
    """Of 7 bits a byte, the sign in the last bit."""
    value = shift = 0
    while True:
        byte = _take(stream, 1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7
