"""What a worker sees of a table and its sources before Spark starts."""

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from glob import iglob
from pathlib import Path

from airflow_provider_opal.hooks.opal import OpalHook
from opal_lake.errors import InvalidInputError
from opal_lake.s3a import is_s3
from opal_lake.storage import open_storage
from opal_lake.storage.uris import bucket_and_prefix, local_root, split_scheme
from opal_lake.table import Table

_PATTERN = re.compile(r"[*?\[\]{}\\]")
_OF_SPARK_ALONE = re.compile(r"[\[\]{}\\]")  # Python's globs mean something else by them
# Settings of Hadoop and Spark, which may give paths without a scheme another file system
_DEFAULT_FILE_SYSTEM = "spark.hadoop.fs.defaultFS"
_SETTINGS_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR")
_SETTINGS_FILES = ("conf/spark-defaults.conf", "conf/core-site.xml")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """The place of a table, as a worker sees it without Spark.

    `shares_files` says that Spark runs on this machine, and reads paths as this process does.
    """

    opal: OpalHook
    table: str
    shares_files: bool

    @property
    def uri(self) -> str:
        return self.opal.lake.uri(self.table)

    def open(self) -> Table:
        """Open the table; NotFoundError when there is none."""
        return self.opal.table(self.table)

    def lacks(self, path: str) -> bool:
        """Whether Spark certainly finds no file at a path or pattern.

        False where the worker cannot know: another file system, another machine, or a bucket that
        Spark may be told to look for at another service.
        """
        if is_s3(path):
            return self._is_in_own_bucket(path) and self._lacks_objects(path)
        is_local = path.startswith("/") or split_scheme(path)[0] == "file"
        return self.shares_files and is_local and _lacks_local_files(path)

    def _is_in_own_bucket(self, path: str) -> bool:
        """Whether a path lies in the table's bucket, where Spark and this worker meet."""
        if not is_s3(self.uri):
            return False
        try:
            return bucket_and_prefix(_literal(path))[0] == bucket_and_prefix(self.uri)[0]
        except InvalidInputError:  # the job says what is wrong
            return False

    def _lacks_objects(self, path: str) -> bool:
        folder, _, beginning = _literal(path).rpartition("/")
        try:
            objects = open_storage(folder, self.opal.lake.options_for(folder)).list(beginning)
        except InvalidInputError:
            return False
        return next(iter(objects), None) is None


def shares_files(
    master: str, conf: Iterable[str], environment: Mapping[str, str], properties_file: str | None
) -> bool:
    """Whether Spark runs on this machine and takes paths for those of this machine."""
    if not master.startswith("local") or properties_file is not None:
        return False
    return _DEFAULT_FILE_SYSTEM not in conf and not _has_settings({**os.environ, **environment})


def _has_settings(environment: Mapping[str, str]) -> bool:
    """Whether there are settings files that this process does not read."""
    if any(name in environment for name in _SETTINGS_FOLDERS):
        return True
    submit = shutil.which("spark-submit", path=environment.get("PATH"))
    homes = [environment.get("SPARK_HOME"), submit and Path(submit).resolve().parent.parent]
    files = [Path(home) / name for home in homes if home for name in _SETTINGS_FILES]
    return any(file.exists() for file in files)


def _literal(path: str) -> str:
    """Return what stands before the first character of a pattern."""
    return _PATTERN.split(path, maxsplit=1)[0]


def _lacks_local_files(path: str) -> bool:
    if _OF_SPARK_ALONE.search(path):
        return False
    try:
        root = local_root(path)
    except InvalidInputError:  # the job says what is wrong
        return False
    return next(iglob(root, include_hidden=True), None) is None
