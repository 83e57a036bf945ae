"""Consume: pass new rows of a table to a function."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import CONSUMER_ROWS, Function, one_of
from opal_lake.errors import InvalidInputError
from opal_lake.operations.verb import Job

Consumed = Annotated[str, one_of(*CONSUMER_ROWS)]


@declaration
class Consume(Job):
    """Call a function with what came under a partition key, or after a version."""

    name: ClassVar[str] = "consume"

    function: Function
    partition_key: str | None = None
    after: int | None = None
    version: int | None = None
    rows: Consumed = "visible"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Rows are new by a partition key or by versions; changes are known from version to version."""
        if (given["partition_key"] is None) == (given["after"] is None):
            raise InvalidInputError(
                "consume needs one of: partition_key='2026-11-01', or after=7, the last version that was seen"
            )
        if given["rows"] == "changes" and given["partition_key"] is not None:
            raise InvalidInputError(
                "rows='changes' needs versions: give after=7 instead of partition_key"
            )
