"""Whatever lies where a file of the table should lie: an error that names it, never one of a decoder."""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from opal_lake.errors import ForeignPathError, FormatError

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
    """Whatever lies at the path: an error that names it."""
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
    return text if len(text) < 300 else f"{text[:300]}..."
