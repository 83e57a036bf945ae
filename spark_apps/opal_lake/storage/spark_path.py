"""Paths of objects for Spark. It decodes no percent signs, but treats `*?[]{}` and the backslash as patterns when it reads.

So they are escaped. Spark's option `__globPaths__=false` is no alternative: with n paths of which k have such a character, it reads
every file k times, silently (Spark 4.1.3).
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
    """Objects of a store for a reader of Spark, which looks at nothing: none may lead out of the store's root, by its name or by a link."""
    if isinstance(storage, LocalStorage):
        storage.check_plain_files(paths)
    return [spark_path(storage, check_path(path)) for path in paths]


def spark_path(storage: Storage, path: str = "") -> str:
    """For `spark.read.parquet(...)` and its like: patterns escaped."""
    uri = hadoop_uri(storage, path)
    escaped = _PATTERN_CHARACTER.sub(r"\\\g<0>", uri)
    if (
        escaped != uri and ":" in uri.split("://", 1)[1]
    ):  # Hadoop's pattern code takes what is before a colon for a scheme
        raise InvalidInputError(
            f"Spark cannot read '{uri}': it has a colon and one of * ? [ ] {{ }} \\; choose a path without the colon, or without the others"
        )
    return escaped


def hadoop_uri(storage: Storage, path: str = "") -> str:
    """For writers and for Hadoop's own file systems, which know no patterns."""
    scheme, rest = split_scheme(storage.uri)
    if scheme in ("s3", "s3a"):
        root = "s3a://" + rest.removeprefix("//")
    elif scheme in ("", "file"):
        root = "file://" + local_root(storage.uri).rstrip("/")
    else:
        raise InvalidInputError(
            f"Spark cannot reach {storage.uri}: keep the table in a folder or in S3"
        )
    return f"{root}/{path}" if path else root
