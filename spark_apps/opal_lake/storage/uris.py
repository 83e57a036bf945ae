"""The URIs of stores. Nothing is percent-decoded: as in Hadoop, `%20` in a URI is three characters of a name."""

import os
import re

from opal_lake.errors import InvalidInputError
from opal_lake.storage.paths import is_path

FORMS = "a local path, file:///path, s3://bucket/path, s3a://bucket/path or memory://name"
_BUCKET = re.compile(r"[A-Za-z0-9._-]{3,255}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/.*)", re.DOTALL)


def split_scheme(uri: str) -> tuple[str, str]:
    """Scheme (lower case, '' for a plain path) and what follows its colon."""
    match = _SCHEME.fullmatch(uri)
    return (match[1].lower(), match[2]) if match else ("", uri)


def is_local(uri: str) -> bool:
    """Whether the store's bytes are on this machine, as far as the URI tells."""
    return split_scheme(uri)[0] in ("", "file", "memory")


def local_root(uri: str) -> str:
    """The absolute folder that a plain path or a file URI names."""
    scheme, rest = split_scheme(uri)
    if not rest:
        raise InvalidInputError(f"'{uri}' names no place: use {FORMS}")
    if not scheme:
        return os.path.abspath(uri)
    path = rest.removeprefix("//").removeprefix(
        "localhost"
    )  # Hadoop writes file:/path, everybody else file:///path
    if not path.startswith("/"):
        raise InvalidInputError(
            f"'{uri}' names a host, and a file URI reaches only this machine: write file:///path"
        )
    return os.path.abspath(path)


def bucket_and_prefix(uri: str) -> tuple[str, str]:
    """Bucket and key prefix ('' or ending in '/') of an S3 URI."""
    bucket, _, prefix = split_scheme(uri)[1].removeprefix("//").rstrip("/").partition("/")
    if not _BUCKET.fullmatch(bucket):  # not shown: in old URIs it may be key:secret@bucket
        raise InvalidInputError(
            "an S3 URI has no proper bucket name: write s3://bucket/path, without credentials"
        )
    if prefix and not is_path(prefix):
        raise InvalidInputError(f"'{uri}' has an empty, '.' or '..' part in its path: leave it out")
    return bucket, prefix + "/" if prefix else ""


def memory_name(uri: str) -> str:
    """The name of a store in memory."""
    name = split_scheme(uri)[1].strip("/")
    if not name:
        raise InvalidInputError(f"'{uri}' has no name: write memory://name")
    return name
