"""Structs of footers as trees and back; other bytes raise ValueError."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opal_lake.data import thrift
from opal_lake.data.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    Struct,
    decode_struct,
    encode_fields,
    encode_struct,
)


def footer_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_index=True)
    data = bytes(sink.getvalue())
    length = int.from_bytes(data[-8:-4], "little")
    return data[-8 - length : -8]


def test_decoded_and_encoded_footer_is_the_same() -> None:
    footer = footer_of(
        pa.table(
            {f"c{number}": [number, None] for number in range(20)} | {"x": [{"a": [1.5]}, None]}
        )
    )
    tree = decode_struct(footer)
    assert encode_struct(tree) == footer
    assert thrift.value_of(tree, 3) == 2
    assert len(thrift.structs_of(tree, 2)) > 20


def test_numbers_texts_and_fields_far_apart_come_back() -> None:
    tree: Struct = {
        1: (I64, -(1 << 63)),
        2: (I64, (1 << 63) - 1),
        90: (I32, -1),
        91: (BINARY, b"\xff" * 200),
        300: (TRUE, None),
    }
    tree[301] = (LIST, (STRUCT, [{1: (I32, number)} for number in range(16)]))
    assert decode_struct(encode_struct(tree)) == tree
    assert (
        encode_fields({2: tree[2]}, 1)
        == encode_fields({1: tree[1], 2: tree[2]})[len(encode_fields({1: tree[1]})) :]
    )


@pytest.mark.parametrize(
    "data, words",
    [
        (b"\x1c" * 100, "nest more than 16 deep"),
        (b"\x19" + b"\x19" * 100, "too deep"),
        (b"\x19\xfc\xff\xff\xff\xff\x0f", "a list of 4,294,967,295 elements at byte"),
        (b"\x18\xff\xff\xff\xff\x0f", "4,294,967,295 bytes at byte"),
        (b"\x16" + b"\xff" * 20, "number at byte 1 does not end within 10 bytes"),
        (b"\x1b\x00\x00", "type 11, which footers do not have"),
    ],
)
def test_bytes_that_are_not_a_struct_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode_struct(data)


def test_bytes_that_end_too_early_are_refused() -> None:
    footer = footer_of(pa.table({"a": [1]}))
    for length in range(len(footer)):
        with pytest.raises((ValueError, IndexError)):
            decode_struct(footer[:length])
