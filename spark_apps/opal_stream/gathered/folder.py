"""The gathered files of a table, and the chain that those of a partition make.

A chain begins where the table stands, and each of its files begins where the one before it ends.
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
    REPAIR,
    Header,
    decode_header,
    decode_rows,
    encode_gathered,
)
from opal_stream.kafka.applications import Application, ids_by_name, known_positions

_LATE = (
    "{0.path} holds rows of a topic that was deleted, and those of the next topic of its name are "
    "in the table: its own would replace them; delete it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The files of a partition in the order of commits; `loose` ones follow a gap."""

    position: int | None
    files: Sequence[Header]
    loose: Sequence[Header]

    @property
    def bounds(self) -> list[int]:
        """The positions of the table before, between and after the files."""
        ends = [header.high for header in self.files]
        if self.position is None:
            return ends
        return [self.position, *ends]

    @property
    def gap(self) -> str:
        """The message about the first loose file, with what to do."""
        header, bounds = self.loose[0], self.bounds
        reached = bounds[-1] if bounds else 0
        return (
            f"{header.path} begins at offset {header.low}, but the table, with the files before "
            f"it, reaches {reached}: a file between is missing or damaged; put it back, or delete "
            "it and this one and start their stream again, which reads these messages once more "
            "if Kafka still has them"
        )


def chain_from(position: int | None, headers: Sequence[Header]) -> Chain:
    """Return the chain of a partition's files, given in the order of their offsets.

    Where the table has no position, it begins with the first file that may be the first.
    """
    files: list[Header] = []
    loose: list[Header] = []
    end = position
    for header in headers:
        if header.low == end or (end is None and header.first):
            files.append(header)
            end = header.high
        elif end is None or header.low > end:
            loose.append(header)
    return Chain(position=position, files=files, loose=loose)


def ready_chains(chains: Sequence[Chain]) -> list[Chain]:
    """Return the chains that can be committed now; each has at least one file.

    A topic that was created again waits for the files of the topic before. Where all topics of a
    name wait for each other, none does.
    """
    ids = ids_by_name([chain.files[0].application for chain in chains])
    waiting: list[bool] = []
    topics_with_ready_chains: set[tuple[str, str]] = set()
    for chain in chains:
        first = chain.files[0]
        application = first.application
        others = ids[application.stream_topic] - {application.topic_id}
        is_waiting = not others.isdisjoint(first.after or ())
        waiting.append(is_waiting)
        if not is_waiting:
            topics_with_ready_chains.add(application.stream_topic)
    ready: list[Chain] = []
    for chain, is_waiting in zip(chains, waiting, strict=True):
        if (
            not is_waiting
            or chain.files[0].application.stream_topic not in topics_with_ready_chains
        ):
            ready.append(chain)
    return ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a folder, by partition and offset, and the damaged ones.

    Partitions are in the order of their oldest files, so that none waits forever.
    """

    paths: Sequence[str] = ()
    headers: Mapping[Application, Sequence[Header]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    def chain(self, application: Application, position: int | None) -> Chain:
        return chain_from(position, self.headers.get(application, ()))

    def overtaken(self, positions: Mapping[str, int]) -> dict[Application, Header]:
        """Return partitions whose files come too late, with their first files.

        Their topic was deleted, and rows of the next topic of its name are in the table.
        """
        if not self.headers:
            return {}
        committed = ids_by_name(known_positions(positions))
        overtaken: dict[Application, Header] = {}
        for application in self.headers:
            others = committed.get(application.stream_topic, set()) - {application.topic_id}
            if not others:
                continue
            files = self.chain(application, positions.get(str(application))).files
            if files and files[0].after is not None and others.difference(files[0].after):
                overtaken[application] = files[0]
        return overtaken

    def first_offset(self, application: Application) -> int | None:
        """Return the first offset of a partition's files, damaged ones included."""
        folder = layout.gathered_folder(str(application))
        offsets: list[int] = []
        for path in self.paths:
            parsed = layout.gathered_place(path)
            if parsed is not None and parsed[0] == folder:
                offsets.append(parsed[1])
        return min(offsets, default=None)

    def ends(self, positions: Mapping[str, int]) -> dict[str, int]:
        """Return where the table will stand when all files that can be are committed."""
        ends = dict(positions)
        for application in self.headers:
            name = str(application)
            if bounds := self.chain(application, positions.get(name)).bounds:
                ends[name] = bounds[-1]
        return ends

    def begins(self, positions: Mapping[str, int]) -> dict[Application, int]:
        """Return where the first file of each partition without a position begins.

        It is 0 where that file is missing.
        """
        begins: dict[Application, int] = {}
        for application, headers in self.headers.items():
            if str(application) not in positions:
                begins[application] = headers[0].low if headers[0].first else 0
        return begins

    def stuck(self, positions: Mapping[str, int], stream: str | None = None) -> dict[str, str]:
        """Return the files that cannot be committed, of all streams or one, and why.

        These are damaged files, and of each partition the first loose or late one. A listing takes
        time: a file is stuck only if the next listing says so, too.
        """
        prefix = layout.GATHERED if stream is None else layout.gathered_prefix(f"kafka:{stream}/")
        damaged = self._damaged(positions)
        reasons = {path: why for path, why in damaged.items() if path.startswith(prefix)}
        for application, header in self.overtaken(positions).items():
            if stream in (None, application.stream):
                reasons[header.path] = _LATE.format(header)
        for application in self.headers:
            if stream not in (None, application.stream):
                continue
            chain = self.chain(application, positions.get(str(application)))
            if chain.loose:
                reasons[chain.loose[0].path] = chain.gap
        return reasons

    def _damaged(self, positions: Mapping[str, int]) -> dict[str, str]:
        """Return the damaged files, except for those whose rows are committed."""
        if not self.damaged:
            return {}
        passed = {*self.passed(positions)}
        return {path: reason for path, reason in self.damaged.items() if path not in passed}

    def note(
        self, application: Application, positions: Mapping[str, int], stuck: Mapping[str, str]
    ) -> str:
        """Return how many files hold a partition back; empty if none does."""
        if not self.cause(application, stuck):
            return ""
        folder, name = layout.gathered_folder(str(application)), str(application)
        chain = self.chain(application, positions.get(name))
        damaged = sum(path.startswith(folder) for path in self._damaged(positions))
        late = len(chain.files) if application in self.overtaken(positions) else 0
        count = len(chain.loose) + late + damaged
        return f"{count_text(count, 'gathered file')} cannot be committed"

    def cause(self, application: Application, stuck: Mapping[str, str]) -> str:
        """Return the reason of a partition's first stuck file; empty if it has none."""
        folder = layout.gathered_folder(str(application))
        for path, reason in sorted(stuck.items()):
            if path.startswith(folder):
                return reason
        return ""

    def passed(self, positions: Mapping[str, int]) -> list[str]:
        """Return the files that begin before the position of their partition.

        Their rows are committed, and no chain can lead to them any more.
        """
        reached = {layout.gathered_folder(name): position for name, position in positions.items()}
        passed: list[str] = []
        for path in self.paths:
            parsed = layout.gathered_place(path)
            if parsed is None:
                continue
            folder, offset = parsed
            if offset < reached.get(folder, 0):
                passed.append(path)
        return passed


