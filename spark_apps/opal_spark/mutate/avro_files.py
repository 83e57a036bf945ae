"""The schemas of Avro files, from their headers.

Spark applies the schema of one file to all files that it reads together.
"""

import io

from opal_lake.errors import InvalidInputError
from opal_lake.storage import Storage

_MAGIC = b"Obj\x01"
_HEAD_BYTES = 1 << 16


def schema_text(storage: Storage, path: str, name: str | None = None) -> str:
    """Return the schema of a file's header, in JSON.

    Errors call the file `name`, by default its path.
    """
    shown_name = name or f"{storage.uri}/{path}"
    length = _HEAD_BYTES
    while True:
        head = storage.get(path, 0, length)
        try:
            return _metadata(io.BytesIO(head))["avro.schema"].decode("utf-8")
        except EOFError:
            # A full read may have ended within the header
            if len(head) == length:
                length *= 8
                continue
            raise _not_avro(shown_name, "its header is cut off") from None
        except (KeyError, ValueError) as error:
            raise _not_avro(shown_name, f"its header has no schema ({error})") from error


def _not_avro(name: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{name} is not an Avro file, or is damaged: {why}. "
        "Correct the format, or deliver the file again"
    )


def _metadata(stream: io.BytesIO) -> dict[str, bytes]:
    """Read the metadata of an Avro file's header: a map in blocks, the last one empty."""
    magic = _read_bytes(stream, len(_MAGIC))
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic!r}")
    entries: dict[str, bytes] = {}
    while count := _read_number(stream):
        # A negative count says that the block's length in bytes follows
        if count < 0:
            _read_number(stream)
        for _ in range(abs(count)):
            name = _read_bytes(stream, _read_number(stream)).decode("utf-8")
            entries[name] = _read_bytes(stream, _read_number(stream))
    return entries


def _read_bytes(stream: io.BytesIO, length: int) -> bytes:
    if length < 0:
        raise ValueError(f"a text of {length} bytes")
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data


def _read_number(stream: io.BytesIO) -> int:
    """Read a number of 7 bits a byte, with the sign in the last bit."""
    value = shift = 0
    while True:
        byte = _read_bytes(stream, 1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7
