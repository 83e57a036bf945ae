"""Errors of decoders, turned into ones that name the file of the table."""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from opal_lake.errors import ForeignPathError, FormatError

_MAX_CHARACTERS = 300  # of a decoder's error: it may quote the file
_UNDECODABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    pa.ArrowException,
    struct.error,
    zlib.error,
)


@contextmanager
def decoding(path: str, what: str, mend: str = "restore the file from a backup") -> Iterator[None]:
    """Raise FormatError that names the file, whatever its bytes do to a decoder."""
    try:
        yield
    except ForeignPathError as error:
        raise ForeignPathError(f"{path}: {error}") from error
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    except _UNDECODABLE as error:
        raise FormatError(
            f"{path} cannot be decoded as {what} ({_shown(error)}); {mend}"
        ) from error


def _shown(error: BaseException) -> str:
    text = repr(error)
    if len(text) < _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]}..."
