"""Lines of CSV files, and their cells, without Spark: a file's first line is looked at before Spark starts on it."""

import bz2
import codecs
import csv
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from opal_lake.errors import InvalidInputError
from opal_lake.storage import Storage

_HEAD_BYTES = 1 << 16
_PIECE_BYTES = 8 << 20
_GZIP = b"\x1f\x8b\x08"
# How line breaks are read within a cell or a document: of `ingest`, and of its command
MULTI_LINE = "options={'multiLine': 'true'}, `--source-option multiLine=true`"


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
    if not given:
        raise InvalidInputError(
            "the delimiter of the CSV files, option 'sep', is empty: give a character or more, as ';' or '\\t'"
        )
    return given.encode().decode("unicode_escape") if "\\" in given else given


def first_line(
    storage: Storage, path: str, options: Mapping[str, str], name: str | None = None
) -> str | None:
    """None of a file without any. `name` is what errors call it, by default its path."""
    encoding = options.get("encoding", options.get("charset", "utf-8"))
    for line in lines(storage, path, encoding, _HEAD_BYTES, name):
        if line.strip():
            return line
    return None


def lines(
    storage: Storage,
    path: str,
    encoding: str,
    most_bytes: int | None = None,
    name: str | None = None,
) -> Iterator[str]:
    """Of a text file, as Spark cuts it; with `most_bytes` of what these hold, the last one perhaps not whole."""
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    rest, is_begun = "", False
    for data in _unpacked(storage, path, most_bytes, name or f"{storage.uri}/{path}"):
        text = decoder.decode(data)
        if text and not is_begun:
            text, is_begun = text.removeprefix("\ufeff"), True
        text = rest + text
        held = (
            "\r" if text.endswith("\r") else ""
        )  # the next piece may begin with the other half of a line's end
        *whole, rest = (
            text[: len(text) - len(held)].replace("\r\n", "\n").replace("\r", "\n").split("\n")
        )
        rest += held
        yield from whole
    if rest := (rest + decoder.decode(b"", final=True)).rstrip("\r"):
        yield rest


def line_number(storage: Storage, path: str, encoding: str, text: str, copy: int = 1) -> int | None:
    """Where the line stands, from 1; of equal lines, that one of them."""
    same = (
        number
        for number, line in enumerate(lines(storage, path, encoding), start=1)
        if line == text
    )
    return next(islice(same, copy - 1, None), None)


def _unpacked(storage: Storage, path: str, most_bytes: int | None, name: str) -> Iterator[bytes]:
    ending = path.rpartition(".")[2].lower()
    if ending in ("zst", "lz4", "snappy"):
        raise InvalidInputError(
            f"{name} is CSV compressed as {ending}, which is not looked into: use gz or bz2"
        )
    unpackers: dict[str, Callable[[], Any]] = {
        "gz": lambda: zlib.decompressobj(31),
        "deflate": zlib.decompressobj,
        "bz2": bz2.BZ2Decompressor,
    }
    stream = unpackers[ending]() if ending in unpackers else None
    start, length = 0, min(_PIECE_BYTES, most_bytes or _PIECE_BYTES)
    while data := storage.get(path, start, length):
        if stream is None and not start and data.startswith(_GZIP):
            raise InvalidInputError(
                f"{name} looks compressed by gzip, which its name does not say: rename it to end in .gz, as in .csv.gz"
            )
        try:
            yield stream.decompress(data) if stream is not None else data
        except (zlib.error, OSError) as error:
            raise InvalidInputError(
                f"{name} is no {ending} file, or damaged ({error}): deliver it again"
            ) from error
        start += len(data)
        if most_bytes is not None and start >= most_bytes:
            return
