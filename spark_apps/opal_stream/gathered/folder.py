"""The gathered files of a table, and the chain that the files of a partition make.

A chain begins where the table stands. Each file of it begins where the file before it ends.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from opal_lake import layout
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, NotFoundError, count_text
from opal_lake.storage.protocol import READERS, Storage, StoredObject
from opal_stream.formats.rows import DecodedRows
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
    "{0.path} holds rows of a deleted topic, and the table already has rows of the next topic of "
    "that name, which the file's rows would replace; delete the file"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A partition's files in the order of commits, and `loose` ones after a gap.

    `position` is where the table stands; None if it has no position in the partition.
    """

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
        header = self.loose[0]
        reached = self.bounds[-1] if self.bounds else 0
        return (
            f"{header.path} begins at offset {header.low}, but the table and the files before it "
            f"reach only offset {reached}: a file between them is missing or damaged. Put that "
            "file back. Otherwise delete both and start their stream again, which reads these "
            "messages once more if Kafka still has them"
        )


def chain_from(position: int | None, headers: Sequence[Header]) -> Chain:
    """Return the chain from a position; `headers` are a partition's files by offset.

    Without a position the chain begins with the earliest file that is marked as `first`.
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
    """Return the chains that can be committed now.

    Each given chain has at least one file.

    Files of a topic that was created again wait for files of the earlier topics. If all topics of a
    name wait for each other, all are ready.
    """
    ids = ids_by_name([chain.files[0].application for chain in chains])
    waiting: list[bool] = []  # for each chain
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
    """The files of a folder.

    - `paths` are those of all files.
    - `headers` are those of the good files, by partition and offset. Partitions are in the order of
      their oldest files, so that none waits forever.
    - `damaged` are the other files by path, with what is wrong.
    """

    paths: Sequence[str] = ()
    headers: Mapping[Application, Sequence[Header]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    def chain(self, application: Application, position: int | None) -> Chain:
        return chain_from(position, self.headers.get(application, ()))

    def overtaken(self, positions: Mapping[str, int]) -> dict[Application, Header]:
        """Return the partitions with late files, and the first of these.

        Late files must not be committed any more: their topic was deleted, and the table has rows
        of the next topic of its name.
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
        """Return the positions of the table after the commit of all chains."""
        ends = dict(positions)
        for application in self.headers:
            name = str(application)
            bounds = self.chain(application, positions.get(name)).bounds
            if bounds:
                ends[name] = bounds[-1]
        return ends

    def begins(self, positions: Mapping[str, int]) -> dict[Application, int]:
        """Return the offset at which each partition without a position begins.

        It is that of the partition's first file, and 0 if that file is missing.
        """
        begins: dict[Application, int] = {}
        for application, headers in self.headers.items():
            if str(application) not in positions:
                begins[application] = headers[0].low if headers[0].first else 0
        return begins

    def stuck(self, positions: Mapping[str, int], stream: str | None = None) -> dict[str, str]:
        """Return by path why files of one stream, or of all (None), cannot be committed.

        These are damaged files, and of each partition the first loose or late one. A listing takes
        time: the caller must count a file as stuck only if two listings in a row return it.
        """
        prefix = layout.GATHERED
        if stream is not None:
            prefix = layout.gathered_prefix(f"kafka:{stream}/")
        damaged = self._damaged(positions)
        reasons = {path: reason for path, reason in damaged.items() if path.startswith(prefix)}
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
        """Return the damaged files, without those whose rows are committed already."""
        if not self.damaged:
            return {}
        passed = set(self.passed(positions))
        return {path: reason for path, reason in self.damaged.items() if path not in passed}

    def note(
        self, application: Application, positions: Mapping[str, int], stuck: Mapping[str, str]
    ) -> str:
        """Return the note of how many files of a partition are stuck; empty if none is."""
        if not self.cause(application, stuck):
            return ""
        name = str(application)
        folder = layout.gathered_folder(name)
        chain = self.chain(application, positions.get(name))
        damaged = [path for path in self._damaged(positions) if path.startswith(folder)]
        count = len(chain.loose) + len(damaged)
        if application in self.overtaken(positions):
            count += len(chain.files)
        return f"{count_text(count, 'gathered file')} cannot be committed"

    def cause(self, application: Application, stuck: Mapping[str, str]) -> str:
        """Return why a partition's first stuck file is stuck; empty if none is."""
        folder = layout.gathered_folder(str(application))
        for path, reason in sorted(stuck.items()):
            if path.startswith(folder):
                return reason
        return ""

    def passed(self, positions: Mapping[str, int]) -> list[str]:
        """Return the paths of files that begin before the position of their partition.

        Their rows are committed: the files can be deleted.
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

    It reads each header once, and again if the file at the path has changed.
    """

    def __init__(self, storage: Storage, table_id: str) -> None:
        self._storage = storage
        self._table_id = table_id
        self._listed: dict[str, StoredObject] = {}
        self._known: dict[str, Header | str] = {}  # by path: the header, or why it is damaged

    def look(self) -> Listing:
        """List the folder.

        Read the table's head after this, never before: a file that is committed and deleted in
        between would be in neither.
        """
        listed = {entry.path: entry for entry in self._storage.list(layout.GATHERED)}
        unchanged = {path for path, entry in listed.items() if self._listed.get(path) == entry}
        self._known = {path: known for path, known in self._known.items() if path in unchanged}
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
        longest_waiting_first = sorted(
            headers, key=lambda application: (oldest_us[application], application.sort_key)
        )
        return Listing(
            paths=[*listed],
            headers={application: headers[application] for application in longest_waiting_first},
            damaged={path: known for path, known in self._known.items() if isinstance(known, str)},
        )

    def look_for_stuck(
        self, read_positions: Callable[[], Mapping[str, int]]
    ) -> tuple[Listing, dict[str, str]]:
        """List the folder; return the listing, and by path why files cannot be committed.

        `read_positions` returns the table's positions, and is called after each listing. A file is
        stuck if two listings in a row say so.
        """
        listing = self.look()
        stuck = listing.stuck(read_positions())
        if not stuck:
            return listing, stuck
        listing = self.look()
        again = listing.stuck(read_positions())
        return listing, {path: reason for path, reason in again.items() if path in stuck}

    def put(self, header: Header, rows: DecodedRows) -> int:
        """Write a file and return its size; 0 if a file begins at the same offset already."""
        data = encode_gathered(header, rows)
        if self._storage.put_if_absent(header.path, data):
            return len(data)
        return 0

    def read_header(self, path: str) -> Header:
        return decode_header(self._storage.get(path, 0, HEADER_BYTES), path, self._table_id)

    def read_rows(
        self, headers: Sequence[Header], spec: TableSpec
    ) -> list[tuple[Header, DecodedRows | None]]:
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
            return f"{path} does not have the name of a file of gathered rows; delete it"
        try:
            return self.read_header(path)
        except NotFoundError:
            return None
        except FormatError as error:
            return str(error)

    def _read_rows(self, header: Header, spec: TableSpec) -> DecodedRows | None:
        try:
            # One byte more than the longest file with these rows, so that a file that has grown
            # fails the check of its size
            data = self._storage.get(header.path, 0, HEADER_BYTES + header.size + 1)
            if decode_header(data, header.path, self._table_id) != header:
                raise FormatError(f"{header.path} has changed since it was listed; {REPAIR}")
            return decode_rows(data, header.path, header, spec)
        except NotFoundError:
            return None
        except FormatError as error:
            self._known[header.path] = str(error)
            return None
