"""Random programs that change columns between the steps of streams, and a model of the rows.

The model holds values by the numbers of columns, as that of `changed_tables` does. So a value that
gets into a column of the same name, but of another number, is seen.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any

from opal_stream.flush.buffer import Buffer, FlushLimits
from opal_stream.flush.committer import Committer, CommitterOptions
from opal_stream.flush.writer import Writer
from opal_stream.formats.decoder import Decoder, row_form_of
from opal_stream.formats.rows import DecodedRows
from opal_stream.gathered.file import Header
from opal_stream.gathered.folder import GatheredFolder
from opal_stream.kafka.applications import Application
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from opal_stream.operations.reading import FormatOptions
from tests.opal_lake.write.changed_tables import NAMES, Node, Program, Row, shown_row
from tests.opal_stream.orders import batch

FORMATS = FormatOptions(on_new_columns="quarantine")
PARTITIONS = (Partition(topic="orders", number=4), Partition(topic="orders", number=5))
DIRECT = Partition(topic="orders", number=3)  # of `batch`


def application(partition: Partition) -> Application:
    return Application(stream="main", partition=partition, topic_id="t")


def json_text(value: Any) -> str:
    """Return a value as JSON; a decimal is a number with all its digits."""
    if isinstance(value, dict):
        members = [f"{json_text(name)}: {json_text(member)}" for name, member in value.items()]
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(json_text, value))}]"
    if value is None:
        return "null"
    if isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, date):
        return f'"{value.isoformat()}"'
    return f'"{value}"'


@dataclass
class Aside:
    """A row that was put aside: the columns of its text, and a key that no column had."""

    row: Row
    columns: list[Node]
    extra: str
    extra_value: str


@dataclass
class Job:
    """The rows of one commit that were put aside."""

    rows: list[Aside] = field(default_factory=list)


class StreamProgram(Program):
    """A program whose rows come in messages; `alter` is run between any two steps of a row."""

    def __init__(self, seed: int, file_format: str) -> None:
        super().__init__(seed, file_format)
        # For each partition the files that wait, with the rows of the model
        self.gathered: dict[Partition, list[tuple[list[Row], list[Node]]]] = {
            name: [] for name in PARTITIONS
        }
        self.offsets: dict[Partition, int] = dict.fromkeys((*PARTITIONS, DIRECT), 0)
        self.decoder = Decoder(self.table.snapshot_at().spec, FORMATS)
        self.buffer = Buffer(limits=FlushLimits())
        self.buffered: list[Row] = []
        self.buffered_asides: list[Aside] = []
        self.jobs: list[Job] = []
        self.replayed = self.committed_files = 0

    def run(self, steps: int) -> None:
        kinds = [
            self.gather,
            self.gather,
            self.commit_gathered,
            self.read_messages,
            self.read_messages,
            self.flush,
            self.replay,
            self.let_in,
            self.alter,
            self.alter,
            self.swap,
            self.add_again,
            self.ingest,
        ]
        self.ingest()
        for _ in range(steps):
            step = self.random.choice(kinds)
            self.log_of_steps.append(step.__name__)
            step()
            self.compare()
        self.commit_gathered()
        self.flush()
        for _ in range(3):
            self.let_in()
            self.replay()
            self.compare()

    def compare(self) -> None:
        if self.has_committed and self.table.history()[0]["operation"] == "compact":
            self.commit()  # a commit of rows has folded small files
        assert self.table.snapshot_at().version == len(self.states) - 1
        assert self.shown(self.table.read(), self.key(self.now)) == self.now.view()

    # Steps of columns

    def swap(self) -> None:
        """Exchange the names of two columns, or of two members."""
        columns = deepcopy(self.now.columns)
        path, siblings = self.siblings(columns)
        if len(siblings) < 2:
            return
        one, other = self.random.sample(siblings, 2)
        changes = [
            {"rename": f"{path}{one.name}", "to": "between"},
            {"rename": f"{path}{other.name}", "to": one.name},
            {"rename": f"{path}between", "to": other.name},
        ]
        one.name, other.name = other.name, one.name
        self.log_of_steps.append(repr(changes))
        self.table.alter(changes)
        self.commit(columns=columns)

    def add_again(self) -> None:
        """Drop a column, and add another one of its name."""
        columns = deepcopy(self.now.columns)
        path, siblings = self.siblings(columns)
        node = self.random.choice(siblings)
        if node.role or node.number == self.zorder or node.parts or len(siblings) == 1:
            return
        new = self.node(node.name, "string", is_added=True)
        siblings.remove(node)
        siblings.append(new)
        changes = [
            {"drop": f"{path}{node.name}"},
            {"add": f"{path}{new.name}", "type": "string"},
        ]
        self.log_of_steps.append(repr(changes))
        self.table.alter(changes)
        self.commit(columns=columns)

    def let_in(self) -> None:
        """Make a column of a name for which rows were put aside: add one, or rename one."""
        names = [aside.extra for job in self.jobs for aside in job.rows]
        columns = deepcopy(self.now.columns)
        taken = {node.name for node in columns}
        free = [name for name in names if name not in taken]
        if not free:
            return
        name = self.random.choice(free)
        texts = [node for node in columns if node.type == "string" and not node.role]
        change: dict[str, Any] = {"add": name, "type": "string"}
        if texts and self.random.random() < 0.5:
            node = self.random.choice(texts)
            change = {"rename": node.name, "to": name}
            node.name = name
        else:
            columns.append(self.node(name, "string", is_added=True))
        self.log_of_steps.append(repr(change))
        self.table.alter([change])
        self.commit(columns=columns)

    def new_types(self, *, is_member: bool) -> list[str]:
        """Return the types of a new column; streams of JSON read no text as a date in a struct."""
        types = super().new_types(is_member=is_member)
        # Extra keys of messages are texts: more columns of texts let more of them in
        known = [kind for kind in types if kind != "date" or not is_member]
        return [*known, "string", "string"]

    # Steps of messages

    def messages(self, columns: list[Node]) -> tuple[list[Row], list[bytes]]:
        """Return rows of the model, and a message of each with the names of columns."""
        rows, _ = self.batch(columns)
        return rows, [json_text(shown_row(row, columns)).encode() for row in rows]

    def gather(self) -> None:
        """Decode messages with the columns of now, and write them into a file."""
        partition = self.random.choice(PARTITIONS)
        rows, messages = self.messages(self.now.columns)
        decoded = Decoder(self.table.snapshot_at().spec, FORMATS).decode(batch(messages))
        assert decoded.bad == [], decoded.bad
        low = self.offsets[partition]
        self.offsets[partition] = high = low + len(rows)
        folder = GatheredFolder(self.table.storage, self.table.snapshot_at().root.table_id)
        header = Header(
            table_id=self.table.snapshot_at().root.table_id,
            application=application(partition),
            writer="w",
            consumed=Consumed(low=low, high=high, records=len(rows)),
            first=low == 0,
        )
        known = DecodedRows(rows=decoded.rows, schema=decoded.schema)
        assert folder.put(header, known.fitted(self.table.snapshot_at().spec))
        self.gathered[partition].append((rows, self.now.columns))

    def commit_gathered(self) -> None:
        """Commit all files, one in each commit."""
        committer = Committer(self.table, CommitterOptions(bytes=1))
        before = self.positions()
        while committer._turn():
            after = self.positions()
            [partition] = [name for name in PARTITIONS if after[name] != before[name]]
            before = after
            decoded, columns = self.gathered[partition].pop(0)
            rows = [self.with_defaults(row, columns) for row in decoded]
            self.committed_files += 1
            self.commit(rows=[*self.now.rows, *rows])
        assert not any(self.gathered.values()), committer._problems

    def with_defaults(self, row: Row, columns: list[Node]) -> Row:
        """Return a row that was decoded with `columns`: newer ones have their default."""
        known = {node.number for node in columns}
        newer = {node.number: node.write for node in self.now.columns if node.number not in known}
        return replace(row, values={**row.values, **newer})

    def positions(self) -> dict[Partition, int | None]:
        return {name: self.table.position(str(application(name))) for name in PARTITIONS}

    def read_messages(self) -> None:
        """Decode messages into the buffer, as a stream does: its decoder may be older."""
        if not self.buffered and not self.buffered_asides:
            self.decoder = Decoder(self.table.snapshot_at().spec, FORMATS)
            self.decoded_columns = self.now.columns
        columns = self.decoded_columns
        rows, messages = self.messages(columns)
        good: list[Row] = []
        for position, row in enumerate(rows):
            extra = self.random.choice(NAMES)
            is_known = any(extra == node.name for node in columns)
            if is_known or self.random.random() < 0.3:
                good.append(row)
                continue
            value = f"text {self.random.randint(0, 99)}"
            text = json_text({**shown_row(row, columns), extra: value})
            messages[position] = text.encode()
            self.buffered_asides.append(Aside(row, columns, extra, value))
        part = batch(messages)
        self.buffer.add(part, self.decoder.decode(part), 0.0)
        self.buffered += good

    def flush(self) -> None:
        """Commit the buffer."""
        if not self.buffer.consumed:
            return
        name = str(application(DIRECT))
        writer = Writer(
            table=self.table,
            on_bad_message="quarantine",
            row_form=row_form_of(FORMATS),
            applications={DIRECT: application(DIRECT)},
            positions={DIRECT: self.table.position(name)},
        )
        low = self.offsets[DIRECT]
        count = self.buffer.consumed[DIRECT].records
        self.offsets[DIRECT] = low + count
        self.buffer.consumed[DIRECT].low = low
        self.buffer.consumed[DIRECT].high = low + count
        assert writer.flush(self.buffer, lambda: None, lambda: None) is not None
        rows = [self.with_defaults(row, self.decoded_columns) for row in self.buffered]
        self.commit(rows=[*self.now.rows, *rows])
        if self.buffered_asides:
            self.jobs.append(Job(self.buffered_asides))
        self.buffered, self.buffered_asides = [], []
        self.buffer.clear()

    def replay(self) -> None:
        """Ingest what can be read of the rows that were put aside."""
        result = self.table.replay()
        replayed = 0
        for job in list(self.jobs):
            rows: list[Row] = []
            remaining: list[Aside] = []
            for aside in job.rows:
                values = self.values_now(aside)
                if values is None:
                    remaining.append(aside)
                else:
                    rows.append(replace(aside.row, values=values))
            if not rows:
                continue
            replayed += len(rows)
            self.jobs.remove(job)
            if remaining:
                self.jobs.append(Job(remaining))
            self.commit(rows=[*self.now.rows, *rows])
        assert result.counts["rows"] == replayed, result.notes
        self.replayed += replayed

    def values_now(self, aside: Aside) -> dict[int, Any] | None:
        """Return the values of a row by the columns of now; None if it cannot be read."""
        text = shown_row(aside.row, aside.columns)
        if not self.is_certain([*text, aside.extra], self.now.columns, aside.columns):
            return None
        new = next(node for node in self.now.columns if node.name == aside.extra)
        if new.type != "string":
            return None
        if any(
            not self.is_certain_inside(aside.row.values.get(node.number), node, now)
            for node in aside.columns
            for now in self.now.columns
            if now.number == node.number and node.parts
        ):
            return None
        values = self.with_defaults(aside.row, aside.columns).values
        return {**values, new.number: aside.extra_value}

    def is_certain_inside(self, value: Any, before: Node, now: Node) -> bool:
        if value is None or value == [] or value == [None]:
            return True
        return self.is_certain([part.name for part in before.parts], now.parts, before.parts)

    def is_certain(self, keys: list[str], now: list[Node], before: list[Node]) -> bool:
        """Return whether each key names one column that is left, or one that was dropped."""
        numbers_before = {node.name: node.number for node in before}
        names_now = {node.name: node.number for node in now}
        named: list[int] = []
        for key in keys:
            number = numbers_before.get(key)
            if number is None and key not in names_now:
                return False
            if number is None:
                named.append(names_now[key])
            elif number in names_now.values():
                named.append(number)
            elif key in names_now:
                return False
        return len(set(named)) == len(named)
