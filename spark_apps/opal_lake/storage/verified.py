"""Reads of objects whose sizes and checksums are known, and verified."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from opal_lake.errors import FormatError, NotFoundError, OpalError
from opal_lake.storage.protocol import Storage


class FileRef(Protocol):
    """A file as a commit or a checkpoint records it."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def crc32(self) -> int: ...


# Bytes of a commit, a root or another document whose size is recorded nowhere.
MAX_SEALED = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A `FileRef` with nothing else, for callers that have many."""

    path: str
    size: int
    crc32: int


def read_verified(storage: Storage, file: FileRef) -> bytes:
    """Read a whole file.

    Raises FormatError if the file's bytes are not those that were written, and ExpiredError if
    retention deleted the file.
    """
    return b"".join(verified_pieces(storage, file, file.size))


def verified_pieces(storage: Storage, file: FileRef, piece_bytes: int) -> Iterator[bytes]:
    """Yield a file piece by piece.

    The bytes are verified after the last piece: FormatError is raised then if they are not those
    that were written.
    """
    size = crc32 = 0
    for start in range(0, max(1, file.size), max(1, piece_bytes)):
        length = piece_bytes
        if file.size - start <= piece_bytes:
            # A byte more than expected shows that the file is too long.
            length = file.size - start + 1
        try:
            data = storage.get(file.path, start, length)
        except NotFoundError as error:
            raise missing_error(storage, file.path) from error
        size += len(data)
        crc32 = zlib.crc32(data, crc32)
        yield data
    if size != file.size or crc32 != file.crc32:
        raise FormatError(
            f"{storage.uri}/{file.path} is damaged: it has {size} bytes with crc32 "
            f"{crc32:08x} instead of {file.size} with {file.crc32:08x}; "
            "restore the file from a backup"
        )


def read_sealed(storage: Storage, path: str) -> bytes:
    """Read a document without a recorded size; raise FormatError if it is too long."""
    data = storage.get(path, 0, MAX_SEALED + 1)
    if len(data) > MAX_SEALED:
        raise FormatError(
            f"{storage.uri}/{path} has more than {MAX_SEALED:,} bytes, "
            "which no document of its kind has; restore it from a backup"
        )
    return data


Diagnosis = Callable[[Storage, str], OpalError | None]

_RESTORE = "restore the file from a backup"
# A store knows nothing of versions. Modules that know them register a function here.
_diagnoses: list[Diagnosis] = []


def diagnose_missing(diagnosis: Diagnosis) -> Diagnosis:
    """Register a function that explains why a file is missing; None means damage."""
    _diagnoses.append(diagnosis)
    return diagnosis


def missing_error(storage: Storage, path: str, mend: str = _RESTORE) -> OpalError:
    """Return the error for a missing file that the version being read refers to."""
    for diagnosis in _diagnoses:
        error = diagnosis(storage, path)
        if error is not None:
            return error
    return FormatError(f"{storage.uri}/{path} is missing, though the table refers to it; {mend}")
