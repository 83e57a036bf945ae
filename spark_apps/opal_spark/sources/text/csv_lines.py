"""Lines of CSV files, and their cells, read without Spark.

So a file's first line is known before Spark reads the file.
"""

import bz2
import codecs
import csv
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opal_lake.errors import InvalidInputError
from opal_lake.storage import Storage

_HEAD_BYTES = 1 << 16
_PIECE_BYTES = 8 << 20
_GZIP = b"\x1f\x8b\x08"
_GZIP_WINDOW_BITS = 31  # zlib's largest window, plus 16 for the header of gzip
# The option that reads line breaks within a cell or a document, for `ingest` and its command
MULTI_LINE = "options={'multiLine': 'true'}, `--source-option multiLine=true`"


def plain_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with lower-case names, and with one name for synonyms."""
    names = {"delimiter": "sep", "charset": "encoding"}
    plain = {}
    for name, value in options.items():
        plain[names.get(name.lower(), name.lower())] = value
    return plain


def is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"


def cells_of(line: str, options: Mapping[str, str]) -> list[str]:
    """Return the cells of one line."""
    delimiter = separator(options)
    quote = options.get("quote", '"')[:1]
    # Python's reader takes delimiters of one character
    if len(delimiter) != 1 or not quote:
        return line.split(delimiter)
    return next(csv.reader([line], delimiter=delimiter, quotechar=quote), [])


def separator(options: Mapping[str, str]) -> str:
    given = options["sep"]
    if not given:
        raise InvalidInputError(
            "the delimiter of the CSV files (option 'sep') is empty: "
            "give at least one character, such as ';' or '\\t'"
        )
    if "\\" in given:
        return given.encode().decode("unicode_escape")
    return given


def first_line(
    storage: Storage, path: str, options: Mapping[str, str], name: str | None = None
) -> str | None:
    """Return the first line that is not blank; None if all lines are blank.

    Errors call the file `name`, by default its path.
    """
    encoding = options.get("encoding", options.get("charset", "utf-8"))
    for line in lines(storage, path, encoding, _HEAD_BYTES, name):
        if line.strip():
            return line
    return None


def lines(
    storage: Storage,
    path: str,
    encoding: str,
    max_bytes: int | None = None,
    name: str | None = None,
) -> Iterator[str]:
    """Yield the lines of a text file, as Spark cuts them.

    With `max_bytes` only so many bytes of the file are read, and the last line may be cut off.
    """
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    # The beginning of a line whose end is not read yet
    unfinished = ""
    has_begun = False
    for data in _unpacked(storage, path, max_bytes, name or f"{storage.uri}/{path}"):
        text = decoder.decode(data)
        if text and not has_begun:
            text = text.removeprefix("\ufeff")
            has_begun = True
        text = unfinished + text
        # A \r at the end may be the first half of \r\n
        half_end = "\r" if text.endswith("\r") else ""
        text = text.removesuffix(half_end).replace("\r\n", "\n").replace("\r", "\n")
        *whole_lines, unfinished = text.split("\n")
        unfinished += half_end
        yield from whole_lines
    unfinished += decoder.decode(b"", final=True)
    last_line = unfinished.rstrip("\r")
    if last_line:
        yield last_line


def line_number(storage: Storage, path: str, encoding: str, text: str, copy: int = 1) -> int | None:
    """Return the number, from 1, of the `copy`-th line with a text, or None."""
    remaining = copy
    for number, line in enumerate(lines(storage, path, encoding), start=1):
        if line == text:
            remaining -= 1
            if remaining == 0:
                return number
    return None


def _unpacked(storage: Storage, path: str, max_bytes: int | None, name: str) -> Iterator[bytes]:
    """Yield the decompressed pieces of a file; errors call the file `name`."""
    ending = path.rpartition(".")[2].lower()
    if ending in ("zst", "lz4", "snappy"):
        raise InvalidInputError(
            f"{name} is CSV compressed as {ending}, which is not supported; "
            "compress it as gz or bz2"
        )
    unpackers: dict[str, Callable[[], Any]] = {
        "gz": lambda: zlib.decompressobj(_GZIP_WINDOW_BITS),
        "deflate": zlib.decompressobj,
        "bz2": bz2.BZ2Decompressor,
    }
    stream = unpackers[ending]() if ending in unpackers else None
    start = 0
    length = min(_PIECE_BYTES, max_bytes or _PIECE_BYTES)
    while data := storage.get(path, start, length):
        if stream is None and start == 0 and data.startswith(_GZIP):
            raise InvalidInputError(
                f"{name} seems to be compressed by gzip, but its name does not end in .gz; "
                "rename it, for example to end in .csv.gz"
            )
        try:
            yield data if stream is None else stream.decompress(data)
        except (zlib.error, OSError) as error:
            raise InvalidInputError(
                f"{name} is not a {ending} file, or is damaged ({error}); deliver the file again"
            ) from error
        start += len(data)
        if max_bytes is not None and start >= max_bytes:
            return
