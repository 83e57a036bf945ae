"""Reading an object whose size and checksum are known beforehand, and verifying both."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from opal_lake.errors import FormatError, NotFoundError, OpalError
from opal_lake.storage.protocol import Storage


class FileRef(Protocol):
    """What a commit or a checkpoint knows of a file."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def crc32(self) -> int: ...


MOST_SEALED = (
    64 << 20
)  # bytes of a commit, a root or another document of which nothing says how long it is


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """Just that, for those who have many."""

    path: str
    size: int
    crc32: int


def read_verified(storage: Storage, file: FileRef) -> bytes:
    """The whole file; FormatError names it when it is not what was written, ExpiredError when retention deleted it."""
    return b"".join(verified_pieces(storage, file, file.size))


def verified_pieces(storage: Storage, file: FileRef, piece_bytes: int) -> Iterator[bytes]:
    """The file a piece at a time. Only after the last one it is known to be what was written: else FormatError comes."""
    size, crc32 = 0, 0
    for start in range(0, max(1, file.size), max(1, piece_bytes)):
        left = file.size - start
        try:
            data = storage.get(
                file.path, start, piece_bytes if left > piece_bytes else left + 1
            )  # what is longer is not what was written
        except NotFoundError as error:
            raise missing_error(storage, file.path) from error
        size, crc32 = size + len(data), zlib.crc32(data, crc32)
        yield data
    if size != file.size or crc32 != file.crc32:
        raise FormatError(
            f"{storage.uri}/{file.path} is damaged: {size} bytes with crc32 {crc32:08x}, "
            f"written were {file.size} with {file.crc32:08x}; restore the file from a backup"
        )


def read_sealed(storage: Storage, path: str) -> bytes:
    """A document without a recorded size; FormatError if it is longer than any writer makes it."""
    data = storage.get(path, 0, MOST_SEALED + 1)
    if len(data) > MOST_SEALED:
        raise FormatError(
            f"{storage.uri}/{path} has more than {MOST_SEALED:,} bytes, which no document of its kind has; restore it from a backup"
        )
    return data


Diagnosis = Callable[[Storage, str], OpalError | None]

_RESTORE = "restore the file from a backup"
_diagnoses: list[
    Diagnosis
] = []  # a store knows of no versions: who does says so here, in every process that opens tables


def diagnose_missing(diagnosis: Diagnosis) -> Diagnosis:
    """Ask this one, too, why a file is missing that was there; its answer None: that is damage."""
    _diagnoses.append(diagnosis)
    return diagnosis


def missing_error(storage: Storage, path: str, mend: str = _RESTORE) -> OpalError:
    """What to raise for a file that is not there, though the version that is read refers to it."""
    diagnosed = next(
        (error for diagnosis in _diagnoses if (error := diagnosis(storage, path)) is not None), None
    )
    return diagnosed or FormatError(
        f"{storage.uri}/{path} is missing, though the table refers to it; {mend}"
    )
