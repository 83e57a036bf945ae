"""The URIs of stores. They are not percent-decoded: as in Hadoop, `%20` is three characters."""

import os
import re

from opal_lake.errors import InvalidInputError
from opal_lake.storage.paths import is_path

FORMS = "a local path, file:///path, s3://bucket/path, s3a://bucket/path or memory://name"
_STORE_SCHEMES = ("file", "s3", "s3a", "memory")
_BUCKET = re.compile(r"[A-Za-z0-9._-]{3,255}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/.*)", re.DOTALL)


def split_scheme(uri: str) -> tuple[str, str]:
    """Return the scheme in lower case, or '' for a plain path, and what follows it."""
    match = _SCHEME.fullmatch(uri)
    if match is None:
        return "", uri
    return match[1].lower(), match[2]


def is_local(uri: str) -> bool:
    """Return whether a store's bytes are on this machine, by its URI."""
    scheme, _ = split_scheme(uri)
    return scheme in ("", "file", "memory")


def local_root(uri: str) -> str:
    """Return the absolute folder that a plain path or a file URI names."""
    scheme, rest = split_scheme(uri)
    if not rest:
        raise InvalidInputError(f"'{uri}' does not name a folder: use {FORMS}")
    if not scheme:
        _refuse_relative(uri)
        return os.path.abspath(uri)
    # Hadoop writes file:/path, everybody else file:///path.
    path = rest.removeprefix("//").removeprefix("localhost")
    if not path.startswith("/"):
        raise InvalidInputError(
            f"'{uri}' names a host, and a file URI reaches only this machine: write file:///path"
        )
    return os.path.abspath(path)


def _refuse_relative(path: str) -> None:
    """Raise InvalidInputError for `file:orders`, which would make such a folder."""
    scheme, colon, _ = path.partition(":")
    if colon and scheme.lower() in _STORE_SCHEMES:
        raise InvalidInputError(
            f"'{path}' has no / after '{scheme}:': use {FORMS}; "
            f"a local folder of this name is ./{path}"
        )


def bucket_and_prefix(uri: str) -> tuple[str, str]:
    """Return the bucket and the key prefix ('' or ending in '/') of an S3 URI."""
    _, rest = split_scheme(uri)
    bucket, _, prefix = rest.removeprefix("//").rstrip("/").partition("/")
    if not _BUCKET.fullmatch(bucket):
        # The bucket is not shown: in old URIs it may be key:secret@bucket.
        raise InvalidInputError(
            "an S3 URI has no valid bucket name: write s3://bucket/path, without credentials"
        )
    if prefix and not is_path(prefix):
        raise InvalidInputError(f"'{uri}' has an empty, '.' or '..' part in its path: leave it out")
    if prefix:
        prefix += "/"
    return bucket, prefix


def memory_name(uri: str) -> str:
    """Return the name of a store in memory."""
    _, rest = split_scheme(uri)
    name = rest.strip("/")
    if not name:
        raise InvalidInputError(f"'{uri}' has no name: write memory://name")
    return name
