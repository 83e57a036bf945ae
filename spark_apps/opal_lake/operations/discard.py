"""Discard: withdraw rows that were ingested and are not visible yet."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Help
from opal_lake.errors import InvalidInputError
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable


@declaration
class Discard(Job):
    """Withdraw the pending rows of a partition key, or of the ingest with a token.

    No MetaGen processes these rows any more. If some of the rows are visible already, the call
    fails. `job_token` makes a repeat of this call harmless.
    """

    name: ClassVar[str] = "discard"
    token_argument: ClassVar[str] = "job_token"

    partition_key: Annotated[
        str | None, Help("withdraw the pending rows of this partition key", "KEY")
    ] = None
    token: Annotated[
        str | None, Help("withdraw the pending rows of the ingest with this token", "TOKEN")
    ] = None

    job_token: str | None = None

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError unless exactly one selection is given."""
        # Without a selection all pending rows would be withdrawn
        if (given["partition_key"] is None) == (given["token"] is None):
            raise InvalidInputError(
                "discard needs one of partition_key and token, to select the pending rows"
            )

    def run(self, table: "OpenTable") -> JobResult:
        """Discard the pending rows of the selection."""
        from opal_lake.write.discard import discard

        return discard(
            table.log,
            partition_key=self.partition_key,
            token=self.token,
            job_token=self.job_token,
        )
