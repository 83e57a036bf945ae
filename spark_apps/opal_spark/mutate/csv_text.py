"""CSV for a folder: what is written is read again as it was, and a file's first line is looked at before Spark starts on it."""

import bz2
import csv
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opal_lake.errors import InvalidInputError
from opal_lake.job.operations.folder import Mutate
from opal_lake.storage import Storage

CORRUPT = "_opal_corrupt"
NO_CHARACTER = "\u0000"  # Spark's way to say that there is none
_HEAD_BYTES = 1 << 16
_PIECE_BYTES = 8 << 20
# A null value that no cell has: by default Spark takes a quoted empty cell for null, too
_READ = {"escape": '"', "nullvalue": NO_CHARACTER, "mode": "PERMISSIVE", "columnnameofcorruptrecord": CORRUPT, "enforceschema": "false"}
_WRITE = {"escape": '"', "nullvalue": "", "emptyvalue": '""', "ignoreleadingwhitespace": "false", "ignoretrailingwhitespace": "false"}
_ONLY_READ = {*_READ, "multiline"} - {"escape"}
_FORCED = {
    "mode": "say on_bad_rows='fail' or 'quarantine' instead",
    "columnnameofcorruptrecord": "bad rows are shown, or kept in the folder rejected/",
    "enforceschema": "fields are matched by the header",
    "inferschema": "give the types with schema=, else all fields are text",
}


def own_options(job: Mutate) -> dict[str, str]:
    """Of the master."""
    return _checked({"sep": job.delimiter, "header": str(job.header).lower(), **_lowered(job.options)})


def increment_options(job: Mutate) -> dict[str, str]:
    return _checked({**own_options(job), **_lowered(job.increment_options)})


def read_options(given: Mapping[str, str]) -> dict[str, str]:
    return {**_READ, **given, **{name: _READ[name] for name in _FORCED if name in _READ}}


def write_options(job: Mutate) -> dict[str, str]:
    kept = {name: value for name, value in own_options(job).items() if name not in _ONLY_READ}
    return {**_WRITE, **kept, **_checked(_lowered(job.output_options))}


def is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"


def cells_of(line: str, options: Mapping[str, str]) -> list[str]:
    """The fields of one line."""
    between, quote = separator(options), options.get("quote", '"')[:1]
    if len(between) != 1 or not quote:
        return line.split(between)
    return next(csv.reader([line], delimiter=between, quotechar=quote), [])


def open_quote(options: Mapping[str, str]) -> str | None:
    """Java's regular expression for a line whose last field begins with a quote and does not end there: it goes on in the next line.

    Only whole fields may stand before it, cut as Spark's parser cuts them, so that no quote inside a field counts as the beginning of one.
    """
    quote, escape = options.get("quote", '"')[:1], options.get("escape", '"')[:1]
    if not quote or quote == NO_CHARACTER:
        return None
    q, e, s = (re.escape(text) for text in (quote, escape, separator(options)))
    inside = f"[^{q}]*+" + (f"(?:{q}{q}[^{q}]*+)*+" if escape == quote else "")
    if escape not in (quote, "", NO_CHARACTER):
        inside = f"[^{q}{e}]*+(?:{e}.[^{q}{e}]*+)*+"
    rest = f"[^{s}]*+" if len(separator(options)) == 1 else f"(?:(?!{s}).)*+"
    blank = "[ \\t]*+" if is_true(options, "ignoreleadingwhitespace") else ""
    return f"(?s)^(?:{blank}(?:{q}{inside}{q}{rest}|(?!{q}){rest}){s})*+{blank}{q}{inside}$"


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


def line_number(storage: Storage, path: str, encoding: str, text: str) -> int | None:
    """Where the line stands, from 1."""
    return next((number for number, line in enumerate(lines(storage, path, encoding), start=1) if line == text), None)


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


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    names = {"delimiter": "sep", "charset": "encoding"}
    return {names.get(name.lower(), name.lower()): value for name, value in options.items()}


def _checked(options: dict[str, str]) -> dict[str, str]:
    for name, why in _FORCED.items():
        if name in options:
            raise InvalidInputError(f"option {name!r} does not fit a mutation: {why}")
    return options
