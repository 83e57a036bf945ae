"""Traffic in a table's folder: one small sealed document for each process of a stream, written
every hour.

A document is {`format`, `table_id`, `applications` {application: {`hour` (hours since 1970, the one
being counted), `position` (all before it are counted), `current` [messages, bytes], `hours` [[hour
of the week, weeks 1 to 4, mean messages, mean bytes] ...]}}}. Bytes are 0 where nobody knows them.

Derived: whoever cannot read one goes on without it. Nothing is overwritten, so that two processes
that count the same do no harm: of each application the document with the greatest name counts, and
whoever writes deletes those of which nothing counts any more.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from opal_lake import checked, layout
from opal_lake.decoding import decoding
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.ids import IdSource
from opal_lake.log.commit import FORMAT_VERSION, canonical_json, seal, unseal
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_sealed
from opal_stream.traffic.hours import MOST_WEEKS, WEEK, Traffic, Volume

MOST_READ = 256  # documents; more are there only where nobody may delete


class TrafficFolder:
    """Of one table."""

    def __init__(self, storage: Storage, table_id: str, ids: IdSource) -> None:
        self._storage = storage
        self._table_id = table_id
        self._ids = ids
        self._names: dict[
            str, frozenset[str]
        ] = {}  # of documents that were read or written: their applications

    def read(self) -> dict[str, Traffic]:
        """What counts of each application. What is damaged is left out; `opal check` names it."""
        found: dict[str, Traffic] = {}
        for path in self._paths():
            for name, traffic in self._read(path).items():
                found.setdefault(name, traffic)
        return found

    def write(self, traffic: Mapping[str, Traffic], now_ms: int) -> None:
        """Of these applications this counts from now on; documents that do not count any more go."""
        seen_ms = max((layout.traffic_moment(path) or 0 for path in self._paths()), default=0)
        path = layout.traffic_path(
            max(now_ms, seen_ms + 1), self._ids.new_id()
        )  # also where another one's clock is ahead
        self._storage.put_if_absent(path, encode_traffic(self._table_id, traffic))
        self._names[path] = frozenset(traffic)
        self._storage.delete(self._superseded())

    def _superseded(self) -> list[str]:
        """Of two documents only the one with the lesser name ever goes, whoever deletes: one that counts always stays."""
        newer: set[str] = set()
        gone, paths = [], [*self._paths()]
        for path in paths:
            if path not in self._names:
                self._read(path)
            names = self._names.get(path)  # None of a damaged one: it waits for retention
            if names is not None and names <= newer:
                gone.append(path)
            newer |= names or set()
        self._names = {
            path: names for path, names in self._names.items() if path in paths and path not in gone
        }
        return gone

    def _paths(self) -> Iterator[str]:
        """Newest first."""
        paths = [
            entry.path
            for entry in self._storage.list(layout.TRAFFIC)
            if layout.traffic_moment(entry.path) is not None
        ]
        return islice(reversed(paths), MOST_READ)

    def _read(self, path: str) -> dict[str, Traffic]:
        with suppress(NotFoundError, FormatError):
            found = decode_traffic(
                read_sealed(self._storage, path), f"{self._storage.uri}/{path}", self._table_id
            )
            self._names[path] = frozenset(found)
            return found
        return {}


def encode_traffic(table_id: str, traffic: Mapping[str, Traffic]) -> bytes:
    parts = {name: _to_json(one) for name, one in traffic.items()}
    return seal(
        canonical_json({"format": FORMAT_VERSION, "table_id": table_id, "applications": parts})
    )


def _to_json(traffic: Traffic) -> dict[str, Any]:
    hours = [
        [slot, weeks, round(mean.messages), round(mean.bytes)]
        for slot, (weeks, mean) in sorted(traffic.means.items())
    ]
    current = [round(traffic.current.messages), round(traffic.current.bytes)]
    return {"hour": traffic.hour, "position": traffic.position, "current": current, "hours": hours}


def decode_traffic(data: bytes, path: str, table_id: str) -> dict[str, Traffic]:
    """FormatError for what this format does not have."""
    body = unseal(data, path)
    with decoding(path, "traffic", "delete the file: streams count again"):
        if (body["format"], body["table_id"]) != (FORMAT_VERSION, table_id):
            raise ValueError(
                f"it has format {body['format']!r}, and is of table {body['table_id']!r}"
            )
        return {
            checked.text(name): _from_json(part)
            for name, part in checked.mapped(body["applications"]).items()
        }


def _from_json(part: Any) -> Traffic:
    messages, size = checked.counts(part["current"])
    means = {}
    for entry in checked.listed(part["hours"]):
        slot, weeks, mean_messages, mean_bytes = checked.counts(entry)
        if slot >= WEEK or not 1 <= weeks <= MOST_WEEKS or slot in means:
            raise ValueError(f"{entry!r} is no mean of an hour of the week")
        means[slot] = weeks, Volume(float(mean_messages), float(mean_bytes))
    position, hour = checked.count(part["position"]), checked.count(part["hour"])
    return Traffic(
        hour=hour, position=position, current=Volume(float(messages), float(size)), means=means
    )
