"""Paths of objects for Spark.

Spark does not decode percent signs, but treats `*?[]{}` and the backslash as patterns when it
reads, so these characters are escaped. Spark's option `__globPaths__=false` is not a way out: with
k paths that have such a character, it silently reads every file k times (Spark 4.1.3).
"""

import re
from collections.abc import Sequence

from opal_lake.errors import InvalidInputError
from opal_lake.storage.local.store import LocalStorage
from opal_lake.storage.paths import check_path
from opal_lake.storage.protocol import Storage
from opal_lake.storage.uris import local_root, split_scheme

_PATTERN_CHARACTER = re.compile(r"[\\*?\[\]{}]")


def spark_paths(storage: Storage, paths: Sequence[str]) -> list[str]:
    """Return the paths of objects for a reader of Spark, which checks none of them.

    Raises InvalidInputError for a path that leads out of the store's root, also by a link.
    """
    if isinstance(storage, LocalStorage):
        storage.check_plain_files(paths)
    return [spark_path(storage, check_path(path)) for path in paths]


def spark_path(storage: Storage, path: str = "") -> str:
    """Return a path for `spark.read.parquet(...)` and the like, with patterns escaped."""
    uri = hadoop_uri(storage, path)
    escaped = _PATTERN_CHARACTER.sub(r"\\\g<0>", uri)
    has_pattern = escaped != uri
    # In a path with a pattern, Hadoop reads the text before a colon as a scheme.
    if has_pattern and ":" in uri.split("://", 1)[1]:
        raise InvalidInputError(
            f"Spark cannot read '{uri}': it has a colon and one of * ? [ ] {{ }} \\; "
            "choose a path without the colon, or without these characters"
        )
    return escaped


def hadoop_uri(storage: Storage, path: str = "") -> str:
    """Return a path for writers and Hadoop's own file systems, which have no patterns."""
    scheme, rest = split_scheme(storage.uri)
    if scheme in ("s3", "s3a"):
        root = "s3a://" + rest.removeprefix("//")
    elif scheme in ("", "file"):
        root = "file://" + local_root(storage.uri).rstrip("/")
    else:
        raise InvalidInputError(
            f"Spark cannot read {storage.uri}: put the table into a folder or S3"
        )
    return f"{root}/{path}" if path else root
