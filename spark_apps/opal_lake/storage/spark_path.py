"""How Spark is told where an object is. It decodes no percent signs, but takes `*?[]{}` and the backslash for patterns when it reads."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from opal_lake.errors import InvalidInputError
from opal_lake.storage.protocol import Storage
from opal_lake.storage.uris import local_root, split_scheme

NO_PATTERNS: Mapping[str, str] = MappingProxyType({"__globPaths__": "false"})
"""Reader options with which Spark takes a `hadoop_uri` as it is; an internal option of Spark's, so a test watches it."""

_PATTERN_CHARACTER = re.compile(r"[\\*?\[\]{}]")


def hadoop_uri(storage: Storage, path: str = "") -> str:
    """For writers, for Hadoop's own file systems, and for `spark.read.options(**NO_PATTERNS)`, which all know no patterns."""
    scheme, rest = split_scheme(storage.uri)
    if scheme in ("s3", "s3a"):
        root = "s3a://" + rest.removeprefix("//")
    elif scheme in ("", "file"):
        root = "file://" + local_root(storage.uri).rstrip("/")
    else:
        raise InvalidInputError(f"Spark cannot reach {storage.uri}: keep the table in a folder or in S3")
    return f"{root}/{path}" if path else root


def spark_path(storage: Storage, path: str = "") -> str:
    """For reads that take no options: patterns escaped. Spark refuses it if it has both a pattern character and a colon."""
    return _PATTERN_CHARACTER.sub(r"\\\g<0>", hadoop_uri(storage, path))
