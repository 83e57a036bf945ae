"""A batch of messages, by column."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

Headers = Sequence[tuple[str, bytes | str | None]]


@dataclass(slots=True, kw_only=True)
class MessageBatch:
    """Lists of one length. `headers` are empty unless a column asks for one."""

    topics: list[str] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int | None = None) -> "MessageBatch":
        return MessageBatch(**{name: getattr(self, name)[start:stop] for name in self.__slots__})

    def take(self, positions: Sequence[int]) -> "MessageBatch":
        """Some of the messages, in this order."""
        columns = {name: getattr(self, name) for name in self.__slots__}
        return MessageBatch(
            **{
                name: [column[position] for position in positions]
                for name, column in columns.items()
                if column
            }
        )

    def sources(self) -> pa.Array:
        """Of each message where it stands, as people are told: `orders/3@1700`."""
        parts = zip(self.topics, self.partitions, self.offsets, strict=True)
        return pa.array([source_text(*part) for part in parts], pa.string())

    def source(self, position: int) -> str:
        """Where a message stands."""
        return source_text(self.topics[position], self.partitions[position], self.offsets[position])

    def shown(self, position: int) -> str:
        """What a message held, for somebody who looks for the mistake."""
        value = self.values[position]
        if value is None:  # a tombstone is its key
            key = self.keys[position]
            return "" if key is None else f"@key: {_text_of(key)}"
        return _text_of(value)


def _text_of(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(content).decode()


def from_partition(sources: pa.ChunkedArray, topic: str, partition: int) -> pa.ChunkedArray:
    """Which of the messages that stand there are of a partition."""
    return pc.starts_with(sources, source_text(topic, partition, ""))


def source_text(topic: str, partition: int, offset: int | str) -> str:
    return f"{topic}/{partition}@{offset}"
