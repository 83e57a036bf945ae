"""Lines of CSV files, and their cells, without Spark: a file's first line is looked at before Spark starts on it."""

import bz2
import csv
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from opal_lake.errors import InvalidInputError
from opal_lake.storage import Storage

_HEAD_BYTES = 1 << 16
_PIECE_BYTES = 8 << 20


def plain_names(options: Mapping[str, str]) -> dict[str, str]:
    """Options by one name each, as Spark knows several."""
    names = {"delimiter": "sep", "charset": "encoding"}
    return {names.get(name.lower(), name.lower()): value for name, value in options.items()}


def is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"


def cells_of(line: str, options: Mapping[str, str]) -> list[str]:
    """The fields of one line."""
    between, quote = separator(options), options.get("quote", '"')[:1]
    if len(between) != 1 or not quote:
        return line.split(between)
    return next(csv.reader([line], delimiter=between, quotechar=quote), [])


def separator(options: Mapping[str, str]) -> str:
    given = options["sep"]
    return given.encode().decode("unicode_escape") if "\\" in given else given


def first_line(storage: Storage, path: str, options: Mapping[str, str]) -> str | None:
    """None of a file without any."""
    encoding = options.get("encoding", options.get("charset", "utf-8"))
    for line in lines(storage, path, encoding, _HEAD_BYTES):
        if line.strip():
            return line
    return None


def lines(storage: Storage, path: str, encoding: str, most_bytes: int | None = None) -> Iterator[str]:
    """Of a text file, as Spark cuts it; with `most_bytes` of what these hold, the last one perhaps not whole."""
    rest = b""
    for number, data in enumerate(_unpacked(storage, path, most_bytes)):
        data = rest + (data.removeprefix(b"\xef\xbb\xbf") if number == 0 else data)
        held = data[-1:] if data.endswith(b"\r") else b""  # the next piece may begin with the other half of a line's end
        *whole, rest = data[: len(data) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest += held
        yield from (line.decode(encoding, errors="replace") for line in whole)
    if rest.rstrip(b"\r"):
        yield rest.rstrip(b"\r").decode(encoding, errors="replace")


def line_number(storage: Storage, path: str, encoding: str, text: str, copy: int = 1) -> int | None:
    """Where the line stands, from 1; of equal lines, that one of them."""
    same = (number for number, line in enumerate(lines(storage, path, encoding), start=1) if line == text)
    return next(islice(same, copy - 1, None), None)


def _unpacked(storage: Storage, path: str, most_bytes: int | None) -> Iterator[bytes]:
    ending = path.rpartition(".")[2].lower()
    if ending in ("zst", "lz4", "snappy"):
        raise InvalidInputError(f"{storage.uri}/{path} is CSV compressed as {ending}, which is not looked into: use gz or bz2")
    unpackers: dict[str, Callable[[], Any]] = {
        "gz": lambda: zlib.decompressobj(31),
        "deflate": zlib.decompressobj,
        "bz2": bz2.BZ2Decompressor,
    }
    stream = unpackers[ending]() if ending in unpackers else None
    start, length = 0, min(_PIECE_BYTES, most_bytes or _PIECE_BYTES)
    while data := storage.get(path, start, length):
        yield stream.decompress(data) if stream is not None else data
        start += len(data)
        if most_bytes is not None and start >= most_bytes:
            return
