"""The position of a stream, as Spark stores it in the checkpoint: JSON.

An offset has the table's id, since another table may replace this one at the same path. It has the
field ids of the columns, since columns may be renamed. The end of the first micro-batch also
records where the stream began. Spark does not store that, and the table may have new versions when
Spark runs the micro-batch again.
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

    `fields` has the field id of each column of the query, by name. `begun` is the version after
    which the stream began, or SNAPSHOT if it began with the whole table; None in later offsets.
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
        """Raise InvalidInputError if the stream cannot continue from this offset.

        This is so if the table was replaced, or has lost versions that the stream has read.
        """
        advice = (
            "start over with another checkpointLocation, "
            "and with startingVersion if no row may be read twice"
        )
        if self.table_id != root.table_id:
            raise InvalidInputError(
                f"the stream has read up to version {self.version} of a table at {uri} that was "
                f"dropped and created again since then; {advice}"
            )
        if self.version > root.version:
            raise InvalidInputError(
                f"{root.version} is the newest version of {uri}, but the stream has read up to "
                f"version {self.version}. Versions were lost, for example by restoring a backup; "
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
