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
    """Return what each job rejected, the newest first.

    That is how many rows, why, where, and a sample.

    `state` is the state of the ingest: "waiting" rows can be replayed if `can_replay` is true.
    """

    name: ClassVar[str] = "rejected"

    def run(self, table: "OpenTable") -> list[dict[str, Any]]:
        """Read the files of rejected rows, and the log."""
        from opal_lake.write.rejected import rejected_list

        return rejected_list(table.log)


@declaration
class Replay(Operation[JobResult]):
    """Ingest rejected rows again that can be read now, as after a column was added.

    Each row is ingested once. The others stay rejected, and the result says why. Messages that a
    stream put aside can be replayed if it has the format `json`, commits on its own and fills no
    column from the message. Other rows cannot, since their text is not all that their source held.
    Of rows with equal key, delta and tie-break, the replayed one counts.

    `metadata` is by default that of the ingest that rejected the rows. With "batch" they are
    pending under its partition key until a `metagen`.
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
        """Read them in this process, whatever the engine: one commit for each ingest."""
        from opal_lake.operations.ingest import Ingest
        from opal_lake.write.replay import replay

        return replay(table, Ingest(self, on_bad_rows="quarantine"), self.metadata)
