"""The position of a stream, as Spark stores it in the checkpoint: JSON.

It names the table, since another one may lie at the path one day, and the columns by their field
ids, since they may be renamed. The end of the first micro-batch also says where the stream began:
Spark does not store that, and when it runs the micro-batch again, the table has new versions.
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
    """The position of a stream that has read everything up to `version`.

    `begun` is the version after which the stream began, or SNAPSHOT if it began with the whole
    table; None in later offsets.
    """

    table_id: str
    version: int
    fields: Mapping[str, int]
    begun: int | str | None = None

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "table": self.table_id,
            "version": self.version,
            "fields": dict(self.fields),
        }
        if self.begun is not None:
            data["begun"] = self.begun
        return data

    def check(self, root: Root, uri: str) -> None:
        """Raise InvalidInputError if the table's versions do not continue this stream's."""
        advice = (
            "start over with another checkpointLocation, "
            "and with startingVersion if no row may be read twice"
        )
        if self.table_id != root.table_id:
            raise InvalidInputError(
                f"{uri} is another table than the one that the stream has read up to version "
                f"{self.version}: that one was dropped and created again; {advice}"
            )
        if self.version > root.version:
            raise InvalidInputError(
                f"{uri} has {root.version} as its newest version, and the stream has read up to "
                f"version {self.version}: versions were lost, as when a backup is restored; "
                f"{advice}"
            )


def offset_from_json(data: Mapping[str, Any]) -> StreamOffset:
    """Return the offset that a checkpoint stores."""
    try:
        begun = data.get("begun")
        if begun not in (None, SNAPSHOT):
            begun = checked.count(begun)
        return StreamOffset(
            table_id=checked.text(data["table"]),
            version=checked.count(data["version"]),
            fields=checked.numbered(data["fields"]),
            begun=begun,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"the checkpoint holds {dict(data)!r:.200}, which is not an offset of format('opal'); "
            "give each query a checkpointLocation of its own"
        ) from error
