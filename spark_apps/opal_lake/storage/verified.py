"""Reading an object that somebody vouched for: its size and checksum are known beforehand."""

import zlib
from dataclasses import dataclass
from typing import Protocol

from opal_lake.errors import FormatError, NotFoundError
from opal_lake.storage.protocol import Storage


class Vouched(Protocol):
    """What a commit or a checkpoint knows of a file."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def crc32(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VouchedFile:
    """Just that."""

    path: str
    size: int
    crc32: int


def read_verified(storage: Storage, file: Vouched) -> bytes:
    """The whole file; FormatError names it when it is not what was written."""
    try:
        data = storage.get(file.path)
    except NotFoundError as error:
        raise FormatError(f"{storage.uri}/{file.path} is missing, though the table refers to it; restore the file from a backup") from error
    if len(data) != file.size or zlib.crc32(data) != file.crc32:
        raise FormatError(
            f"{storage.uri}/{file.path} is damaged: {len(data)} bytes with crc32 {zlib.crc32(data):08x}, "
            f"written were {file.size} with {file.crc32:08x}; restore the file from a backup"
        )
    return data
