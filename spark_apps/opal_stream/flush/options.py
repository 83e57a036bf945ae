"""The options of a stream, and the totals of a run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from opal_lake.errors import InvalidInputError
from opal_lake.table import Table
from opal_stream.flush.buffer import FlushLimits
from opal_stream.kafka.applications import check_stream
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from opal_stream.operations.reading import FormatOptions, Policies
from opal_stream.timeouts import BROKER_TIMEOUT_S, GIVE_UP_S
from opal_stream.tracking.events import Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options of a stream: its topics, and how they are read.

    - Without `partitions` the stream reads all partitions of the topics, later ones included.
    - `commit` is "direct" if each flush makes a commit. It is "gathered" if a flush writes files,
      which one committer commits for many processes.
    - While gathered files of `gathered_bytes` wait for the committer, no message is read. 0 means
      no limit.
    """

    topics: Sequence[str]
    name: str = "main"
    partitions: Sequence[int | Partition] = ()
    formats: FormatOptions = field(default_factory=FormatOptions)
    limits: FlushLimits = field(default_factory=FlushLimits)
    policies: Policies = field(default_factory=Policies)
    on_bad_message: str = "fail"
    start: str = "earliest"
    until_empty: bool = False
    give_up_s: float = GIVE_UP_S
    broker_timeout_s: float = BROKER_TIMEOUT_S
    commit: str = "direct"
    gathered_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        check_stream(self.name)
        if not self.topics:
            raise InvalidInputError(
                "a stream reads at least one topic: topics=['orders'] (--topic orders)"
            )


@dataclass(slots=True, kw_only=True)
class Totals:
    """The totals of a run; Kafka deleted the `missing` offsets before they were read."""

    records: int = 0
    bad: int = 0
    flushes: int = 0
    version: int | None = None
    missing: int = 0

    def add_flush(self, consumed: Iterable[Consumed], *, bad: int, version: int | None) -> None:
        """Count a flush of these messages; `version` is None if the flush made no commit."""
        self.flushes += 1
        self.records += sum(part.records for part in consumed)
        self.bad += bad
        if version is not None:
            self.version = version


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The table, Kafka, the options and the tracker of one process."""

    table: Table
    connection: Connection
    options: StreamOptions
    tracker: Tracker
