"""The gathered files of a table, and the chain that those of a partition make.

It begins where the table stands, and each of its files begins where the one before it ends.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from opal_lake import layout
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, NotFoundError, count_text
from opal_lake.storage.protocol import READERS, Storage, StoredObject
from opal_stream.gathered.file import (
    HEADER_BYTES,
    MEND,
    Header,
    decode_header,
    decode_rows,
    encode_gathered,
)
from opal_stream.kafka.applications import Application, ids_by_name, known_positions

_LATE = (
    "{0.path} holds rows of a topic that was deleted, and those of the next topic of its name are in the table: its own would replace "
    "them; delete it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Files in the order in which they are to be committed, and those behind them that nothing leads to."""

    position: int | None
    files: Sequence[Header]
    loose: Sequence[Header]

    @property
    def bounds(self) -> list[int]:
        """Where the table stands before, between and after the files."""
        return [
            *([] if self.position is None else [self.position]),
            *(header.high for header in self.files),
        ]

    @property
    def gap(self) -> str:
        """What is wrong with the first loose file, and what to do."""
        header, reached = self.loose[0], self.bounds[-1] if self.bounds else 0
        return (
            f"{header.path} begins at offset {header.low}, but the table, with the files before it, reaches {reached}: a file between is "
            "missing or damaged; put it back, or delete it and this one and start their stream again, which reads these messages once more "
            "if Kafka still has them"
        )


def chain_from(position: int | None, headers: Sequence[Header]) -> Chain:
    """Of one partition, by offset. Where the table has no position, the first file that may begin there does."""
    files: list[Header] = []
    loose: list[Header] = []
    at = position
    for header in headers:
        if header.low == at or (at is None and header.first):
            files.append(header)
            at = header.high
        elif at is None or header.low > at:
            loose.append(header)
    return Chain(position=position, files=files, loose=loose)


