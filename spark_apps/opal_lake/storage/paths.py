"""The paths that stores accept: the same ones in every store, so that a table can move."""

import re

from opal_lake.errors import InvalidInputError

# S3's XML cannot express control characters, and UTF-8 cannot express lone surrogates.
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]|(?:^|/)\.{0,2}(?:/|$)")


def is_path(path: str) -> bool:
    """Return whether stores accept a path. Listings leave out objects of other paths."""
    return not _UNFIT.search(path)


def check_path(path: str) -> str:
    """Return the path; raise InvalidInputError if no store accepts it."""
    if not is_path(path):
        raise InvalidInputError(
            f"path {path!r} is empty or absolute, has an empty, '.' or '..' part, or a control "
            "character: write it relative to the store's root, and percent-encode such characters"
        )
    return path


def check_prefix(prefix: str) -> str:
    """Return the folder part of a listing prefix, '' or ending in '/'.

    Raises InvalidInputError if no path can begin with the prefix.
    """
    slash = prefix.rfind("/") + 1
    folder, start_of_name = prefix[:slash], prefix[slash:]
    if not is_path(f"{folder}x{start_of_name}"):
        raise InvalidInputError(
            f"prefix {prefix!r} is absolute, has an empty, '.' or '..' folder or a control "
            "character: write it relative to the store's root"
        )
    return folder


def check_length(length: int | None) -> None:
    """Raise InvalidInputError unless a length is None or at least 0."""
    if length is not None and length < 0:
        raise InvalidInputError(
            f"length {length} is negative: give at least 0, or None to read to the end"
        )


def byte_range(size: int, start: int, length: int | None) -> tuple[int, int]:
    """Return begin and end of a range in an object of `size` bytes.

    A negative start counts from the end. A range outside of the object is empty.
    """
    if start < 0:
        start = max(0, size + start)
    begin = min(size, start)
    end = size if length is None else min(size, begin + length)
    return begin, end
