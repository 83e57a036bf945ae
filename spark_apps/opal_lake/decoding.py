"""Errors of decoders, turned into ones that name the file of the table."""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from opal_lake.errors import ForeignPathError, FormatError

_MAX_CHARACTERS = 300  # shown of a decoder's error, which may quote the file
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
    """Turn every error of a decoder into a FormatError that names the file.

    `what` is the kind of file that was expected, and `mend` the next step, for the message.
    """
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
