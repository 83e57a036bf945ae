"""A search for values in all files of a table, over decoded content."""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.schema import Atomic
from opal_lake.key_store.run import decode_run
from opal_lake.storage import Storage


def key_hash(key: str) -> tuple[int, int]:
    """Return the hash of a text key."""
    high, low = hash_keys([pa.array([key])], [Atomic(name="string")])[0]
    return int(high), int(low)


def folders_with(storage: Storage, values: Iterable[object], key: str) -> dict[str, set[str]]:
    """Return the folders of the files that hold each value, or the hash of the key."""
    folders: dict[str, set[str]] = {}
    hashed = key_hash(key)
    for stored in storage.list(""):
        data = storage.get(stored.path)
        folder = stored.path.rsplit("/", 1)[0]
        if stored.path.endswith(".run"):
            entries = decode_run(data, stored.path)
            pairs = zip(entries.high.tolist(), entries.low.tolist(), strict=True)
            if hashed in pairs:
                folders.setdefault("hash", set()).add(folder)
            continue
        text = "\n".join(_texts(stored.path, data))
        for value in values:
            if str(value) in text:
                folders.setdefault(str(value), set()).add(folder)
    return folders


def _texts(path: str, data: bytes) -> Iterator[str]:
    """Yield the content of a file as texts: its raw bytes, and what they decode to."""
    yield data.decode("latin-1")
    if path.endswith(".parquet"):
        file = pq.ParquetFile(pa.BufferReader(data))
        yield json.dumps(file.read().to_pylist(), default=str)
        yield str(file.metadata.to_dict())
    elif path.endswith(".orc"):
        yield json.dumps(orc.ORCFile(pa.BufferReader(data)).read().to_pylist(), default=str)
    elif path.endswith(".zst"):
        yield _inflated(data)
    elif path.endswith(".json"):
        yield from _inline(json.loads(data))


def _inline(document: Any) -> Iterator[str]:
    """Yield the lists of a checkpoint that are within its root."""
    body = document.get("body", {}) if isinstance(document, dict) else {}
    for parts in body.get("sections", {}).values():
        for part in parts:
            if len(part) == 2:
                yield _inflated(base64.b64decode(part[0]))


def _inflated(data: bytes) -> str:
    return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()).decode("latin-1")
