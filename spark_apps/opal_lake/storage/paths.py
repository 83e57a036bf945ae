"""Which paths a store accepts; the same for every store, so that a table can move between them."""

import re

from opal_lake.errors import InvalidInputError

# control characters cannot be named in the XML of S3, nor lone surrogates in UTF-8
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]|(?:^|/)\.{0,2}(?:/|$)")


def is_path(path: str) -> bool:
    """Whether a store accepts the path. Listings leave out foreign objects that have no such path."""
    return not _UNFIT.search(path)


def check_path(path: str) -> str:
    """The path itself, or InvalidInputError."""
    if not is_path(path):
        raise InvalidInputError(
            f"path {path!r} is empty or absolute, has an empty, '.' or '..' part, or a control character: "
            "write it relative to the store's root, and percent-encode such characters"
        )
    return path


def check_prefix(prefix: str) -> str:
    """The folder part of a listing prefix, '' or ending in '/'. InvalidInputError if no path can lie in it."""
    slash = prefix.rfind("/") + 1
    folder, start_of_name = prefix[:slash], prefix[slash:]
    if not is_path(f"{folder}x{start_of_name}"):
        raise InvalidInputError(
            f"prefix {prefix!r} is absolute, has an empty, '.' or '..' folder or a control character: write it relative to the store's root"
        )
    return folder


def check_length(length: int | None) -> None:
    """A length is None or at least 0."""
    if length is not None and length < 0:
        raise InvalidInputError(
            f"length {length} is negative: give at least 0, or None for all the rest"
        )


def byte_range(size: int, start: int, length: int | None) -> tuple[int, int]:
    """[begin, end) in an object of `size` bytes; empty when the range lies outside."""
    begin = min(size, start if start >= 0 else max(0, size + start))
    return begin, size if length is None else min(size, begin + length)