class GatheredFolder:
    """The folder of gathered files of one table.

    A header is read once, and again when another file lies at its path.
    """

    def __init__(self, storage: Storage, table_id: str) -> None:
        self._storage = storage
        self._table_id = table_id
        self._listed: dict[str, StoredObject] = {}
        self._known: dict[str, Header | str] = {}  # a header, or why a file is damaged

    def look(self) -> Listing:
        """List the folder.

        To know what is not committed, read the table's head after this, never before: a file that
        is committed and deleted in between would be in neither.
        """
        listed = {entry.path: entry for entry in self._storage.list(layout.GATHERED)}
        self._known = {
            path: known
            for path, known in self._known.items()
            if path in listed and listed[path] == self._listed.get(path)
        }
        self._listed = listed
        new = [path for path in listed if path not in self._known]
        with ThreadPoolExecutor(READERS) as pool:
            for path, read in zip(new, pool.map(self._read_header, new), strict=True):
                if read is not None:
                    self._known[path] = read
        headers: dict[Application, list[Header]] = {}
        oldest_us: dict[Application, int] = {}
        for path, entry in listed.items():
            header = self._known.get(path)
            if not isinstance(header, Header):
                continue
            application = header.application
            headers.setdefault(application, []).append(header)
            oldest = oldest_us.get(application, entry.modified_us)
            oldest_us[application] = min(oldest, entry.modified_us)
        order = sorted(
            headers, key=lambda application: (oldest_us[application], application.sort_key)
        )
        return Listing(
            paths=[*listed],
            headers={application: headers[application] for application in order},
            damaged={path: known for path, known in self._known.items() if isinstance(known, str)},
        )

    def look_for_stuck(
        self, read_positions: Callable[[], Mapping[str, int]]
    ) -> tuple[Listing, dict[str, str]]:
        """List the folder; return the listing and the files that cannot be committed.

        `read_positions` is called after a listing. Files are stuck if two listings say so.
        """
        listing = self.look()
        stuck = listing.stuck(read_positions())
        if not stuck:
            return listing, stuck
        listing = self.look()
        again = listing.stuck(read_positions())
        return listing, {path: reason for path, reason in again.items() if path in stuck}

    def put(self, header: Header, rows: pa.Table) -> int:
        """Write a file and return its size; 0 if a file begins at the same offset already."""
        data = encode_gathered(header, rows)
        if self._storage.put_if_absent(header.path, data):
            return len(data)
        return 0

    def read_header(self, path: str) -> Header:
        return decode_header(self._storage.get(path, 0, HEADER_BYTES), path, self._table_id)

    def read_rows(
        self, headers: Sequence[Header], spec: TableSpec
    ) -> list[tuple[Header, pa.Table | None]]:
        """Return the rows of each file; None for one that is gone or damaged.

        The next `look` lists the damaged ones.
        """
        with ThreadPoolExecutor(READERS) as pool:
            tables = pool.map(lambda header: self._read_rows(header, spec), headers)
            return list(zip(headers, tables, strict=True))

    def refuse(self, header: Header, why: str) -> None:
        """Let `look` list a file as damaged from now on."""
        self._known[header.path] = f"{header.path}: {why}"

    def delete(self, paths: Sequence[str]) -> None:
        self._storage.delete(paths)

    def _read_header(self, path: str) -> Header | str | None:
        """Return the header, or why the file is damaged; None if it is gone."""
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
                raise FormatError(f"{header.path} has changed since it was listed; {REPAIR}")
            return decode_rows(data, header.path, header, spec)
        except NotFoundError:
            return None
        except FormatError as error:
            self._known[header.path] = str(error)
            return None
