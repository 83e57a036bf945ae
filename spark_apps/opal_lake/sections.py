"""The long lists of a table's state as Parquet tables: files, segments, logs, runs, tokens, bitmap bases.

Each row is one item, as JSON beside the columns that people filter by; the JSON is the same as in a commit.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opal_lake.commit import canonical_json
from opal_lake.errors import FormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRef:
    """Where a section lies, and the version that it describes."""

    path: str
    size: int
    crc32: int
    version: int


def encode_section(items: Iterable[Any], to_json: Callable[[Any], Any]) -> bytes:
    """One row an item."""
    table = pa.table({"item": pa.array([canonical_json(to_json(item)).decode() for item in items], pa.string())})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, write_statistics=False)
    return bytes(sink.getvalue())


def decode_section(data: bytes, path: str, from_json: Callable[[Any], Any]) -> list[Any]:
    try:
        texts = pq.read_table(pa.BufferReader(data))["item"].to_pylist()
    except (pa.ArrowException, KeyError, OSError) as error:
        raise FormatError(f"{path} cannot be decoded ({error}); run `opal check`") from error
    return [from_json(item) for item in json.loads("[" + ",".join(texts) + "]")]


def ref_to_json(ref: SectionRef) -> list[Any]:
    return [ref.path, ref.size, ref.crc32, ref.version]


def ref_from_json(data: list[Any]) -> SectionRef:
    return SectionRef(path=data[0], size=data[1], crc32=data[2], version=data[3])


def refs_to_json(refs: Mapping[str, SectionRef]) -> dict[str, Any]:
    return {name: ref_to_json(ref) for name, ref in refs.items()}
