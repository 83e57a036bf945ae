"""The view that a worker has of a table and its sources before Spark starts."""

import filecmp
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from glob import iglob
from importlib.util import find_spec
from pathlib import Path

from airflow_provider_opal.hooks.opal import OpalHook
from opal_lake.errors import InvalidInputError
from opal_lake.s3a import is_s3
from opal_lake.storage import open_storage
from opal_lake.storage.uris import bucket_and_prefix, local_root, split_scheme
from opal_lake.table import Table

_PATTERN = re.compile(r"[*?\[\]{}\\]")
# Characters of patterns that Python's globs read differently
_OF_SPARK_ALONE = re.compile(r"[\[\]{}\\]")
_SUBMIT = "spark-submit"
# With each of these, a path without a scheme may not be on the local file system
_LEADING_VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH")
_LEADING_SETTINGS = ("spark.hadoop.fs.", "spark.driver.extraClassPath")
# Part of the settings fs.defaultFS and fs.default.name, which options of Java may contain too
_DEFAULT_FILE_SYSTEM = "fs.default"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """The place of a table, as a worker sees it without Spark.

    With `shares_files`, Spark reads local paths on this machine.
    """

    opal: OpalHook
    table: str
    shares_files: bool

    @property
    def uri(self) -> str:
        return self.opal.lake.uri(self.table)

    def open(self) -> Table:
        """Open the table; raise NotFoundError if it does not exist."""
        return self.opal.table(self.table)

    def lacks(self, path: str) -> bool:
        """Return whether Spark certainly finds no file at a path or pattern.

        Returns False if the worker cannot know, because Spark may read another file system, another
        machine or another service of S3.
        """
        if is_s3(path):
            return self._is_in_own_bucket(path) and self._lacks_objects(path)
        is_local = path.startswith("/") or split_scheme(path)[0] == "file"
        return self.shares_files and is_local and _lacks_local_files(path)

    def _is_in_own_bucket(self, path: str) -> bool:
        """Return whether a path lies in the table's bucket, which Spark reads too."""
        if not is_s3(self.uri):
            return False
        try:
            return bucket_and_prefix(_literal(path))[0] == bucket_and_prefix(self.uri)[0]
        except InvalidInputError:  # the job reports the mistake
            return False

    def _lacks_objects(self, path: str) -> bool:
        folder, _, beginning = _literal(path).rpartition("/")
        try:
            objects = open_storage(folder, self.opal.lake.options_for(folder)).list(beginning)
        except InvalidInputError:
            return False
        return next(iter(objects), None) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStart:
    """The settings of a task's Spark that decide on which file system a path is.

    `environment` holds the variables that the task adds to the environment of this process.
    """

    master: str
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    binary: str | None = None
    properties_file: str | None = None
    driver_class_path: str | None = None

    @property
    def shares_files(self) -> bool:
        """True if Spark certainly reads local paths on this machine.

        False if a setting that this process does not read may lead to another file system.
        """
        if not self.master.startswith("local") or self.binary not in (None, _SUBMIT):
            return False
        if self.properties_file or self.driver_class_path:
            return False
        environment = {**os.environ, **self.environment}
        if any(name in environment for name in _LEADING_VARIABLES):
            return False
        if any(name.startswith(_LEADING_SETTINGS) for name in self.conf):
            return False
        values = [*self.conf.values(), *environment.values()]
        if any(_DEFAULT_FILE_SYSTEM in str(value) for value in values):
            return False
        home = _spark_home(environment)
        return home is not None and _has_templates_alone(home / "conf")


def _spark_home(environment: Mapping[str, str]) -> Path | None:
    """Return the home of the Spark that spark-submit starts, or None if uncertain.

    It is uncertain if spark-submit is not Spark's own script, but a wrapper.
    """
    next_to_python = Path(sys.executable).with_name(_SUBMIT)
    in_path = shutil.which(_SUBMIT, path=environment.get("PATH"))
    submit = Path(in_path) if in_path else next_to_python
    home_variable = environment.get("SPARK_HOME")
    homes = [submit.resolve().parent.parent, *_homes_of_pyspark(environment)]
    if home_variable:
        homes = [Path(home_variable)]
    home = next((home for home in homes if _is_spark_home(home)), None)
    if home is None or not submit.is_file():
        return None
    is_own = filecmp.cmp(submit, home / "bin" / _SUBMIT, shallow=False)
    return home if is_own else None


def _homes_of_pyspark(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders in which pyspark's own script looks for Spark, in its order."""
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        return []
    # The script asks the Python of the driver, which is this one by default
    if environment.get("PYSPARK_DRIVER_PYTHON", sys.executable) != sys.executable:
        return []
    folder = Path(package.origin).parent
    return [folder / "spark-distribution", folder]


def _is_spark_home(folder: Path) -> bool:
    return (folder / "bin" / _SUBMIT).is_file() and (folder / "jars").is_dir()


def _has_templates_alone(folder: Path) -> bool:
    """Return whether a settings folder, which need not exist, holds only templates."""
    return not folder.exists() or all(path.suffix == ".template" for path in folder.iterdir())


def _literal(path: str) -> str:
    """Return the part of a path before the first character of a pattern."""
    return _PATTERN.split(path, maxsplit=1)[0]


def _lacks_local_files(path: str) -> bool:
    if _OF_SPARK_ALONE.search(path):
        return False
    try:
        root = local_root(path)
    except InvalidInputError:  # the job reports the mistake
        return False
    return next(iglob(root, include_hidden=True), None) is None
