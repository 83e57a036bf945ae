"""Names: write ids, table ids, and the two halves of a segment id."""

import uuid
from typing import Protocol

SEQUENCE_BITS = 32
# The highest bit of the sequence of a segment that a statement wrote
STATEMENT_BIT = 1 << 31
MAX_PART = (1 << 31) - 1


class IdSource(Protocol):
    """A source of unique names."""

    def new_id(self) -> str: ...


class RandomIds:
    """Random 128-bit ids."""

    def new_id(self) -> str:
        return uuid.uuid4().hex


def segment_id(part: int, sequence: int) -> int:
    """Return the id of a segment, which its rows hold as a BIGINT.

    The upper 32 bits are the number of the job, the lower ones that of the job's file.
    """
    return part << SEQUENCE_BITS | sequence


def segment_part(segment: int) -> int:
    """Return the number of the job that ingested a segment."""
    return segment >> SEQUENCE_BITS


def segment_sequence(segment: int) -> int:
    """Return the number of a segment's file within its job."""
    return segment & ((1 << SEQUENCE_BITS) - 1)


def segment_name(segment: int) -> str:
    """Return `part:sequence`, the form of a segment id in messages."""
    return f"{segment_part(segment)}:{segment_sequence(segment)}"
