"""Runs of integers, as which ORC stores the lengths of texts and lists (its RLE version 2).

The two highest bits of a run's first byte are its kind. In most kinds the next five are the width
of a value, and the last one, with the next byte, is the number of values.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from opal_lake.data.thrift import decode_varint

FEW_BYTES = 1000  # of lengths, for which a loop is faster than numpy
MAX_LENGTH = 1 << 40  # of a text or a list

_WIDTHS = [*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64]
_SHORT_REPEAT, _PACKED, _PATCHED, _DELTA = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The sum of the lengths of texts or lists, and the greatest one."""

    total: int = 0
    longest: int = 0


def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the bytes, the number of values and the greatest value of runs.

    The index is a run's first two bytes. Patched and delta runs have 0 bytes: these two do not
    determine their size. Repeated values are not in the tables, but in the run.
    """
    sizes = np.zeros(1 << 16, np.uint16)
    counts = np.zeros(1 << 16, np.float64)
    greatest = np.zeros(1 << 16, np.float64)
    for head in range(1 << 6):
        words = np.arange(head << 8, (head + 1) << 8)
        sizes[words] = 2 + (head >> 3)
        counts[words] = (head & 7) + 3
    for head in range(_PACKED << 6, _PATCHED << 6):
        words = np.arange(head << 8, (head + 1) << 8)
        width = _WIDTHS[head >> 1 & 31]
        counts[words] = (words & 511) + 1
        sizes[words] = 2 + (((words & 511) + 1) * width + 7) // 8
        greatest[words] = float((1 << width) - 1)
    return sizes, counts, greatest


_SIZES, _COUNTS, _GREATEST = _tables()


def bound_of_lengths(data: bytes, few_bytes: int = FEW_BYTES) -> Lengths:
    """Return upper bounds of the sum and of the greatest of packed lengths.

    The heads of runs give them, without unpacking the lengths.
    """
    if len(data) > few_bytes:
        return _bound_of_many(data)
    return _bound_of_few(data)


def _bound_of_few(data: bytes) -> Lengths:
    total = longest = at = 0
    while at < len(data):
        count, greatest, at = _bound_of_run(data, at)
        total += count * greatest
        longest = max(longest, greatest)
    return Lengths(total=total, longest=longest)


def _bound_of_many(data: bytes) -> Lengths:
    # Zeros after the end: a damaged run may reach beyond it.
    octets = np.frombuffer(data + bytes(9), np.uint8).astype(np.uint16)
    # At each byte: the word of it and the next one, and the bytes of a run that begins there
    words = octets[:-1] << 8 | octets[1:]
    sizes = memoryview(_SIZES[words])
    starts: list[int] = []
    total = longest = at = 0
    while at < len(data):
        size = sizes[at]
        if size:
            starts.append(at)
            at += size
        else:
            count, greatest, at = _bound_of_run(data, at)
            total += count * greatest
            longest = max(longest, greatest)
    if not starts:
        return Lengths(total=total, longest=longest)
    # By run: its first byte, its head, and the greatest value
    start = np.array(starts)
    heads = words[start]
    greatest_by_run = _GREATEST[heads]
    # Of a run that repeats one value: the bytes of this value. In heads of other kinds it is > 8.
    value_bytes = (heads >> 11) + 1
    is_repeat = heads < _PACKED << 14
    for width in {*value_bytes[is_repeat].tolist()}:
        has_width = value_bytes == width
        repeated_values = np.zeros(int(has_width.sum()), np.float64)
        # Highest byte first
        for number in range(1, width + 1):
            repeated_values = repeated_values * 256 + octets[start[has_width] + number]
        greatest_by_run[has_width] = repeated_values
    total += int((greatest_by_run * _COUNTS[heads]).sum())
    return Lengths(total=total, longest=max(longest, int(greatest_by_run.max())))


def _bound_of_run(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the number of values of a run, a bound of the greatest, and its end."""
    head = data[at]
    kind = head >> 6
    if kind == _SHORT_REPEAT:
        end = at + 2 + (head >> 3 & 7)
        return (head & 7) + 3, int.from_bytes(data[at + 1 : end], "big"), end
    count, width = _count_and_width(data, at)
    if kind == _PACKED:
        end = at + 2 + _packed_bytes(count, width)
        return count, (1 << width) - 1, end
    if kind == _PATCHED:
        patched = _patched_head(data, at)
        value_bits = width
        if patched.patches:
            value_bits += patched.patch_width
        end = patched.start + _packed_bytes(count, width)
        end += _packed_bytes(patched.patches, patched.entry_width)
        return count, patched.base + (1 << value_bits), end
    base, start = decode_varint(data, at + 2)
    zigzag_step, end = decode_varint(data, start)
    rise = max(0, _signed(zigzag_step))
    has_equal_steps = not head >> 1 & 31
    if has_equal_steps:
        return count, base + rise * count, end
    end += _packed_bytes(max(0, count - 2), width)
    return count, base + rise + (count << width), end


