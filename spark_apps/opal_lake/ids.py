"""Names: write ids, table ids, and the two halves of a segment id."""

import uuid
from typing import Protocol

SEQUENCE_BITS = 32
MAX_PART = (1 << 31) - 1


class IdSource(Protocol):
    """Gives names that are unique."""

    def new_id(self) -> str: ...


class RandomIds:
    """Random 128-bit ids."""

    def new_id(self) -> str:
        return uuid.uuid4().hex


def segment_id(part: int, sequence: int) -> int:
    """SegmentIdPart and SegmentIdSeq as the one BIGINT that rows carry."""
    return part << SEQUENCE_BITS | sequence


def segment_part(segment: int) -> int:
    """The number of the job that ingested the segment."""
    return segment >> SEQUENCE_BITS


def segment_sequence(segment: int) -> int:
    """Which file of that job it was."""
    return segment & ((1 << SEQUENCE_BITS) - 1)


def segment_name(segment: int) -> str:
    """`part:sequence`, as people read it."""
    return f"{segment_part(segment)}:{segment_sequence(segment)}"
