"""MetaGen: make pending rows visible."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Help
from opal_lake.errors import InvalidInputError
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable
    from opal_lake.log.pending import Selection


@declaration
class MetaGen(Job):
    """Make pending rows visible: find out which rows they replace or delete.

    `partition_key` selects the rows that were ingested under it, `tokens` the rows of the ingests
    with these tokens, and `all` all pending rows. Without a selection these are the rows that were
    ingested without a partition key. `token` is the token of this job. Notes of the result name the
    rows that stay pending.
    """

    name: ClassVar[str] = "metagen"

    partition_key: Annotated[
        str | None, Help("only rows that were ingested under this partition key", "KEY")
    ] = None
    tokens: Annotated[
        Sequence[str] | None,
        Help("only rows of the ingest with this token; repeat for more", "TOKEN"),
    ] = None
    all: Annotated[bool, Help("all pending rows, whatever their partition keys")] = False

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for more than one selection, or an empty one."""
        named = [name for name in ("partition_key", "tokens") if given[name] is not None]
        if given["all"] is True:
            named.append("all")
        if len(named) > 1:
            raise InvalidInputError(
                f"metagen takes only one of partition_key, tokens and all, got {', '.join(named)}"
            )
        # An empty list is more likely a mistake than a wish for rows without a partition key
        if given["tokens"] in ([], ()):
            raise InvalidInputError(
                "metagen: tokens is empty; name at least one token, or leave tokens out to select "
                "rows that were ingested without a partition key"
            )

    def run(self, table: "OpenTable") -> JobResult:
        """Apply the rule to the selected pending rows."""
        from opal_lake.write.metagen_job import metagen

        return metagen(table, self.token, self.selection)

    def look(self, table: "OpenTable") -> JobResult | None:
        """Return the result if none of the selected rows can be published now."""
        from opal_lake.write.metagen_job import result_without_work

        return result_without_work(table.log, table.log.head(), self.token, self.selection)

    @property
    def selection(self) -> "Selection":
        """The pending rows to process."""
        from opal_lake.log.pending import Selection

        return Selection(
            partition_key=self.partition_key,
            tokens=None if self.tokens is None else tuple(self.tokens),
            all=self.all,
        )