def runs_of(data: bytes) -> Iterator[np.ndarray]:
    """Yield the values of each run; raise ValueError for an impossible length."""
    at = 0
    while at < len(data):
        values, at = _run(data, at)
        yield values


def _run(data: bytes, at: int) -> tuple[np.ndarray, int]:
    """Return the values of the run at a byte, and where it ends."""
    kind = data[at] >> 6
    if kind == _SHORT_REPEAT:
        count, size = (data[at] & 7) + 3, (data[at] >> 3 & 7) + 1
        end = at + 1 + size
        value = _checked(int.from_bytes(data[at + 1 : end], "big"))
        return np.full(count, value, np.int64), end
    if kind == _PACKED:
        count, width = _count_and_width(data, at)
        values, end = _unpacked(data, at + 2, count, width)
    elif kind == _PATCHED:
        values, end = _patched(data, at)
    else:
        values, end = _delta(data, at)
    _checked(int(values.min()))
    _checked(int(values.max()))
    return values.astype(np.int64), end


def _checked(value: int) -> int:
    """Return a length; raise ValueError if no writer of this format stores it."""
    if not 0 <= value <= MAX_LENGTH:
        raise ValueError(
            f"a text or a list has length {value:,}, which is not from 0 to {MAX_LENGTH:,}"
        )
    return value


def _count_and_width(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of values in the run at a byte, and the bits of each."""
    count = ((data[at] & 1) << 8 | data[at + 1]) + 1
    return count, _WIDTHS[data[at] >> 1 & 31]


def _packed_bytes(count: int, width: int) -> int:
    """Return the bytes of `count` values of `width` bits."""
    return (count * width + 7) // 8


def _signed(zigzag: int) -> int:
    """Return the signed number of a zigzag varint."""
    return zigzag >> 1 ^ -(zigzag & 1)


def _unpacked(data: bytes, at: int, count: int, width: int) -> tuple[np.ndarray, int]:
    """Return `count` numbers of `width` bits, highest bit first, and where they end."""
    end = at + _packed_bytes(count, width)
    if end > len(data):
        # numpy fills the missing bits with what lies in memory
        raise ValueError("a run ends beyond its stream")
    octets = np.frombuffer(data[at:end], np.uint8)
    bits = np.unpackbits(octets, count=count * width).reshape(count, width)
    # A row of 64 bits for each number, with zeros above its own bits
    bits_of_words = np.zeros((count, 64), np.uint8)
    bits_of_words[:, 64 - width :] = bits
    words = np.packbits(bits_of_words, axis=1).view(">u8")
    return words.ravel().astype(np.uint64), end


@dataclass(frozen=True, slots=True, kw_only=True)
class _PatchedHead:
    """The head of a patched run: its base, its patches, and where its values start.

    An entry of the list of patches is the distance from the last patched value, and the highest
    `patch_width` bits of this one.
    """

    base: int
    patches: int
    patch_width: int
    entry_width: int
    start: int


def _patched_head(data: bytes, at: int) -> _PatchedHead:
    base_bytes = (data[at + 2] >> 5) + 1
    patch_width = _WIDTHS[data[at + 2] & 31]
    entry_bits = patch_width + (data[at + 3] >> 5) + 1
    start = at + 4 + base_bytes
    return _PatchedHead(
        base=int.from_bytes(data[at + 4 : start], "big"),
        patches=data[at + 3] & 31,
        patch_width=patch_width,
        entry_width=next((width for width in _WIDTHS if width >= entry_bits), 64),
        start=start,
    )


def _patched(data: bytes, at: int) -> tuple[np.ndarray, int]:
    """Return the values of a patched run, and where it ends.

    Each value is stored as its distance from a base. Patches hold the highest bits of the few
    largest distances.
    """
    count, width = _count_and_width(data, at)
    head = _patched_head(data, at)
    values, patches_start = _unpacked(data, head.start, count, width)
    entries, end = _unpacked(data, patches_start, head.patches, head.entry_width)
    position = 0
    for entry in entries.tolist():
        position += entry >> head.patch_width
        patch = entry & ((1 << head.patch_width) - 1)
        _checked(patch << width)
        values[position] |= np.uint64(patch << width)
    return values + np.uint64(_checked(head.base)), end


def _delta(data: bytes, at: int) -> tuple[np.ndarray, int]:
    """Return the values of a run that rises or falls, and where it ends.

    A head without a width means that all steps are equal.
    """
    count, width = _count_and_width(data, at)
    has_equal_steps = not data[at] >> 1 & 31
    base, start = decode_varint(data, at + 2)
    zigzag_step, end = decode_varint(data, start)
    first_step = _signed(zigzag_step)
    _checked(base)
    _checked(abs(first_step))
    steps = np.full(count, first_step, np.int64)
    steps[0] = base
    if not has_equal_steps and count > 2:
        distances, end = _unpacked(data, end, count - 2, width)
        _checked(int(distances.max()))
        direction = -1 if first_step < 0 else 1
        steps[2:] = distances.astype(np.int64) * direction
    return steps.cumsum(), end
