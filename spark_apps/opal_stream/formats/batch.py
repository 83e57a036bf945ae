"""A batch of messages, by column."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

Headers = Sequence[tuple[str, bytes | str | None]]


@dataclass(slots=True, kw_only=True)
class MessageBatch:
    """Messages by column: lists of one length, of which `headers` may be empty."""

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
        """Return the messages at some positions, in this order."""
        columns = {}
        for name in self.__slots__:
            column = getattr(self, name)
            if column:  # headers may be empty
                columns[name] = [column[position] for position in positions]
        return MessageBatch(**columns)

    def sources(self) -> pa.Array:
        """Return the source of each message as text: `orders/3@1700`."""
        parts = zip(self.topics, self.partitions, self.offsets, strict=True)
        return pa.array([source_text(*part) for part in parts], pa.string())

    def source(self, position: int) -> str:
        """Return the source of one message."""
        return source_text(self.topics[position], self.partitions[position], self.offsets[position])

    def shown(self, position: int) -> str:
        """Return the content of a message as text, for a person who looks for a mistake.

        The content is the value, or for a tombstone the key.
        """
        value = self.values[position]
        if value is None:
            key = self.keys[position]
            if key is None:
                return ""
            return f"@key: {_text_of(key)}"
        return _text_of(value)


def _text_of(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(content).decode()


def from_partition(sources: pa.ChunkedArray, topic: str, partition: int) -> pa.ChunkedArray:
    """Return for each source, such as `orders/3@1700`, whether it is in a partition."""
    return pc.starts_with(sources, source_text(topic, partition, ""))


def source_text(topic: str, partition: int, offset: int | str) -> str:
    return f"{topic}/{partition}@{offset}"
