"""Rows with texts that are not UTF-8 are found, in whatever they lie."""

import pyarrow as pa
import pytest

from opal_lake.data.utf8 import rows_not_utf8

BAD = pa.array([b"ok", b"\xff", None, "ß".encode()]).view(pa.string())
OFFSETS = pa.array([0, 1, 2, 3, 4], pa.int32())
NUMBERS = pa.array([1, 2, 3, 4])


@pytest.mark.parametrize(
    "array",
    [
        BAD,
        BAD.cast(pa.large_string()),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3]), BAD),
        pa.StructArray.from_arrays([NUMBERS, BAD], ["n", "s"]),
        pa.ListArray.from_arrays(OFFSETS, BAD),
        pa.ListArray.from_arrays(OFFSETS, pa.StructArray.from_arrays([BAD], ["s"])),
        pa.MapArray.from_arrays(OFFSETS, pa.array(list("abcd")), BAD),
    ],
    ids=lambda array: str(array.type),
)
def test_only_rows_that_are_not_utf8_are_found_also_in_slices(
    array: pa.Array,
) -> None:
    def places(column: pa.ChunkedArray) -> list[bool] | None:
        mask = rows_not_utf8(column)
        return None if mask is None else mask.tolist()

    assert places(pa.chunked_array([array])) == [False, True, False, False]
    assert places(pa.chunked_array([array.slice(2)])) is None
    assert places(pa.chunked_array([array.slice(2), array.slice(1, 2)])) == [
        False,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_slice_of_ascii_is_checked_without_the_bytes_around_it(kind: pa.DataType) -> None:
    texts = pa.array([b"\xff", b"a", b"", None, b"b", b"\xfe"]).view(pa.string()).cast(kind)
    assert rows_not_utf8(pa.chunked_array([texts.slice(1, 4)])) is None
    assert rows_not_utf8(pa.chunked_array([texts.slice(2, 2)])) is None
    mask = rows_not_utf8(pa.chunked_array([texts.slice(4)]))
    assert mask is not None
    assert mask.tolist() == [False, True]
