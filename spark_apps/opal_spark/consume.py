"""Consume: hand what came to a table to a function of the user's, at least once."""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from opal_lake.errors import FunctionError, InvalidInputError, OpalError
from opal_lake.job import JobResult
from opal_lake.results import read_result, write_result
from opal_spark.table import OpalTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a consumer's function is given: the table as of a version, and what of it is new.

    By partition it is what was ingested under `partition_key`; by version what became visible after version `after`. A key that was
    deleted has no row: compare with `table.read(version=change.after)` where that matters.
    """

    spark: SparkSession
    table: OpalTable
    version: int
    partition_key: str | None = None
    after: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> DataFrame:
        """The new rows that are still visible at `version`."""
        return self.table.read(version=self.version, partition_key=self.partition_key, after=self.after)


Consumer = Callable[[Change], Mapping[str, int] | None]


def consume(change: Change, function: str, token: str | None) -> JobResult:
    """Call the function; its result is kept once it has returned, so that a repeat with the same token does not call it again."""
    table = change.table.table
    if token is not None and (earlier := read_result(table.storage, token)) is not None:
        return earlier
    called = load_function(function)
    try:
        counts = called(change)
    except OpalError:
        raise  # it says itself whether trying again can help
    except Exception as error:
        raise FunctionError(f"{function} failed: {type(error).__name__}: {error}") from error
    result = JobResult(operation="consume", table=table.uri, version=change.version, token=token, counts=_checked(counts, function))
    return result if token is None else write_result(table.storage, result)


def load_function(name: str) -> Consumer:
    """The function that `package.module:function` names."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InvalidInputError(f"function={name!r} is no function; write it as 'package.module:function'")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        places = ", ".join(filter(None, sys.path[:4]))
        raise InvalidInputError(
            f"function {name!r}: {error}. Python looks in {places}, ...; put the module beside the DAG file, or give it with py_files="
        ) from error
    if not callable(found):
        raise InvalidInputError(f"function {name!r}: the module {module} has no function {attribute!r}")
    return found  # type: ignore[no-any-return]  # what it takes shows when it is called


def _checked(counts: object, function: str) -> dict[str, int]:
    if counts is None:
        return {}
    if isinstance(counts, Mapping) and all(isinstance(name, str) and isinstance(value, int) for name, value in counts.items()):
        return dict(counts)
    raise InvalidInputError(f"{function} returned {type(counts).__name__}; let it return nothing, or counts by name, as {{'orders': 12}}")
