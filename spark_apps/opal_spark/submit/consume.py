"""Consume: pass the new rows of a table to a function of the user, at least once."""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.checked import LATEST
from opal_lake.engine.results import keep_result, read_result
from opal_lake.errors import FunctionError, InvalidInputError, NotFoundError, OpalError
from opal_lake.log.commit_times import CommitTimes
from opal_lake.read.changed_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    INSERT,
    FeedOptions,
)
from opal_lake.result import JobResult
from opal_spark.table import OpalTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The argument of a consumer's function: the table as of a version, and which rows are new.

    By partition it is what was ingested under `partition_key`; by version what became visible after version `after`. A primary key that
    was deleted has no row: ask for `changes` where that matters.
    """

    spark: SparkSession
    table: OpalTable
    version: int
    partition_key: str | None = None
    after: int | None = None
    rows_are: str = "visible"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> DataFrame:
        """What came, for reports: by partition all rows that no later one of this partition key replaced or deleted.

        They are the same at every version until the key gets rows again, whatever came under other keys before or meanwhile. By version
        they are the `valid_rows`, or, where the consumer asks for these, the `changes`.
        """
        if self.rows_are == "changes":
            return self.changes
        if self.partition_key is None:
            return self.valid_rows
        return self.table.read(version=self.version, partition_key=self.partition_key, net=True)

    @property
    def valid_rows(self) -> DataFrame:
        """The new rows that are valid in the table as of `version`: what a copy of the table takes up."""
        return self.table.read(
            version=self.version, partition_key=self.partition_key, after=self.after
        )

    @property
    def changes(self) -> DataFrame:
        """By version, each row that the versions after `after` inserted, deleted or updated, with its values before and after.

        For a consumer that begins when the first versions have expired, all rows as of `version` are inserted by it.
        """
        if self.after is None:
            raise InvalidInputError("change.changes needs versions: consume by='version'")
        if self.after >= self.version:
            return self.table.changes(LATEST)
        try:
            return self.table.changes(self.after + 1, self.version)
        except NotFoundError:
            if self.after:
                raise
        return self._all_as_inserts()

    def _all_as_inserts(self) -> DataFrame:
        log = self.table.log
        FeedOptions().fields(log.head().spec)
        moment = F.timestamp_micros(F.lit(CommitTimes(log.head()).of(self.version)))
        columns = {
            CHANGE_TYPE: F.lit(INSERT),
            COMMIT_VERSION: F.lit(self.version).cast("long"),
            COMMIT_TIMESTAMP: moment,
        }
        return self.valid_rows.withColumns(columns)


Consumer = Callable[[Change], Mapping[str, int] | None]


def consume(change: Change, function: str, token: str | None) -> JobResult:
    """Call the function; its result is kept once it has returned, so that a repeat with the same token does not call it again."""
    table = change.table
    if token is not None and (earlier := read_result(table.storage, token)) is not None:
        return earlier
    called = load_function(function)
    try:
        counts = called(change)
    except OpalError:
        raise  # it says itself whether trying again can help
    except Exception as error:
        raise FunctionError(f"{function} failed: {type(error).__name__}: {error}") from error
    result = JobResult(
        operation="consume",
        table=table.uri,
        version=change.version,
        token=token,
        counts=_checked(counts, function),
    )
    return keep_result(table.storage, result)


def load_function(name: str) -> Consumer:
    """The function that `package.module:function` names."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InvalidInputError(
            f"function={name!r} is no function; write it as 'package.module:function'"
        )
    try:
        function = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        places = ", ".join(filter(None, sys.path[:4]))
        raise InvalidInputError(
            f"function {name!r}: {error}. Python looks in {places}, ...; put the module beside the DAG file, or give it with py_files="
        ) from error
    if not callable(function):
        raise InvalidInputError(
            f"function {name!r}: the module {module} has no function {attribute!r}"
        )
    return function  # type: ignore[no-any-return]  # what it takes shows when it is called


def _checked(counts: object, function: str) -> dict[str, int]:
    if counts is None:
        return {}
    if isinstance(counts, Mapping) and all(
        isinstance(name, str) and isinstance(value, int) for name, value in counts.items()
    ):
        return dict(counts)
    raise InvalidInputError(
        f"{function} returned {type(counts).__name__}; let it return nothing, or counts by name, as {{'orders': 12}}"
    )
