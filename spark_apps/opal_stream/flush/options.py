"""What a stream is to read, and what it has done."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from opal_lake.errors import InvalidInputError
from opal_lake.table import Table
from opal_stream.flush.buffer import FlushLimits
from opal_stream.kafka.applications import check_stream
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition
from opal_stream.operations.reading import FormatOptions, Policies
from opal_stream.timeouts import BROKER_TIMEOUT_S, GIVE_UP_S
from opal_stream.tracking.events import Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What to read, and how. Without `partitions` all of the topics, also such as come to be.

    A flush makes a commit itself (`commit="direct"`), or leaves that to the committer of many processes ("gathered"). Then nothing more is
    read while files of `gathered_bytes` wait for it; 0 is no limit.
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
            raise InvalidInputError("a stream reads at least one topic: --topic orders")


@dataclass(slots=True, kw_only=True)
class Totals:
    """What a run did."""

    records: int = 0
    bad: int = 0
    flushes: int = 0
    version: int | None = None
    missing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """From where, to where, and who is told."""

    table: Table
    connection: Connection
    options: StreamOptions
    tracker: Tracker
