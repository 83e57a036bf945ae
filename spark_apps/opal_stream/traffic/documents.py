"""The traffic in a table's folder: a small sealed document for each process of a stream.

A document is {`format`, `table_id`, `applications` {application: {`hour` (hours since 1970, the one
being counted), `position` (all before it are counted), `current` [messages, bytes], `hours` [[hour
of the week, weeks 1 to 4, mean messages, mean bytes] ...]}}}. Bytes are 0 where nobody knows them.

Each process writes a document every hour. Documents are derived data: a process that cannot read
one goes on without it. Nothing is overwritten, so that two processes may count the same
application: its document with the greatest name counts. A writer deletes the documents whose
applications all have a newer one.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from opal_lake import checked, layout
from opal_lake.decoding import decoding
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.ids import IdSource
from opal_lake.log.commit import FORMAT_VERSION, canonical_json, seal, unseal
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_sealed
from opal_stream.traffic.hours import MAX_WEEKS, WEEK, Traffic, Volume

MAX_READ = 256  # documents; more exist only where nobody may delete


class TrafficFolder:
    """The folder of traffic documents of one table."""

    def __init__(self, storage: Storage, table_id: str, ids: IdSource) -> None:
        self._storage = storage
        self._table_id = table_id
        self._ids = ids
        # The applications of documents that were read or written, by path
        self._names: dict[str, frozenset[str]] = {}

    def read(self) -> dict[str, Traffic]:
        """Return the traffic of each application, from its newest document.

        Damaged documents are left out; `opal check` names them.
        """
        newest: dict[str, Traffic] = {}
        for path in self._paths():
            for name, traffic in self._read(path).items():
                newest.setdefault(name, traffic)
        return newest

    def write(self, traffic: Mapping[str, Traffic], now_ms: int) -> None:
        """Write a document of these applications; delete superseded documents."""
        moments = [layout.traffic_moment(path) or 0 for path in self._paths()]
        # The greatest name counts: later than all others, also where another clock is ahead
        moment_ms = max(now_ms, max(moments, default=0) + 1)
        path = layout.traffic_path(moment_ms, self._ids.new_id())
        self._storage.put_if_absent(path, encode_traffic(self._table_id, traffic))
        self._names[path] = frozenset(traffic)
        self._storage.delete(self._superseded())

    def _superseded(self) -> list[str]:
        """Return the documents whose applications all have a newer document.

        Several processes may delete at once: the newest document of an application always stays.
        """
        newer: set[str] = set()
        superseded: list[str] = []
        paths = [*self._paths()]
        for path in paths:
            if path not in self._names:
                self._read(path)
            names = self._names.get(path)
            if names is None:  # a damaged one waits for retention
                continue
            if names <= newer:
                superseded.append(path)
            newer |= names
        remaining = {*paths} - {*superseded}
        self._names = {path: names for path, names in self._names.items() if path in remaining}
        return superseded

    def _paths(self) -> Iterator[str]:
        """Return the paths of documents, the newest first."""
        listed = [entry.path for entry in self._storage.list(layout.TRAFFIC)]
        paths = [path for path in listed if layout.traffic_moment(path) is not None]
        return islice(reversed(paths), MAX_READ)

    def _read(self, path: str) -> dict[str, Traffic]:
        uri = f"{self._storage.uri}/{path}"
        try:
            traffic = decode_traffic(read_sealed(self._storage, path), uri, self._table_id)
        except (NotFoundError, FormatError):
            return {}
        self._names[path] = frozenset(traffic)
        return traffic


def encode_traffic(table_id: str, traffic: Mapping[str, Traffic]) -> bytes:
    """Return the bytes of a document."""
    applications = {name: _to_json(counted) for name, counted in traffic.items()}
    body = {"format": FORMAT_VERSION, "table_id": table_id, "applications": applications}
    return seal(canonical_json(body))


def _to_json(traffic: Traffic) -> dict[str, Any]:
    hours: list[list[int]] = []
    for slot, (weeks, mean) in sorted(traffic.means.items()):
        hours.append([slot, weeks, round(mean.messages), round(mean.bytes)])
    current = [round(traffic.current.messages), round(traffic.current.bytes)]
    return {"hour": traffic.hour, "position": traffic.position, "current": current, "hours": hours}


def decode_traffic(data: bytes, path: str, table_id: str) -> dict[str, Traffic]:
    """Return the traffic of a document; raise FormatError if it is not valid."""
    body = unseal(data, path)
    with decoding(path, "traffic", "delete the file: streams count again"):
        if (body["format"], body["table_id"]) != (FORMAT_VERSION, table_id):
            raise ValueError(
                f"it has format {body['format']!r} and belongs to table {body['table_id']!r}, "
                f"expected format {FORMAT_VERSION!r} and table {table_id!r}"
            )
        applications = checked.mapped(body["applications"])
        return {checked.text(name): _from_json(part) for name, part in applications.items()}


def _from_json(part: Any) -> Traffic:
    messages, size = checked.counts(part["current"])
    means = {}
    for entry in checked.listed(part["hours"]):
        slot, weeks, mean_messages, mean_bytes = checked.counts(entry)
        if slot >= WEEK or not 1 <= weeks <= MAX_WEEKS or slot in means:
            raise ValueError(f"{entry!r} is not a mean of an hour of the week")
        means[slot] = weeks, Volume(float(mean_messages), float(mean_bytes))
    return Traffic(
        position=checked.count(part["position"]),
        hour=checked.count(part["hour"]),
        current=Volume(float(messages), float(size)),
        means=means,
    )
