"""How Spark is told where an object is. It decodes no percent signs, but takes `*?[]{}` and the backslash for patterns when it reads.

Escaping is the way round that. Spark's option `__globPaths__=false` is not: with n paths of which k have such a character, it reads
every file k times over and says nothing (Spark 4.1.3).
"""

import re

from opal_lake.errors import InvalidInputError
from opal_lake.storage.protocol import Storage
from opal_lake.storage.uris import local_root, split_scheme

_PATTERN_CHARACTER = re.compile(r"[\\*?\[\]{}]")


def spark_path(storage: Storage, path: str = "") -> str:
    """For `spark.read.parquet(...)` and its like: patterns escaped."""
    uri = hadoop_uri(storage, path)
    escaped = _PATTERN_CHARACTER.sub(r"\\\g<0>", uri)
    if escaped != uri and ":" in uri.split("://", 1)[1]:  # Hadoop's pattern code takes what is before a colon for a scheme
        raise InvalidInputError(
            f"Spark cannot read '{uri}': it has a colon and one of * ? [ ] {{ }} \\; choose a place without one of the two"
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
        raise InvalidInputError(f"Spark cannot reach {storage.uri}: keep the table in a folder or in S3")
    return f"{root}/{path}" if path else root
