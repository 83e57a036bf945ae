"""Runs of integers as ORC stores the lengths of texts and lists (its run length encoding, version 2).

The two highest bits of a run's first byte say how it is stored, the next five of most a width in
bits, and the ninth and the next byte how many values there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from opal_lake.data.thrift import decode_varint

FEW_BYTES = 1000  # of lengths, which a loop is through sooner than numpy begins
MAX_LENGTH = 1 << 40  # of a text or a list

_WIDTHS = [*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64]
_SHORT_REPEAT, _PACKED, _PATCHED, _DELTA = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of texts or lists: all together, and the greatest."""

    total: int = 0
    longest: int = 0


def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, by a run's first two bytes, its bytes, its values, and the greatest it may hold.

    Only of repeated and of packed values, others have 0 bytes. Repeated values are in the run.
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
    """Return at least the sum and the greatest of lengths, without unpacking them."""
    return _bound_of_many(data) if len(data) > few_bytes else _bound_of_few(data)


def _bound_of_few(data: bytes) -> Lengths:
    total = longest = at = 0
    while at < len(data):
        count, greatest, at = _bound_of_run(data, at)
        total += count * greatest
        longest = max(longest, greatest)
    return Lengths(total=total, longest=longest)


def _bound_of_many(data: bytes) -> Lengths:
    octets = np.frombuffer(data + bytes(9), np.uint8).astype(np.uint16)
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
    places = np.array(starts)
    heads = words[places]
    greatest_each = _GREATEST[heads]
    repeat_bytes = (heads >> 11) + 1  # of the value of a run that repeats one
    for width in {*repeat_bytes[heads < _PACKED << 14].tolist()}:
        chosen = repeat_bytes == width
        value = np.zeros(int(chosen.sum()), np.float64)
        for number in range(1, width + 1):
            value = value * 256 + octets[places[chosen] + number]
        greatest_each[chosen] = value
    total += int((greatest_each * _COUNTS[heads]).sum())
    return Lengths(total=total, longest=max(longest, int(greatest_each.max())))


def _bound_of_run(data: bytes, at: int) -> tuple[int, int, int]:
    """Return how many values a run has, the greatest at most, and where it ends."""
    head = data[at]
    kind = head >> 6
    if kind == _SHORT_REPEAT:
        end = at + 2 + (head >> 3 & 7)
        return (head & 7) + 3, int.from_bytes(data[at + 1 : end], "big"), end
    count, width = _count_and_width(data, at)
    if kind == _PACKED:
        return count, (1 << width) - 1, at + 2 + (count * width + 7) // 8
    if kind == _PATCHED:
        base_bytes, patch_width = (data[at + 2] >> 5) + 1, _WIDTHS[data[at + 2] & 31]
        base = int.from_bytes(data[at + 4 : at + 4 + base_bytes], "big")
        end = at + 4 + base_bytes + (count * width + 7) // 8
        entry_bits = (data[at + 3] & 31) * _entry_width(data, at)
        is_patched = bool(data[at + 3] & 31)
        return count, base + (1 << width + patch_width * is_patched), end + (entry_bits + 7) // 8
    base, start = decode_varint(data, at + 2)
    step, end = decode_varint(data, start)
    rises = max(0, -(step >> 1) - 1 if step & 1 else step >> 1)
    if not head >> 1 & 31:
        return count, base + rises * count, end
    end += (max(0, count - 2) * width + 7) // 8
    return count, base + rises + (count << width), end


def runs_of(data: bytes) -> Iterator[np.ndarray]:
    """Yield the values of each run; ValueError for one that no text or list has as its length."""
    at = 0
    while at < len(data):
        values, at = _run(data, at)
        yield values


def _run(data: bytes, at: int) -> tuple[np.ndarray, int]:
    """Return the values of a run, and where it ends; ValueError for one that no length has."""
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
    if not 0 <= value <= MAX_LENGTH:
        raise ValueError(f"a text or a list has length {value:,}")
    return value


def _count_and_width(data: bytes, at: int) -> tuple[int, int]:
    count = ((data[at] & 1) << 8 | data[at + 1]) + 1
    return count, _WIDTHS[data[at] >> 1 & 31]


def _unpacked(data: bytes, at: int, count: int, width: int) -> tuple[np.ndarray, int]:
    """Return so many numbers of so many bits, the highest bit first."""
    end = at + (count * width + 7) // 8
    octets = np.frombuffer(data[at:end], np.uint8)
    bits = np.unpackbits(octets, count=count * width).reshape(count, width)
    whole = np.zeros((count, 64), np.uint8)
    whole[:, 64 - width :] = bits
    return np.packbits(whole, axis=1).view(">u8").ravel().astype(np.uint64), end


def _patched(data: bytes, at: int) -> tuple[np.ndarray, int]:
    """Return values above a base; the highest bits of the few great ones follow in a list."""
    count, width = _count_and_width(data, at)
    base_bytes, patch_width = (data[at + 2] >> 5) + 1, _WIDTHS[data[at + 2] & 31]
    patches = data[at + 3] & 31
    start = at + 4 + base_bytes
    base = int.from_bytes(data[at + 4 : start], "big")
    values, start = _unpacked(data, start, count, width)
    entries, end = _unpacked(data, start, patches, _entry_width(data, at))
    place = 0
    for entry in entries.tolist():
        place += entry >> patch_width
        patch = entry & ((1 << patch_width) - 1)
        _checked(patch << width)
        values[place] |= np.uint64(patch << width)
    return values + np.uint64(_checked(base)), end


def _entry_width(data: bytes, at: int) -> int:
    """Return the bits of an entry of the list of patches: how far it is from the last, and its bits."""
    bits = _WIDTHS[data[at + 2] & 31] + (data[at + 3] >> 5) + 1
    return next((known for known in _WIDTHS if known >= bits), 64)


def _delta(data: bytes, at: int) -> tuple[np.ndarray, int]:
    """Return values that rise or fall; without a width, by equal steps."""
    count, width = _count_and_width(data, at)
    is_even = not data[at] >> 1 & 31
    base, start = decode_varint(data, at + 2)
    step, end = decode_varint(data, start)
    first = -(step >> 1) - 1 if step & 1 else step >> 1
    _checked(base)
    _checked(abs(first))
    steps = np.full(count, first, np.int64)
    steps[0] = base
    if not is_even and count > 2:
        rest, end = _unpacked(data, end, count - 2, width)
        _checked(int(rest.max()))
        steps[2:] = rest.astype(np.int64) * (-1 if first < 0 else 1)
    return steps.cumsum(), end
