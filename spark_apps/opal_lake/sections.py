"""The long lists of a table's state: files, segments, logs, runs, tokens and so on. Lines of JSON, as in a commit, under zstd."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

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
    """One line an item."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for item in items:
            stream.write(canonical_json(to_json(item)) + b"\n")
    return bytes(sink.getvalue())


def decode_section(data: bytes, path: str, from_json: Callable[[Any], Any]) -> list[Any]:
    try:
        lines = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read().splitlines()
        return [from_json(item) for item in json.loads(b"[" + b",".join(lines) + b"]")]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise FormatError(f"{path} cannot be decoded ({error!r}); run `opal check`") from error


def ref_to_json(ref: SectionRef) -> list[Any]:
    return [ref.path, ref.size, ref.crc32, ref.version]


def ref_from_json(data: list[Any]) -> SectionRef:
    return SectionRef(path=data[0], size=data[1], crc32=data[2], version=data[3])


def refs_to_json(refs: Mapping[str, SectionRef]) -> dict[str, Any]:
    return {name: ref_to_json(ref) for name, ref in refs.items()}
