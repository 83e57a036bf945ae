"""A search for values in all files of a table, over decoded content.

A value is searched as text, in the binary forms that Parquet, ORC and Arrow store, and by its
beginning, as bounds of long texts may be cut.
"""

import base64
import io
import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pyorc

from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.schema import Atomic
from opal_lake.key_store.run import decode_run
from opal_lake.storage import Storage

_BEGINNING = 8  # characters of a text that a cut bound still shows
Forms = dict[str, list[bytes]]


def key_hash(key: str) -> tuple[int, int]:
    """Return the hash of a text key."""
    high, low = hash_keys([pa.array([key])], [Atomic(name="string")])[0]
    return int(high), int(low)


def folders_with(storage: Storage, values: Iterable[object], key: str) -> dict[str, set[str]]:
    """Return the folders of the files that hold each value, or the hash of the key."""
    folders: dict[str, set[str]] = {}
    hashed = key_hash(key)
    forms = {str(value): _forms(value) for value in values}
    for stored in storage.list(""):
        data = storage.get(stored.path)
        folder = stored.path.rsplit("/", 1)[0]
        content = b"\n".join([stored.path.encode(), *_contents(stored.path, data)])
        for name, forms_of_value in forms.items():
            if any(form in content for form in forms_of_value):
                folders.setdefault(name, set()).add(folder)
        if stored.path.endswith(".run"):
            entries = decode_run(data, stored.path)
            pairs = zip(entries.high.tolist(), entries.low.tolist(), strict=True)
            if hashed in pairs:
                folders.setdefault("hash", set()).add(folder)
    return folders


def _forms(value: object) -> list[bytes]:
    """Return the bytes by which files may hold a value."""
    forms = [str(value).encode()]
    if isinstance(value, str):
        forms.append(value[:_BEGINNING].encode())
    if isinstance(value, Decimal):
        value = int(value.scaleb(-int(value.as_tuple().exponent)))
        forms.append(str(value).encode())
    if isinstance(value, int):
        length = (value.bit_length() + 8) // 8
        forms += [value.to_bytes(8, "little"), value.to_bytes(length, "big"), _varint(2 * value)]
    return forms


def _varint(number: int) -> bytes:
    """Return a number as ORC and thrift write it: seven bits in a byte, the lowest first."""
    parts: list[int] = []
    while number:
        number, low = divmod(number, 128)
        parts.append(low | (128 if number else 0))
    return bytes(parts)


def _contents(path: str, data: bytes) -> Iterator[bytes]:
    """Yield the content of a file: its raw bytes, and what they decode to."""
    yield data
    if path.endswith(".parquet"):
        file = pq.ParquetFile(pa.BufferReader(data))
        yield _text(file.read().to_pylist())
        yield str(file.metadata.to_dict()).encode()
    elif path.endswith(".orc"):
        yield _text(orc.ORCFile(pa.BufferReader(data)).read().to_pylist())
        yield from _orc_statistics(data)
    elif path.endswith(".zst"):
        yield _inflated(data)
    elif path.endswith(".run"):
        entries = decode_run(data, path)
        yield _text([entries.delta.tolist(), *(tie.tolist() for tie in entries.ties)])
    elif path.endswith(".rows"):
        yield _text(_gathered(data))
    elif path.endswith(".json"):
        yield from _inline(json.loads(data))


def _text(content: Any) -> bytes:
    return json.dumps(content, default=str).encode()


def _orc_statistics(data: bytes) -> Iterator[bytes]:
    """Yield the statistics of the file and of its stripes."""
    reader = pyorc.Reader(io.BytesIO(data))
    # The column 0 is the whole row
    columns = range(1, len(orc.ORCFile(pa.BufferReader(data)).schema) + 1)
    yield _text([reader[column].statistics for column in columns])
    for stripe in reader.iter_stripes():
        yield _text([stripe[column].statistics for column in columns])


def _gathered(data: bytes) -> list[Any]:
    """Return the rows of a file of gathered rows."""
    header, _, body = data.partition(b"\n")
    size = json.loads(header)["body"]["plain_size"]
    plain = pa.Codec("lz4").decompress(body, size)
    rows = pa.ipc.open_stream(plain).read_all()
    return list(rows.to_pylist())


def _inline(document: Any) -> Iterator[bytes]:
    """Yield the lists of a checkpoint that are within its root."""
    body = document.get("body", {}) if isinstance(document, dict) else {}
    for parts in body.get("sections", {}).values():
        for part in parts:
            if len(part) == 2:
                yield _inflated(base64.b64decode(part[0]))


def _inflated(data: bytes) -> bytes:
    return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())
