"""How far a stream has come, as Spark keeps it in the checkpoint: JSON.

It names the table, since another one may lie at the path one day, and the columns by their field ids, since they may be renamed. The end
of the first micro-batch also says where the stream began: of that Spark keeps nothing, and when it runs the micro-batch again, the table
has gone on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opal_lake import checked
from opal_lake.errors import InvalidInputError
from opal_lake.log.snapshot import Root

NOT_BEGUN: dict[str, Any] = {"version": None}
SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """All up to `version` is read. `begun` is the version after which the stream began, or SNAPSHOT if it began with the whole table."""

    table_id: str
    version: int
    fields: Mapping[str, int]
    begun: int | str | None = None

    def to_json(self) -> dict[str, Any]:
        begun = {} if self.begun is None else {"begun": self.begun}
        return {
            "table": self.table_id,
            "version": self.version,
            "fields": dict(self.fields),
            **begun,
        }

    def check(self, root: Root, uri: str) -> None:
        """Versions of another table are no continuation of this one's."""
        again = "start over with another checkpointLocation, and with startingVersion if no row may be read twice"
        if self.table_id != root.table_id:
            raise InvalidInputError(
                f"{uri} is another table than the one that the stream has read up to version {self.version}: that one was dropped and "
                f"created again; {again}"
            )
        if self.version > root.version:
            raise InvalidInputError(
                f"{uri} has {root.version} as its newest version, and the stream has read up to version {self.version}: versions were "
                f"lost, as when a backup is restored; {again}"
            )


def offset_from_json(data: Mapping[str, Any]) -> StreamOffset:
    """From a checkpoint."""
    try:
        begun = data.get("begun")
        return StreamOffset(
            table_id=checked.text(data["table"]),
            version=checked.count(data["version"]),
            fields=checked.numbered(data["fields"]),
            begun=begun if begun in (None, SNAPSHOT) else checked.count(begun),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"the checkpoint holds {dict(data)!r:.200}, which is no offset of format('opal'); give each query a checkpointLocation of its "
            "own"
        ) from error
