"""Rejected rows: the ingests that put rows aside, and a replay of readable ones."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Help, Metadata
from opal_lake.operations.verb import Operation
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable


@declaration
class ListRejected(Operation[list[dict[str, Any]]]):
    """Return the rejected rows of each job, the newest job first.

    A job's entry has the number of rows, the reasons, the files, and a few rows as examples.
    `state` is the state of the ingest. Rows that are "waiting" can be replayed if `can_replay` is
    true.
    """

    name: ClassVar[str] = "rejected"

    def run(self, table: "OpenTable") -> list[dict[str, Any]]:
        """Read the files of rejected rows, and the log."""
        from opal_lake.write.rejected import rejected_list

        return rejected_list(table.log)


@declaration
class Replay(Operation[JobResult]):
    """Ingest again the rejected rows that can be read now, as with an added column.

    Each row is ingested once. Rows that still cannot be read stay rejected, and the result says
    why. Messages that a stream rejected can be replayed only if the stream has the format `json`,
    commits on its own and fills no column from the message. Otherwise the stored text is not the
    whole message. Among rows with equal key, delta and tie-break the replayed one counts.

    `metadata` is by default that of the ingest that rejected the rows. With "batch" the rows are
    pending under the partition key of that ingest until a `metagen`.
    """

    name: ClassVar[str] = "replay"

    metadata: Annotated[
        Metadata | None,
        Help(
            "batch: a later MetaGen makes the rows visible; inline: the replay itself "
            "(default: as the ingest that rejected them)"
        ),
    ] = None

    def run(self, table: "OpenTable") -> JobResult:
        """Replay in this process, whatever the engine; each ingest has its own commit."""
        from opal_lake.operations.ingest import Ingest
        from opal_lake.write.replay import replay

        return replay(table, Ingest(self, on_bad_rows="quarantine"), self.metadata)