def in_turn(chains: Sequence[Chain]) -> list[Chain]:
    """Of chains that have files, those that need not wait: a topic that was made anew waits for what the one before it has.

    Where all topics of a name wait for each other, none does.
    """
    applications = [chain.files[0].application for chain in chains]
    ids = ids_by_name(applications)
    waits = [
        bool(ids[one.named].intersection(chain.files[0].after or ()) - {one.topic_id})
        for one, chain in zip(applications, chains, strict=True)
    ]
    going = {
        one.named for one, is_waiting in zip(applications, waits, strict=True) if not is_waiting
    }
    return [
        chain
        for one, chain, is_waiting in zip(applications, chains, waits, strict=True)
        if not (is_waiting and one.named in going)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What lay in the folder: files of each partition by offset, and files that are none, with what is wrong.

    Partitions are in the order of their oldest files, so that none waits for ever.
    """

    paths: Sequence[str] = ()
    headers: Mapping[Application, Sequence[Header]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    def chain(self, application: Application, position: int | None) -> Chain:
        return chain_from(position, self.headers.get(application, ()))

    def overtaken(self, positions: Mapping[str, int]) -> dict[Application, Header]:
        """Partitions of topics that were deleted, with their first file that could be committed: rows of a later topic are in the table."""
        committed = ids_by_name(known_positions(positions)) if self.headers else {}
        found: dict[Application, Header] = {}
        for application in self.headers:
            others = committed.get(application.named, set()) - {application.topic_id}
            files = self.chain(application, positions.get(str(application))).files if others else ()
            if files and files[0].after is not None and others.difference(files[0].after):
                found[application] = files[0]
        return found

    def first_offset(self, application: Application) -> int | None:
        """Where its first file begins, whatever is wrong with that."""
        folder = layout.gathered_folder(str(application))
        places = [
            place[1]
            for path in self.paths
            if (place := layout.gathered_place(path)) is not None and place[0] == folder
        ]
        return min(places, default=None)

    def ends(self, positions: Mapping[str, int]) -> dict[str, int]:
        """How far the table will stand when everything that lies here is committed; not less than its position."""
        ends = dict(positions)
        for application in self.headers:
            name = str(application)
            if bounds := self.chain(application, positions.get(name)).bounds:
                ends[name] = bounds[-1]
        return ends

    def begins(self, positions: Mapping[str, int]) -> dict[Application, int]:
        """Of partitions of which nothing is committed yet: where their first file begins; 0 if that is missing."""
        new = {
            application: headers[0]
            for application, headers in self.headers.items()
            if str(application) not in positions
        }
        return {
            application: header.low if header.first else 0 for application, header in new.items()
        }

    def stuck(self, positions: Mapping[str, int], stream: str | None = None) -> dict[str, str]:
        """What cannot be committed, of all streams or of one, and why: damaged files, and of each partition the first loose or late one.

        A listing takes time: it is so only if the next listing says so, too.
        """
        own = [application for application in self.headers if stream in (None, application.stream)]
        chains = [self.chain(application, positions.get(str(application))) for application in own]
        prefix = layout.GATHERED if stream is None else layout.gathered_prefix(f"kafka:{stream}/")
        damaged = {
            path: why for path, why in self._damaged(positions).items() if path.startswith(prefix)
        }
        late = {
            header.path: _LATE.format(header)
            for one, header in self.overtaken(positions).items()
            if one in own
        }
        return damaged | late | {chain.loose[0].path: chain.gap for chain in chains if chain.loose}

    def _damaged(self, positions: Mapping[str, int]) -> dict[str, str]:
        """But for those whose rows are committed."""
        passed = {*self.passed(positions)} if self.damaged else set()
        return {path: why for path, why in self.damaged.items() if path not in passed}

    def note(
        self, application: Application, positions: Mapping[str, int], stuck: Mapping[str, str]
    ) -> str:
        """What holds a partition back, where files of it are `stuck`."""
        if not self.cause(application, stuck):
            return ""
        folder, name = layout.gathered_folder(str(application)), str(application)
        chain, damaged = (
            self.chain(application, positions.get(name)),
            sum(path.startswith(folder) for path in self._damaged(positions)),
        )
        late = len(chain.files) if application in self.overtaken(positions) else 0
        count = len(chain.loose) + late + damaged
        return f"{count_text(count, 'gathered file')} cannot be committed"

    def cause(self, application: Application, stuck: Mapping[str, str]) -> str:
        """What is wrong with the first of those that are stuck."""
        folder = layout.gathered_folder(str(application))
        return next((why for path, why in sorted(stuck.items()) if path.startswith(folder)), "")

    def passed(self, positions: Mapping[str, int]) -> list[str]:
        """Files that begin before the position: their rows are committed, and nothing can lead to them any more."""
        folders = {layout.gathered_folder(name): position for name, position in positions.items()}
        places = {path: layout.gathered_place(path) for path in self.paths}
        return [
            path
            for path, place in places.items()
            if place is not None and place[1] < folders.get(place[0], 0)
        ]


class GatheredFolder:
    """Reads and writes the files of one table. Headers are read once, and what was found damaged again when another file lies there."""

    def __init__(self, storage: Storage, table_id: str) -> None:
        self._storage = storage
        self._table_id = table_id
        self._listed: dict[str, StoredObject] = {}
        self._known: dict[str, Header | str] = {}

    def look(self) -> Listing:
        """List it. Who wants to know what is not committed asks for the table's head after that, never before.

        Otherwise a file that is committed and deleted in between would be in neither.
        """
        listed = {entry.path: entry for entry in self._storage.list(layout.GATHERED)}
        self._known = {
            path: known
            for path, known in self._known.items()
            if path in listed and listed[path] == self._listed.get(path)
        }
        self._listed, paths = listed, [*listed]
        with ThreadPoolExecutor(READERS) as pool:
            new = [path for path in paths if path not in self._known]
            self._known |= {
                path: found
                for path, found in zip(new, pool.map(self._read_header, new), strict=True)
                if found is not None
            }
        headers: dict[Application, list[Header]] = {}
        oldest_us: dict[Application, int] = {}
        for path in paths:
            if isinstance(known := self._known.get(path), Header):
                headers.setdefault(known.application, []).append(known)
                oldest_us[known.application] = min(
                    listed[path].modified_us,
                    oldest_us.get(known.application, listed[path].modified_us),
                )
        damaged = {path: known for path, known in self._known.items() if isinstance(known, str)}
        in_order = {
            application: headers[application]
            for application in sorted(headers, key=lambda one: (oldest_us[one], one.place))
        }
        return Listing(paths=paths, headers=in_order, damaged=damaged)

    def look_for_stuck(
        self, head: Callable[[], Mapping[str, int]]
    ) -> tuple[Listing, dict[str, str]]:
        """Also which files cannot be committed, and why; `head` says where the table stands, after a listing."""
        listing = self.look()
        stuck = listing.stuck(head())
        if not stuck:
            return listing, stuck
        listing = self.look()
        return listing, {path: why for path, why in listing.stuck(head()).items() if path in stuck}

    def put(self, header: Header, rows: pa.Table) -> int:
        """How many bytes it has; 0 if a file begins there already."""
        data = encode_gathered(header, rows)
        return len(data) if self._storage.put_if_absent(header.path, data) else 0

    def read_header(self, path: str) -> Header:
        return decode_header(self._storage.get(path, 0, HEADER_BYTES), path, self._table_id)

    def read_rows(
        self, headers: Sequence[Header], spec: TableSpec
    ) -> list[tuple[Header, pa.Table | None]]:
        """Of each file; None for one that is gone, or is damaged, which `look` then says of it."""
        with ThreadPoolExecutor(READERS) as pool:
            return list(
                zip(
                    headers,
                    pool.map(lambda header: self._read_rows(header, spec), headers),
                    strict=True,
                )
            )

    def refuse(self, header: Header, why: str) -> None:
        """From now on `look` says that it is damaged."""
        self._known[header.path] = f"{header.path}: {why}"

    def delete(self, paths: Sequence[str]) -> None:
        self._storage.delete(paths)

    def _read_header(self, path: str) -> Header | str | None:
        if layout.gathered_place(path) is None:
            return f"{path} has a name that no file of gathered rows has; delete it"
        try:
            return self.read_header(path)
        except NotFoundError:
            return None
        except FormatError as error:
            return str(error)

    def _read_rows(self, header: Header, spec: TableSpec) -> pa.Table | None:
        try:
            data = self._storage.get(header.path, 0, HEADER_BYTES + header.size + 1)
            if decode_header(data, header.path, self._table_id) != header:
                raise FormatError(f"{header.path} has changed since it was listed; {MEND}")
            return decode_rows(data, header.path, header, spec)
        except NotFoundError:
            return None
        except FormatError as error:
            self._known[header.path] = str(error)
            return None
